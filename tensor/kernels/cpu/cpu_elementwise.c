// SPDX-License-Identifier: Apache-2.0
// Ops that make each element from the elements at its place. A formula gives
// loops over planes for every instruction set: in f32, in all layouts, and in
// 16 bits side by side, which are f32 on the way; and one in f64. In other
// layouts 16 bits are brought to f32 block by block, within the L1 cache, and
// rounded once on the way back; so are all for functions, to f64.
#include "tensor/kernels/cpu/cpu_elementwise.h"

#include <math.h>

#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/dtype_traits.h"
#include "tensor/kernels/element_params.h"

// ---- Blocks of elements, widened and narrowed again ----

// count elements, `step` apart in memory and side by side in a block.
#define BLOCK_MOVES(DTYPE, real, math, stored)                                 \
  CHOIR__BODY void load_##DTYPE##_##real##_body(void* to, const void* from,    \
                                                int64_t step, int64_t count) { \
    math* y = to;                                                              \
    const choir__##DTYPE##_t* x = from;                                        \
    if (step == 1) {                                                           \
      CHOIR__INDEPENDENT                                                       \
      for (int64_t i = 0; i < count; i++)                                      \
        y[i] = (math)choir__##DTYPE##_load(x[i]);                              \
    } else {                                                                   \
      for (int64_t i = 0; i < count; i++)                                      \
        y[i] = (math)choir__##DTYPE##_load(x[i * step]);                       \
    }                                                                          \
  }                                                                            \
  CHOIR__ISA_VARIANTS(                                                         \
      load_##DTYPE##_##real,                                                   \
      (void* to, const void* from, int64_t step, int64_t count),               \
      (to, from, step, count))                                                 \
  CHOIR__BODY void store_##DTYPE##_##real##_body(                              \
      void* to, const void* from, int64_t step, int64_t count) {               \
    choir__##DTYPE##_t* y = to;                                                \
    const math* x = from;                                                      \
    if (step == 1) {                                                           \
      CHOIR__INDEPENDENT                                                       \
      for (int64_t i = 0; i < count; i++)                                      \
        y[i] = choir__##DTYPE##_##stored(x[i]);                                \
    } else {                                                                   \
      for (int64_t i = 0; i < count; i++)                                      \
        y[i * step] = choir__##DTYPE##_##stored(x[i]);                         \
    }                                                                          \
  }                                                                            \
  CHOIR__ISA_VARIANTS(                                                         \
      store_##DTYPE##_##real,                                                  \
      (void* to, const void* from, int64_t step, int64_t count),               \
      (to, from, step, count))
#define BLOCKS(DTYPE)                   \
  BLOCK_MOVES(DTYPE, f32, float, store) \
  BLOCK_MOVES(DTYPE, f64, double, round)
CHOIR__FLOATS(BLOCKS)

// ---- In f32, and in 16 bits ----

// Floats between a formula and its rounding, in a loop of its own: compilers
// would move the rounding into a formula's branches, choose among 16 bits
// there, and take half as long again.
enum { ROOM = 1024 };

