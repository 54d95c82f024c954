// SPDX-License-Identifier: Apache-2.0
// Ops that make each element from the elements at its place. One function of
// an element gives one loop over planes, in all layouts and for every
// instruction set.
#include "tensor/kernels/cpu/cpu_elementwise.h"

#include <math.h>

#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/element_params.h"

// ---- One source ----

#define CHOIR__UNARY(OP, name, formula)                                    \
  CHOIR__BODY float name##_of(float x, const choir__element_params_t* p) { \
    (void)p;                                                               \
    return formula;                                                        \
  }                                                                        \
  CHOIR__BODY void name##_plane_body(const choir__plane_t* plane) {        \
    const choir__element_params_t p =                                      \
        *(const choir__element_params_t*)plane->params;                    \
    const int64_t n = plane->columns;                                      \
    const int64_t ys = plane->column_stride[0];                            \
    const int64_t xs = plane->column_stride[1];                            \
    for (int64_t r = 0; r < plane->rows; r++) {                            \
      float* y = (float*)plane->data[0] + r * plane->row_stride[0];        \
      const float* x =                                                     \
          (const float*)plane->data[1] + r * plane->row_stride[1];         \
      if (ys == 1 && xs == 1 && !p.accumulate) {                           \
        CHOIR__INDEPENDENT                                                 \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(x[i], &p);        \
      } else if (ys == 1 && xs == 1) {                                     \
        CHOIR__INDEPENDENT                                                 \
        for (int64_t i = 0; i < n; i++) y[i] += name##_of(x[i], &p);       \
      } else {                                                             \
        for (int64_t i = 0; i < n; i++) {                                  \
          const float value = name##_of(x[i * xs], &p);                    \
          y[i * ys] = p.accumulate ? y[i * ys] + value : value;            \
        }                                                                  \
      }                                                                    \
    }                                                                      \
  }                                                                        \
  CHOIR__ISA_VARIANTS(name##_plane, (const choir__plane_t* plane), (plane))

// ---- Two sources ----

#define CHOIR__BINARY(OP, name, formula)                               \
  CHOIR__BODY float name##_of(float a, float b) { return formula; }    \
  CHOIR__BODY void name##_plane_body(const choir__plane_t* plane) {    \
    const bool accumulate =                                            \
        ((const choir__element_params_t*)plane->params)->accumulate;   \
    const int64_t n = plane->columns;                                  \
    const int64_t ys = plane->column_stride[0];                        \
    const int64_t as = plane->column_stride[1];                        \
    const int64_t bs = plane->column_stride[2];                        \
    for (int64_t r = 0; r < plane->rows; r++) {                        \
      float* y = (float*)plane->data[0] + r * plane->row_stride[0];    \
      const float* a =                                                 \
          (const float*)plane->data[1] + r * plane->row_stride[1];     \
      const float* b =                                                 \
          (const float*)plane->data[2] + r * plane->row_stride[2];     \
      if (ys == 1 && as == 1 && bs == 1 && !accumulate) {              \
        CHOIR__INDEPENDENT                                             \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a[i], b[i]);  \
      } else if (ys == 1 && as == 1 && bs == 1) {                      \
        CHOIR__INDEPENDENT                                             \
        for (int64_t i = 0; i < n; i++) y[i] += name##_of(a[i], b[i]); \
      } else if (ys == 1 && as == 1 && bs == 0 && !accumulate) {       \
        const float b0 = b[0];                                         \
        CHOIR__INDEPENDENT                                             \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a[i], b0);    \
      } else if (ys == 1 && as == 0 && bs == 1 && !accumulate) {       \
        const float a0 = a[0];                                         \
        CHOIR__INDEPENDENT                                             \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a0, b[i]);    \
      } else {                                                         \
        for (int64_t i = 0; i < n; i++) {                              \
          const float value = name##_of(a[i * as], b[i * bs]);         \
          y[i * ys] = accumulate ? y[i * ys] + value : value;          \
        }                                                              \
      }                                                                \
    }                                                                  \
  }                                                                    \
  CHOIR__ISA_VARIANTS(name##_plane, (const choir__plane_t* plane), (plane))

#include "tensor/kernels/element_formulas.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY

choir__plane_fn_t choir__cpu_formula(choir__formula_t formula) {
  static const choir__plane_fn_t planes[] = {
#define CHOIR__UNARY(OP, name, formula) name##_plane,
#define CHOIR__BINARY(OP, name, formula) name##_plane,
#include "tensor/kernels/element_formulas.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY
  };
  return planes[formula];
}

static bool elementwise_supports(const choir_record_t* record) {
  if (!choir__all_f32(record) || record->dst_count != 1) return false;
  const choir_view_t* views[CHOIR__NEST_OPERANDS];
  views[0] = choir_record_dst(record, 0);
  for (int32_t i = 0; i < record->src_count; i++)
    views[i + 1] = choir_record_src(record, i);
  choir__nest_t nest;
  return choir__nest_make(views, record->src_count + 1, &nest);
}

static choir_status_t elementwise_run(const choir_record_t* record,
                                      choir_stream_t* stream,
                                      void (*plane)(const choir__plane_t*),
                                      const choir__element_params_t* params) {
  const choir_view_t* views[CHOIR__NEST_OPERANDS];
  void* data[CHOIR__NEST_OPERANDS];
  const size_t sizes[CHOIR__NEST_OPERANDS] = {sizeof(float), sizeof(float),
                                              sizeof(float), sizeof(float)};
  views[0] = choir_record_dst(record, 0);
  for (int32_t i = 0; i < record->src_count; i++)
    views[i + 1] = choir_record_src(record, i);
  const int32_t count = record->src_count + 1;
  choir__nest_t nest;
  if (!choir__nest_make(views, count, &nest))
    return CHOIR_ERROR(INTERNAL, "%s: operands do not broadcast",
                       record->kernel->name);
  for (int32_t i = 0; i < count; i++) data[i] = choir__view_data(views[i]);
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream), plane,
                  params);
  return NULL;
}

