// SPDX-License-Identifier: Apache-2.0
// Where along an axis the largest or smallest element is.
#include "onnx/operators/onnx_reduce_internal.h"
#include "onnx/operators/onnx_shapes_internal.h"

static void place_of(choir__onnx_call_t* c, bool is_min) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (!choir__onnx_axis(c, &axis, view->ndim)) return;
  const int64_t n = view->shape[axis];
  if (n == 0) {
    FAIL(INVALID_ARGUMENT,
         "dimension %lld has no elements; needs one for the place of the "
         "largest or smallest",
         (long long)axis);
    return;
  }
  const bool is_last = choir__onnx_int(c, "select_last_index", 0) != 0 &&
                       choir_view_count(view) > 0;
  const choir_argmax_attrs_t attrs = {
      .axis = axis, .keep_dims = choir__onnx_int(c, "keepdims", 1) != 0};
  choir_var_t* x = choir__onnx_ranked(c, IN(0), TYPE(0), is_min);
  if (is_last)
    x = choir__shapes_gather(c, x, choir__shapes_range(c, n - 1, -1, n), axis);
  choir_var_t* place = DO(argmax, x, &attrs);
  const int64_t last = n - 1;
  if (is_last)
    place = DO(sub, choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &last),
               place);
  OUT_AS(0, place, INT64);
}

void choir__onnx_op_arg_max(choir__onnx_call_t* c) { place_of(c, false); }
void choir__onnx_op_arg_min(choir__onnx_call_t* c) { place_of(c, true); }