#define DENSE_PLANE(DTYPE, name, sources)                                 \
  CHOIR__BODY void name##_##DTYPE##_body(const choir__plane_t* plane) {   \
    const choir__element_params_t p =                                     \
        *(const choir__element_params_t*)plane->params;                   \
    float room[ROOM];                                                     \
    for (int64_t r = 0; r < plane->rows; r++) {                           \
      choir__##DTYPE##_t* y =                                             \
          (choir__##DTYPE##_t*)plane->data[0] + r * plane->row_stride[0]; \
      const choir__##DTYPE##_t* a =                                       \
          (const choir__##DTYPE##_t*)plane->data[1] +                     \
          r * plane->row_stride[1];                                       \
      const choir__##DTYPE##_t* b =                                       \
          (const choir__##DTYPE##_t*)plane->data[sources] +               \
          r * plane->row_stride[sources];                                 \
      for (int64_t at = 0; at < plane->columns; at += ROOM) {             \
        const int64_t left = plane->columns - at;                         \
        const int64_t count = left < ROOM ? left : ROOM;                  \
        CHOIR__INDEPENDENT                                                \
        for (int64_t i = 0; i < count; i++)                               \
          room[i] = name##_of(choir__##DTYPE##_load(a[at + i]),           \
                              choir__##DTYPE##_load(b[at + i]), &p);      \
        store_##DTYPE##_f32(y + at, room, 1, count);                      \
      }                                                                   \
    }                                                                     \
  }                                                                       \
  CHOIR__ISA_VARIANTS(name##_##DTYPE, (const choir__plane_t* plane), (plane))

#define CHOIR__FORMULA(OP, name, sources, formula, ...)                        \
  CHOIR__BODY float name##_of(float x, float b,                                \
                              const choir__element_params_t* p) {              \
    const float a = x;                                                         \
    (void)a, (void)b, (void)p;                                                 \
    return formula;                                                            \
  }                                                                            \
  CHOIR__BODY void name##_F32_body(const choir__plane_t* plane) {              \
    const choir__element_params_t p =                                          \
        *(const choir__element_params_t*)plane->params;                        \
    enum { LAST = sources };                                                   \
    const int64_t n = plane->columns;                                          \
    const int64_t ys = plane->column_stride[0];                                \
    const int64_t as = plane->column_stride[1];                                \
    const int64_t bs = plane->column_stride[LAST];                             \
    const bool is_dense = ys == 1 && as == 1 && bs == 1;                       \
    for (int64_t r = 0; r < plane->rows; r++) {                                \
      float* y = (float*)plane->data[0] + r * plane->row_stride[0];            \
      const float* a =                                                         \
          (const float*)plane->data[1] + r * plane->row_stride[1];             \
      const float* b =                                                         \
          (const float*)plane->data[LAST] + r * plane->row_stride[LAST];       \
      if (is_dense && !p.accumulate) {                                         \
        CHOIR__INDEPENDENT                                                     \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a[i], b[i], &p);      \
      } else if (is_dense) {                                                   \
        CHOIR__INDEPENDENT                                                     \
        for (int64_t i = 0; i < n; i++) y[i] += name##_of(a[i], b[i], &p);     \
      } else if (LAST > 1 && ys == 1 && as == 1 && bs == 0 && !p.accumulate) { \
        const float b0 = b[0];                                                 \
        CHOIR__INDEPENDENT                                                     \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a[i], b0, &p);        \
      } else if (LAST > 1 && ys == 1 && as == 0 && bs == 1 && !p.accumulate) { \
        const float a0 = a[0];                                                 \
        CHOIR__INDEPENDENT                                                     \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a0, b[i], &p);        \
      } else {                                                                 \
        for (int64_t i = 0; i < n; i++) {                                      \
          const float value = name##_of(a[i * as], b[i * bs], &p);             \
          y[i * ys] = p.accumulate ? y[i * ys] + value : value;                \
        }                                                                      \
      }                                                                        \
    }                                                                          \
  }                                                                            \
  CHOIR__ISA_VARIANTS(name##_F32, (const choir__plane_t* plane), (plane))      \
  DENSE_PLANE(F16, name, sources)                                              \
  DENSE_PLANE(BF16, name, sources)
#include "tensor/elementwise.def"

// ---- In f64: formulas, and functions of the C library ----

static double element_f64(const choir__plane_t* plane, int32_t operand,
                          int64_t row, int64_t column) {
  return ((const double*)
              plane->data[operand])[row * plane->row_stride[operand] +
                                    column * plane->column_stride[operand]];
}

#define CHOIR__FUNCTION(OP, name, sources, formula, ...)                  \
  static void name##_F64(const choir__plane_t* plane) {                   \
    const choir__element_params_t* p = plane->params;                     \
    for (int64_t r = 0; r < plane->rows; r++) {                           \
      double* y = (double*)plane->data[0] + r * plane->row_stride[0];     \
      for (int64_t i = 0; i < plane->columns; i++) {                      \
        const double x = element_f64(plane, 1, r, i), a = x;              \
        const double b = element_f64(plane, (sources) > 1 ? 2 : 1, r, i); \
        const double c = element_f64(plane, (sources) > 2 ? 3 : 1, r, i); \
        (void)a, (void)b, (void)c;                                        \
        const double value = formula;                                     \
        double* at = y + i * plane->column_stride[0];                     \
        *at = p->accumulate ? *at + value : value;                        \
      }                                                                   \
    }                                                                     \
  }