#define CHOIR__UNARY(OP, name, formula)                            \
  static choir_status_t name##_run(const choir_record_t* record,   \
                                   choir_stream_t* stream) {       \
    const choir__element_params_t params =                         \
        choir__element_params(CHOIR_OP_##OP, record);              \
    return elementwise_run(record, stream, name##_plane, &params); \
  }                                                                \
  const choir_op_kernel_t choir__cpu_##name = CHOIR_OP_KERNEL(     \
      CHOIR_OP_##OP, #name, "cpu", name##_run, elementwise_supports);
#define CHOIR__BINARY(OP, name, formula) CHOIR__UNARY(OP, name, formula)
#include "tensor/kernels/element_formulas.def"

// ---- Fill: a plane without sources ----

CHOIR__BODY void fill_plane_body(const choir__plane_t* plane) {
  const choir__element_params_t p =
      *(const choir__element_params_t*)plane->params;
  const int64_t n = plane->columns, ys = plane->column_stride[0];
  for (int64_t r = 0; r < plane->rows; r++) {
    float* y = (float*)plane->data[0] + r * plane->row_stride[0];
    if (ys == 1 && !p.accumulate) {
      for (int64_t i = 0; i < n; i++) y[i] = p.shift;
    } else {
      for (int64_t i = 0; i < n; i++)
        y[i * ys] = p.accumulate ? y[i * ys] + p.shift : p.shift;
    }
  }
}
CHOIR__ISA_VARIANTS(fill_plane, (const choir__plane_t* plane), (plane))

static bool fill_supports(const choir_record_t* record) {
  const choir_view_t* dst = choir_record_dst(record, 0);
  choir__nest_t nest;
  return dst->dtype == CHOIR_DTYPE_F32 && choir__nest_make(&dst, 1, &nest);
}

static choir_status_t fill_run(const choir_record_t* record,
                               choir_stream_t* stream) {
  const choir_fill_attrs_t* attrs = record->attrs;
  const choir_view_t* dst = choir_record_dst(record, 0);
  const choir__element_params_t params = {.shift = (float)attrs->value,
                                          .accumulate = record->accumulate};
  choir__nest_t nest;
  if (!choir__nest_make(&dst, 1, &nest))
    return CHOIR_ERROR(INTERNAL, "fill/cpu: destination repeats elements");
  void* data[] = {choir__view_data(dst)};
  const size_t sizes[] = {sizeof(float)};
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream), fill_plane,
                  &params);
  return NULL;
}
const choir_op_kernel_t choir__cpu_fill =
    CHOIR_OP_KERNEL(CHOIR_OP_FILL, "fill", "cpu", fill_run, fill_supports);
