// SPDX-License-Identifier: Apache-2.0
// Ops that make each element from the elements at its place. A formula gives a
// loop over planes in f32, in all layouts and for every instruction set, and
// one in f64. Elements of other dtypes are brought to f32 block by block,
// within the L1 cache, and rounded once on the way back; so are all for
// functions, to f64.
#include "tensor/kernels/cpu/cpu_elementwise.h"

#include <math.h>

#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/dtype_traits.h"
#include "tensor/kernels/element_params.h"

// ---- In f32 ----

#define CHOIR__FORMULA(OP, name, sources, formula, ...)                        \
  CHOIR__BODY float name##_of(float x, float b,                                \
                              const choir__element_params_t* p) {              \
    const float a = x;                                                         \
    (void)a, (void)b, (void)p;                                                 \
    return formula;                                                            \
  }                                                                            \
  CHOIR__BODY void name##_plane_body(const choir__plane_t* plane) {            \
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
  CHOIR__ISA_VARIANTS(name##_plane, (const choir__plane_t* plane), (plane))
#include "tensor/elementwise.def"

// ---- In f64: formulas, and functions of the C library ----

static double element_f64(const choir__plane_t* plane, int32_t operand,
                          int64_t row, int64_t column) {
  return ((const double*)
              plane->data[operand])[row * plane->row_stride[operand] +
                                    column * plane->column_stride[operand]];
}

#define CHOIR__FUNCTION(OP, name, sources, formula, ...)                  \
  static void name##_plane_f64(const choir__plane_t* plane) {             \
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
#define CHOIR__FORMULA(OP, name, sources, formula, ...) name##_plane,
#include "tensor/elementwise.def"
  };
  return planes[formula];
}

// ---- Other dtypes: blocks of elements, widened and narrowed again ----

// count elements, `step` apart in memory and side by side in a block.
typedef void (*load_fn_t)(void* to, const void* from, int64_t step,
                          int64_t count);
typedef void (*store_fn_t)(void* to, const void* from, int64_t step,
                           int64_t count);

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
  choir_dtype_t dtype;
  bool is_f64;
  int32_t operands;
} blocks_t;

static void blocks_plane(const choir__plane_t* plane) {
  enum { BLOCK = 512 };
  _Alignas(64) double room[CHOIR__NEST_OPERANDS][BLOCK];
  const blocks_t* blocks = plane->params;
  const int64_t bytes = (int64_t)choir_dtype_bytes(blocks->dtype);
  const load_fn_t load = moves[blocks->dtype].load[blocks->is_f64];
  choir__plane_t block = {.rows = 1, .params = blocks->params};
  for (int64_t r = 0; r < plane->rows; r++) {
    for (int64_t i = 0; i < plane->columns; i += BLOCK) {
      const int64_t rest = plane->columns - i;
      block.columns = rest < BLOCK ? rest : BLOCK;
      char* data[CHOIR__NEST_OPERANDS] = {NULL};
      for (int32_t k = 0; k < blocks->operands; k++) {
        const int64_t step = plane->column_stride[k];
        const bool is_one = k > 0 && step == 0;
        data[k] =
            plane->data[k] + (r * plane->row_stride[k] + i * step) * bytes;
        block.data[k] = (char*)room[k];
        block.column_stride[k] = is_one ? 0 : 1;
        if (k > 0 || blocks->params->accumulate)
          load(room[k], data[k], step, is_one ? 1 : block.columns);
      }
      blocks->fn(&block);
      moves[blocks->dtype].store[blocks->is_f64](
          data[0], room[0], plane->column_stride[0], block.columns);
    }
  }
}

// ---- Records ----

// `f32` is NULL of functions.
static const struct {
  choir__plane_fn_t f32;
  choir__plane_fn_t f64;
} planes_of[CHOIR_OP_COUNT] = {
#define CHOIR__FORMULA(OP, name, sources, formula, ...) \
  [CHOIR_OP_##OP] = {name##_plane, name##_plane_f64},
#define CHOIR__FUNCTION(OP, name, sources, formula, ...) \
  [CHOIR_OP_##OP] = {NULL, name##_plane_f64},
#include "tensor/elementwise.def"
};

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
  const choir_dtype_t dtype = choir_record_dst(record, 0)->dtype;
  return choir_dtype_is_float(dtype) && nest_of(record, views, &nest);
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
  blocks_t blocks = {.params = &params,
                     .dtype = views[0]->dtype,
                     .is_f64 = !planes_of[op].f32,
                     .operands = nest.operand_count};
  blocks.fn = blocks.is_f64 ? planes_of[op].f64 : planes_of[op].f32;
  void* data[CHOIR__NEST_OPERANDS];
  size_t sizes[CHOIR__NEST_OPERANDS];
  for (int32_t i = 0; i < nest.operand_count; i++) {
    data[i] = choir__view_data(views[i]);
    sizes[i] = choir_dtype_bytes(blocks.dtype);
  }
  const bool is_f64 = blocks.dtype == CHOIR_DTYPE_F64;
  const bool has_loop =
      is_f64 || (blocks.dtype == CHOIR_DTYPE_F32 && !blocks.is_f64);
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream),
                  is_f64     ? planes_of[op].f64
                  : has_loop ? blocks.fn
                             : blocks_plane,
                  has_loop ? (const void*)&params : &blocks);
  return NULL;
}

#define CHOIR__FORMULA(OP, name, sources, formula, ...)        \
  const choir_op_kernel_t choir__cpu_##name = CHOIR_OP_KERNEL( \
      CHOIR_OP_##OP, #name, "cpu", elementwise_run, elementwise_supports);
#define CHOIR__FUNCTION CHOIR__FORMULA
#include "tensor/elementwise.def"