#define CHOIR__FORMULA CHOIR__FUNCTION
#include "tensor/elementwise.def"

choir__plane_fn_t choir__cpu_formula(choir__formula_t formula) {
  static const choir__plane_fn_t planes[] = {
#define CHOIR__FORMULA(OP, name, sources, formula, ...) name##_F32,
#include "tensor/elementwise.def"
  };
  return planes[formula];
}

// ---- Other dtypes, block by block ----

typedef void (*load_fn_t)(void* to, const void* from, int64_t step,
                          int64_t count);
typedef void (*store_fn_t)(void* to, const void* from, int64_t step,
                           int64_t count);

// By whether blocks are f64.
static const struct {
  load_fn_t load[2];
  store_fn_t store[2];
} moves[CHOIR_DTYPE_COUNT] = {
#define MOVES_ROW(DTYPE)                                             \
  [CHOIR_DTYPE_##DTYPE] = {{load_##DTYPE##_f32, load_##DTYPE##_f64}, \
                           {store_##DTYPE##_f32, store_##DTYPE##_f64}},
    CHOIR__FLOATS(MOVES_ROW)};

void choir__cpu_load_f32(choir_dtype_t dtype, float* to, const void* from,
                         int64_t step, int64_t count) {
  moves[dtype].load[0](to, from, step, count);
}

void choir__cpu_store_f32(choir_dtype_t dtype, void* to, const float* from,
                          int64_t step, int64_t count) {
  moves[dtype].store[0](to, from, step, count);
}

typedef struct blocks_s {
  const choir__element_params_t* params;
  choir__plane_fn_t fn;
  choir_dtype_t dtypes[CHOIR__NEST_OPERANDS];
  bool is_f64;
  int32_t operands;
} blocks_t;

static void blocks_plane(const choir__plane_t* plane) {
  enum { BLOCK = 512 };
  _Alignas(64) double room[CHOIR__NEST_OPERANDS][BLOCK];
  const blocks_t* blocks = plane->params;
  choir__plane_t block = {.rows = 1, .params = blocks->params};
  for (int64_t r = 0; r < plane->rows; r++) {
    for (int64_t i = 0; i < plane->columns; i += BLOCK) {
      const int64_t rest = plane->columns - i;
      block.columns = rest < BLOCK ? rest : BLOCK;
      char* data[CHOIR__NEST_OPERANDS] = {NULL};
      for (int32_t k = 0; k < blocks->operands; k++) {
        const choir_dtype_t dtype = blocks->dtypes[k];
        const int64_t bytes = (int64_t)choir_dtype_bytes(dtype);
        const int64_t step = plane->column_stride[k];
        const bool is_one = k > 0 && step == 0;
        data[k] =
            plane->data[k] + (r * plane->row_stride[k] + i * step) * bytes;
        block.data[k] = (char*)room[k];
        block.column_stride[k] = is_one ? 0 : 1;
        if (k > 0 || blocks->params->accumulate)
          moves[dtype].load[blocks->is_f64](room[k], data[k], step,
                                            is_one ? 1 : block.columns);
      }
      blocks->fn(&block);
      moves[blocks->dtypes[0]].store[blocks->is_f64](
          data[0], room[0], plane->column_stride[0], block.columns);
    }
  }
}

// ---- Records ----

// NULL: of functions there is F64 alone.
static choir__plane_fn_t plane_of(choir_op_t op, choir_dtype_t dtype) {
  static const struct {
    choir__plane_fn_t of[CHOIR_DTYPE_COUNT];
  } planes[CHOIR_OP_COUNT] = {
#define PLANE(DTYPE, name) [CHOIR_DTYPE_##DTYPE] = name##_##DTYPE
#define CHOIR__FORMULA(OP, name, sources, formula, ...)                     \
  [CHOIR_OP_##OP] = {{PLANE(F32, name), PLANE(F64, name), PLANE(F16, name), \
                      PLANE(BF16, name)}},
#define CHOIR__FUNCTION(OP, name, sources, formula, ...) \
  [CHOIR_OP_##OP] = {{PLANE(F64, name)}},
#include "tensor/elementwise.def"
  };
  return planes[op].of[dtype];
}

// Destination and sources.
static bool nest_of(const choir_record_t* record, const choir_view_t** views,
                    choir__nest_t* nest) {
  views[0] = choir_record_dst(record, 0);
  for (int32_t i = 0; i < record->src_count; i++)
    views[i + 1] = choir_record_src(record, i);
  return choir__nest_make(views, record->src_count + 1, nest);
}

static bool elementwise_supports(const choir_record_t* record) {
  const choir_view_t* views[CHOIR__NEST_OPERANDS];
  choir__nest_t nest;
  if (!nest_of(record, views, &nest)) return false;
  for (int32_t i = 0; i < nest.operand_count; ++i)
    if (!choir_dtype_is_float(views[i]->dtype)) return false;
  return true;
}

// Whether a loop of one dtype can do the nest: those of 16 bits want elements
// side by side, to be stored.
static bool is_within_reach(const choir__nest_t* nest,
                            const choir_dtype_t* dtypes, bool accumulate) {
  bool is_dense = !accumulate;
  for (int32_t i = 0; i < nest->operand_count; i++) {
    if (dtypes[i] != dtypes[0]) return false;
    is_dense = is_dense && nest->strides[i][nest->ndim - 1] == 1;
  }
  return choir_dtype_bytes(dtypes[0]) > 2 || is_dense;
}

static choir_status_t elementwise_run(const choir_record_t* record,
                                      choir_stream_t* stream) {
  const choir_op_t op = choir__record_op(record);
  const choir__element_params_t params = choir__element_params(record);
  const choir_view_t* views[CHOIR__NEST_OPERANDS];
  choir__nest_t nest;
  if (!nest_of(record, views, &nest))
    return CHOIR_ERROR(INTERNAL, "%s: operands do not broadcast",
                       record->kernel->name);
  const bool is_f64 = !plane_of(op, CHOIR_DTYPE_F32);
  blocks_t blocks = {
      .params = &params,
      .fn = plane_of(op, is_f64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32),
      .is_f64 = is_f64,
      .operands = nest.operand_count};
  void* data[CHOIR__NEST_OPERANDS];
  size_t sizes[CHOIR__NEST_OPERANDS];
  for (int32_t i = 0; i < nest.operand_count; i++) {
    data[i] = choir__view_data(views[i]);
    blocks.dtypes[i] = views[i]->dtype;
    sizes[i] = choir_dtype_bytes(views[i]->dtype);
  }
  const choir__plane_fn_t plane =
      is_within_reach(&nest, blocks.dtypes, params.accumulate)
          ? plane_of(op, blocks.dtypes[0])
          : NULL;
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream),
                  plane ? plane : blocks_plane,
                  plane ? (const void*)&params : &blocks);
  return NULL;
}

#define CHOIR__FORMULA(OP, name, sources, formula, ...)        \
  const choir_op_kernel_t choir__cpu_##name = CHOIR_OP_KERNEL( \
      CHOIR_OP_##OP, #name, "cpu", elementwise_run, elementwise_supports);
#define CHOIR__FUNCTION CHOIR__FORMULA
#include "tensor/elementwise.def"
