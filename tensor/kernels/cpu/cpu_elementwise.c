// SPDX-License-Identifier: Apache-2.0
// Ops that make each element from the elements at its place. One function of
// an element gives one loop over planes, in all layouts and for every
// instruction set.
#include <math.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_math.h"

typedef struct params_s {
  float factor;
  float shift;
  bool accumulate;
} params_t;

// ---- One source ----

#define UNARY(name, expression)                                      \
  CHOIR__BODY float name##_of(float x, const params_t* p) {          \
    (void)p;                                                         \
    return expression;                                               \
  }                                                                  \
  CHOIR__BODY void name##_plane_body(const choir__plane_t* plane) {  \
    const params_t p = *(const params_t*)plane->params;              \
    const int64_t n = plane->columns;                                \
    const int64_t ys = plane->column_stride[0];                      \
    const int64_t xs = plane->column_stride[1];                      \
    for (int64_t r = 0; r < plane->rows; r++) {                      \
      float* y = (float*)plane->data[0] + r * plane->row_stride[0];  \
      const float* x =                                               \
          (const float*)plane->data[1] + r * plane->row_stride[1];   \
      if (ys == 1 && xs == 1 && !p.accumulate) {                     \
        CHOIR__INDEPENDENT                                           \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(x[i], &p);  \
      } else if (ys == 1 && xs == 1) {                               \
        CHOIR__INDEPENDENT                                           \
        for (int64_t i = 0; i < n; i++) y[i] += name##_of(x[i], &p); \
      } else {                                                       \
        for (int64_t i = 0; i < n; i++) {                            \
          const float value = name##_of(x[i * xs], &p);              \
          y[i * ys] = p.accumulate ? y[i * ys] + value : value;      \
        }                                                            \
      }                                                              \
    }                                                                \
  }                                                                  \
  CHOIR__ISA_VARIANTS(name##_plane, (const choir__plane_t* plane), (plane))

// ---- Two sources ----

#define BINARY(name, expression)                                          \
  CHOIR__BODY float name##_of(float a, float b) { return expression; }    \
  CHOIR__BODY void name##_plane_body(const choir__plane_t* plane) {       \
    const bool accumulate = ((const params_t*)plane->params)->accumulate; \
    const int64_t n = plane->columns;                                     \
    const int64_t ys = plane->column_stride[0];                           \
    const int64_t as = plane->column_stride[1];                           \
    const int64_t bs = plane->column_stride[2];                           \
    for (int64_t r = 0; r < plane->rows; r++) {                           \
      float* y = (float*)plane->data[0] + r * plane->row_stride[0];       \
      const float* a =                                                    \
          (const float*)plane->data[1] + r * plane->row_stride[1];        \
      const float* b =                                                    \
          (const float*)plane->data[2] + r * plane->row_stride[2];        \
      if (ys == 1 && as == 1 && bs == 1 && !accumulate) {                 \
        CHOIR__INDEPENDENT                                                \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a[i], b[i]);     \
      } else if (ys == 1 && as == 1 && bs == 1) {                         \
        CHOIR__INDEPENDENT                                                \
        for (int64_t i = 0; i < n; i++) y[i] += name##_of(a[i], b[i]);    \
      } else if (ys == 1 && as == 1 && bs == 0 && !accumulate) {          \
        const float b0 = b[0];                                            \
        CHOIR__INDEPENDENT                                                \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a[i], b0);       \
      } else if (ys == 1 && as == 0 && bs == 1 && !accumulate) {          \
        const float a0 = a[0];                                            \
        CHOIR__INDEPENDENT                                                \
        for (int64_t i = 0; i < n; i++) y[i] = name##_of(a0, b[i]);       \
      } else {                                                            \
        for (int64_t i = 0; i < n; i++) {                                 \
          const float value = name##_of(a[i * as], b[i * bs]);            \
          y[i * ys] = accumulate ? y[i * ys] + value : value;             \
        }                                                                 \
      }                                                                   \
    }                                                                     \
  }                                                                       \
  CHOIR__ISA_VARIANTS(name##_plane, (const choir__plane_t* plane), (plane))

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
                                      const params_t* params) {
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

#define KERNEL(OP, name)                                           \
  static choir_status_t name##_run(const choir_record_t* record,   \
                                   choir_stream_t* stream) {       \
    const params_t params = {.accumulate = record->accumulate};    \
    return elementwise_run(record, stream, name##_plane, &params); \
  }                                                                \
  const choir_op_kernel_t choir__cpu_##name = {                    \
      {#name "/cpu", name##_run, choir__cpu_cost, NULL, NULL},     \
      OP,                                                          \
      elementwise_supports};

UNARY(neg, -x)
UNARY(abs, __builtin_fabsf(x))
UNARY(exp, choir__math_exp(x))
UNARY(log, choir__math_log(x))
UNARY(sqrt, __builtin_sqrtf(x))
UNARY(square, x* x)
// Written so that a NaN stays one.
UNARY(relu, x < 0.0f ? 0.0f : x)
UNARY(sigmoid, choir__math_sigmoid(x))
UNARY(tanh, choir__math_tanh(x))
UNARY(scale, p->factor* x + p->shift)
KERNEL(CHOIR_OP_NEG, neg)
KERNEL(CHOIR_OP_ABS, abs)
KERNEL(CHOIR_OP_EXP, exp)
KERNEL(CHOIR_OP_LOG, log)
KERNEL(CHOIR_OP_SQRT, sqrt)
KERNEL(CHOIR_OP_SQUARE, square)
KERNEL(CHOIR_OP_RELU, relu)
KERNEL(CHOIR_OP_SIGMOID, sigmoid)
KERNEL(CHOIR_OP_TANH, tanh)

static choir_status_t scale_run(const choir_record_t* record,
                                choir_stream_t* stream) {
  const choir_scale_attrs_t* attrs = record->attrs;
  const params_t params = {.factor = (float)attrs->factor,
                           .shift = (float)attrs->shift,
                           .accumulate = record->accumulate};
  return elementwise_run(record, stream, scale_plane, &params);
}
const choir_op_kernel_t choir__cpu_scale = {
    {"scale/cpu", scale_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_SCALE,
    elementwise_supports};

BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a* b)
BINARY(div, a / b)
// A NaN on either side is the result.
BINARY(maximum, a > b || a != a ? a : b)
BINARY(minimum, a < b || a != a ? a : b)
BINARY(less, a < b ? 1.0f : 0.0f)
BINARY(greater, a > b ? 1.0f : 0.0f)
BINARY(equal, a == b ? 1.0f : 0.0f)
BINARY(abs_grad, a > 0.0f ? b : (a < 0.0f ? -b : 0.0f))  // x, dy
BINARY(relu_grad, a > 0.0f ? b : 0.0f)                   // y, dy
BINARY(sigmoid_grad, b* a*(1.0f - a))                    // y, dy
BINARY(tanh_grad, b*(1.0f - a * a))                      // y, dy
KERNEL(CHOIR_OP_ADD, add)
KERNEL(CHOIR_OP_SUB, sub)
KERNEL(CHOIR_OP_MUL, mul)
KERNEL(CHOIR_OP_DIV, div)
KERNEL(CHOIR_OP_MAXIMUM, maximum)
KERNEL(CHOIR_OP_MINIMUM, minimum)
KERNEL(CHOIR_OP_LESS, less)
KERNEL(CHOIR_OP_GREATER, greater)
KERNEL(CHOIR_OP_EQUAL, equal)
KERNEL(CHOIR_OP_ABS_GRAD, abs_grad)
KERNEL(CHOIR_OP_RELU_GRAD, relu_grad)
KERNEL(CHOIR_OP_SIGMOID_GRAD, sigmoid_grad)
KERNEL(CHOIR_OP_TANH_GRAD, tanh_grad)

// 1 + erf(x / sqrt 2) is erfc(-x / sqrt 2), which does not cancel.
#define HALF_SQRT2 0.70710678118654752440f
#define INV_SQRT_2PI 0.39894228040143267794f
UNARY(gelu, 0.5f * x * choir__math_erfc(-x * HALF_SQRT2))
BINARY(gelu_grad,
       b*(0.5f * choir__math_erfc(-a * HALF_SQRT2) +
          a * INV_SQRT_2PI * choir__math_exp(-0.5f * a * a)))  // x, dy
KERNEL(CHOIR_OP_GELU, gelu)
KERNEL(CHOIR_OP_GELU_GRAD, gelu_grad)

// ---- Fill: a plane without sources ----

CHOIR__BODY void fill_plane_body(const choir__plane_t* plane) {
  const params_t p = *(const params_t*)plane->params;
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
  const params_t params = {.shift = (float)attrs->value,
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
const choir_op_kernel_t choir__cpu_fill = {
    {"fill/cpu", fill_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_FILL,
    fill_supports};
