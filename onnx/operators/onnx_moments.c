// SPDX-License-Identifier: Apache-2.0
// Elements divided by a norm or by their deviation.
#include "onnx/operators/onnx_reduce_internal.h"

void choir__onnx_op_lp_normalization(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  int64_t axis = choir__onnx_int(c, "axis", -1);
  const int64_t power = choir__onnx_int(c, "p", 2);
  if (!choir__onnx_axis(c, &axis, view->ndim)) return;
  if (power != 1 && power != 2) {
    FAIL(INVALID_ARGUMENT, "p is %lld; needs 1 or 2", (long long)power);
    return;
  }
  if (choir_view_count(view) == 0) {
    OUT(0, IN(0));
    return;
  }
  const choir_reduce_attrs_t along = {.axis = axis, .keep_dims = true};
  choir_var_t* x = choir__onnx_wide(c, IN(0));
  choir_var_t* sum = DO(sum, power == 1 ? DO(abs, x) : DO(square, x), &along);
  choir_var_t* norm = power == 1 ? sum : choir__onnx_root(c, sum);
  const choir_view_t* norms = choir_var_view(norm);
  if (!norms) return;
  // Where all elements are 0 they stay so.
  choir_var_t* zero = choir__onnx_scalar(c, norms->dtype, 0);
  choir_var_t* one = choir__onnx_scalar(c, norms->dtype, 1);
  norm = DO(where, DO(equal, norm, zero), one, norm);
  OUT(0, choir__onnx_cast(c, DO(div, x, norm), view->dtype));
}

void choir__onnx_op_mean_variance_normalization(choir__onnx_call_t* c) {
  static const int64_t usual[] = {0, 2, 3};
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  int64_t list[CHOIR_MAX_NDIM] = {0};
  int32_t count;
  const int64_t* given = choir__onnx_ints(c, "axes", &count);
  if (count > CHOIR_MAX_NDIM) {
    FAIL(INVALID_ARGUMENT, "%d axes; at most %d are possible", count,
         CHOIR_MAX_NDIM);
    return;
  }
  if (!choir__onnx_has_attr(c, "axes")) {
    given = usual;
    count = 3;
  }
  for (int32_t i = 0; i < count; ++i) list[i] = given[i];
  choir__onnx_axes_t axes;
  if (!choir__onnx_axes_set(c, list, count, view->ndim, &axes)) return;
  choir_var_t* x = choir__onnx_wide(c, IN(0));
  x = DO(sub, x, choir__onnx_fold(c, x, &axes, true, choir_var_mean));
  choir_var_t* variance =
      choir__onnx_fold(c, DO(square, x), &axes, true, choir_var_mean);
  choir_var_t* deviation =
      DO(scale, choir__onnx_root(c, variance),
         &(choir_scale_attrs_t){.factor = 1, .shift = 1e-9});
  OUT(0, choir__onnx_cast(c, DO(div, x, deviation), view->dtype));
}
