// SPDX-License-Identifier: Apache-2.0
// Softmax, its logarithm, and a 1 at the largest. Before version 13 they took
// all axes from `axis` on as one.
#include "onnx/operators/onnx_reduce_internal.h"

typedef choir_var_t* (*rows_t)(choir__onnx_call_t* c, choir_var_t* x);

static choir_var_t* softmax_rows(choir__onnx_call_t* c, choir_var_t* x) {
  return DO(softmax, x);
}

static choir_var_t* log_softmax_rows(choir__onnx_call_t* c, choir_var_t* x) {
  return DO(log_softmax, x);
}

static choir_var_t* hardmax_rows(choir__onnx_call_t* c, choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  const int32_t last = view->ndim - 1;
  const choir_argmax_attrs_t along = {.axis = last, .keep_dims = false};
  const choir_one_hot_attrs_t attrs = {.depth = view->shape[last],
                                       .axis = -1,
                                       .on = 1,
                                       .off = 0,
                                       .dtype = view->dtype};
  return DO(one_hot, DO(argmax, x, &along), &attrs);
}

// By rows of two dimensions.
static void by_rows(choir__onnx_call_t* c, rows_t rows, int64_t axis) {
  const choir_view_t* view = VIEW(0);
  int64_t shape[2];
  if (!choir__onnx_product(c, view->shape, 0, (int32_t)axis, &shape[0]) ||
      !choir__onnx_product(c, view->shape, (int32_t)axis, view->ndim,
                           &shape[1]))
    return;
  choir_var_t* y = rows(c, choir__onnx_reshape(c, IN(0), 2, shape));
  OUT(0, choir__onnx_reshape(c, y, view->ndim, view->shape));
}

// By that axis, brought to the end.
static void by_axis(choir__onnx_call_t* c, rows_t rows, int64_t axis) {
  const int32_t last = VIEW(0)->ndim - 1;
  int64_t order[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i <= last; ++i) order[i] = i;
  order[axis] = last;
  order[last] = axis;
  if (axis == last)
    OUT(0, rows(c, IN(0)));
  else
    OUT(0, choir__onnx_transpose(
               c, rows(c, choir__onnx_transpose(c, IN(0), order)), order));
}

static void along(choir__onnx_call_t* c, rows_t rows) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  const bool is_old = c->version < 13;
  int64_t axis = choir__onnx_int(c, "axis", is_old ? 1 : -1);
  // Behind the last axis: each number is a row of its own.
  const bool is_end = is_old && axis == view->ndim;
  if (!is_end && !choir__onnx_axis(c, &axis, view->ndim)) return;
  if (choir_view_count(view) == 0)
    OUT(0, IN(0));
  else if (is_old)
    by_rows(c, rows, axis);
  else
    by_axis(c, rows, axis);
}

void choir__onnx_op_softmax(choir__onnx_call_t* c) { along(c, softmax_rows); }
void choir__onnx_op_log_softmax(choir__onnx_call_t* c) {
  along(c, log_softmax_rows);
}
void choir__onnx_op_hardmax(choir__onnx_call_t* c) { along(c, hardmax_rows); }
