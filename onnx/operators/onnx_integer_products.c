// SPDX-License-Identifier: Apache-2.0
// Products of integers of 8 bits less their zero points: MatMulInteger,
// QLinearMatMul, ConvInteger, QLinearConv. Sums are made in F64, which holds
// them exactly.
#include "onnx/operators/onnx_conv_internal.h"
#include "onnx/operators/onnx_quantize_internal.h"
#include "onnx/operators/onnx_reduce_internal.h"

// Input i as F64 less its zero point, input `zero_at`, of which one number, or
// one for each place of `axis`, or more that broadcast, may be given.
static choir_var_t* centred(choir__onnx_call_t* c, int32_t i, int32_t zero_at,
                            int32_t axis) {
  const choir_view_t* x = VIEW(i);
  double low, high;
  if (!x) return choir_scope_fail(c->scope, NULL);
  if (!choir__onnx_quantized_range(TYPE(i), &low, &high))
    return FAIL(INVALID_ARGUMENT, "input %d is of type %s; needs integers", i,
                choir_onnx_type_name(TYPE(i)));
  choir_var_t* y = choir__onnx_cast(c, IN(i), CHOIR_DTYPE_F64);
  const choir_view_t* view = VIEW(zero_at);
  if (!view) return y;
  choir_var_t* zero = choir__onnx_cast(c, IN(zero_at), CHOIR_DTYPE_F64);
  const int64_t count = choir_view_count(view);
  bool fits = view->ndim <= x->ndim;
  if (count == 1) {
    zero = choir__onnx_reshape(c, zero, 0, NULL);
  } else if (view->ndim == 1) {
    int64_t shape[CHOIR_MAX_NDIM];
    fits = axis >= 0 && axis < x->ndim && x->shape[axis] == count;
    for (int32_t d = 0; d < x->ndim; ++d) shape[d] = d == axis ? count : 1;
    if (fits) zero = choir__onnx_reshape(c, zero, x->ndim, shape);
  } else {
    for (int32_t d = 0; fits && d < view->ndim; ++d) {
      const int64_t size = x->shape[x->ndim - view->ndim + d];
      fits = view->shape[d] == 1 || view->shape[d] == size;
    }
  }
  if (!fits)
    return FAIL(INVALID_ARGUMENT,
                "%lld zero points of %d dimensions do not fit input %d",
                (long long)count, view->ndim, i);
  return DO(sub, y, zero);
}

static int32_t last_axis(choir__onnx_call_t* c, int32_t i, int32_t back) {
  const choir_view_t* x = VIEW(i);
  return x ? x->ndim - back : -1;
}

// Whole sums as I32, which wraps around as sums of I32 do.
static choir_var_t* whole(choir__onnx_call_t* c, choir_var_t* y) {
  y = choir__onnx_cast(c, y, CHOIR_DTYPE_I64);
  return choir__onnx_cast(c, y, CHOIR_DTYPE_I32);
}

void choir__onnx_op_matmul_integer(choir__onnx_call_t* c) {
  choir_var_t* a = centred(c, 0, 2, last_axis(c, 0, 2));
  choir_var_t* b = centred(c, 1, 3, last_axis(c, 1, 1));
  OUT_AS(0, whole(c, choir__onnx_numpy_matmul(c, a, b)), INT32);
}

void choir__onnx_op_conv_integer(choir__onnx_call_t* c) {
  choir_var_t* x = centred(c, 0, 2, -1);
  choir_var_t* w = centred(c, 1, 3, 0);
  OUT_AS(0, whole(c, choir__onnx_convolve(c, x, w, NULL)), INT32);
}

// Scale i as F64 in a shape that broadcasts to a result of `ndim` dimensions,
// where more than one number lie along `axis`.
static choir_var_t* scale_of(choir__onnx_call_t* c, int32_t i, int32_t ndim,
                             int32_t axis) {
  const choir_view_t* view = VIEW(i);
  if (!view) return choir_scope_fail(c->scope, NULL);
  choir_var_t* scale = choir__onnx_cast(c, IN(i), CHOIR_DTYPE_F64);
  const int64_t count = choir_view_count(view);
  if (count == 1) return choir__onnx_reshape(c, scale, 0, NULL);
  if (view->ndim != 1) return scale;
  if (axis < 0)
    return FAIL(INVALID_ARGUMENT, "input %d has %lld numbers; needs one", i,
                (long long)count);
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t d = 0; d < ndim; ++d) shape[d] = d == axis ? count : 1;
  return choir__onnx_reshape(c, scale, ndim, shape);
}

// Sums times the scales a b / y, as integers of the type of zero point
// `zero_at`.
static void requantize(choir__onnx_call_t* c, choir_var_t* sums, choir_var_t* a,
                       choir_var_t* b, choir_var_t* y, int32_t zero_at) {
  const choir_view_t* zero_view = VIEW(zero_at);
  const int32_t type = zero_view ? TYPE(zero_at) : TYPE(0);
  choir_var_t* zero = NULL;
  if (zero_view) {
    zero = choir__onnx_cast(c, IN(zero_at), CHOIR_DTYPE_F64);
    if (choir_view_count(zero_view) == 1)
      zero = choir__onnx_reshape(c, zero, 0, NULL);
  }
  choir_var_t* factor = DO(div, DO(mul, a, b), y);
  choir__onnx_out_as(
      c, 0, choir__onnx_quantize(c, DO(mul, sums, factor), zero, type), type);
}

void choir__onnx_op_qlinear_matmul(choir__onnx_call_t* c) {
  choir_var_t* a = centred(c, 0, 2, last_axis(c, 0, 2));
  choir_var_t* b = centred(c, 3, 5, last_axis(c, 3, 1));
  choir_var_t* sums = choir__onnx_numpy_matmul(c, a, b);
  const choir_view_t* view = choir_var_view(sums);
  if (!view) return;
  const bool has_rows = view->ndim > 1;
  const int32_t rows = has_rows ? view->ndim - 2 : -1;
  requantize(c, sums, scale_of(c, 1, view->ndim, rows),
             scale_of(c, 4, view->ndim, view->ndim - 1),
             scale_of(c, 6, view->ndim, rows), 7);
}

void choir__onnx_op_qlinear_conv(choir__onnx_call_t* c) {
  choir_var_t* x = centred(c, 0, 2, -1);
  choir_var_t* w = centred(c, 3, 5, 0);
  choir_var_t* bias = NULL;
  if (HAS(8)) bias = choir__onnx_cast(c, IN(8), CHOIR_DTYPE_F64);
  choir_var_t* sums = choir__onnx_convolve(c, x, w, bias);
  const choir_view_t* view = choir_var_view(sums);
  if (!view) return;
  requantize(c, sums, scale_of(c, 1, view->ndim, -1),
             scale_of(c, 4, view->ndim, 1), scale_of(c, 6, view->ndim, -1), 7);
}
