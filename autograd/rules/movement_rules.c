// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of ops that move, choose and place elements: the same move
// backwards. What an element of the result gets goes to the one that it came
// from.

static choir_status_t zeros_like(choir_grad_t* grad, choir_tensor_t* tensor,
                                 choir_tensor_t** out_tensor) {
  choir_fill_attrs_t zero = {.value = 0};
  return choir_grad_temp(grad, CHOIR_OP_FILL, &tensor, 1, &zero, out_tensor);
}

choir_status_t choir__grad_copy(choir_grad_t* grad) {
  return choir_grad_pass(grad, 0, grad->dy);
}

static choir_status_t reshape_back(choir_grad_t* grad) {
  const choir_view_t* src = choir_tensor_view(grad->srcs[0]);
  choir_reshape_attrs_t attrs = {.ndim = src->ndim};
  for (int32_t k = 0; k < src->ndim; ++k) attrs.shape[k] = src->shape[k];
  return choir_grad_emit1(grad, 0, CHOIR_OP_RESHAPE, grad->dy, &attrs);
}

choir_status_t choir__grad_reshape(choir_grad_t* grad) {
  return reshape_back(grad);
}

choir_status_t choir__grad_flatten(choir_grad_t* grad) {
  return reshape_back(grad);
}

choir_status_t choir__grad_transpose(choir_grad_t* grad) {
  const choir_transpose_attrs_t* attrs = grad->attrs;
  const int32_t ndim = choir_tensor_ndim(grad->srcs[0]);
  choir_transpose_attrs_t inverse;
  for (int32_t k = 0; k < CHOIR_MAX_NDIM; ++k) inverse.axes[k] = -1;
  for (int32_t k = 0; k < ndim; ++k) {
    if (attrs->axes[k] < 0) continue;  // reversed is its own inverse
    inverse.axes[attrs->axes[k]] = k;
  }
  return choir_grad_emit1(grad, 0, CHOIR_OP_TRANSPOSE, grad->dy, &inverse);
}

choir_status_t choir__grad_broadcast_to(choir_grad_t* grad) {
  // A copy of dy is summed down to the source's shape.
  return choir_grad_emit1(grad, 0, CHOIR_OP_COPY, grad->dy, NULL);
}

choir_status_t choir__grad_slice(choir_grad_t* grad) {
  // Zeros with dy written into the slice.
  if (!choir_grad_wants(grad, 0)) return NULL;
  const choir_slice_attrs_t* attrs = grad->attrs;
  choir_tensor_t* whole = NULL;
  CHOIR_TRY(zeros_like(grad, grad->srcs[0], &whole));
  // As the op: a stop beyond the end is the end.
  const int64_t size = choir_tensor_shape(whole)[attrs->axis];
  choir_view_t window;
  CHOIR_TRY(choir_view_slice(
      choir_tensor_view(whole), (int32_t)attrs->axis, attrs->start,
      attrs->stop < size ? attrs->stop : size, attrs->step, &window));
  choir_tensor_t* part = NULL;
  CHOIR_TRY(choir_tensor_from_view(&window, &part));
  choir_status_t status =
      choir_op_run(choir_scope_stream(grad->scope), CHOIR_OP_COPY, &grad->dy, 1,
                   NULL, false, &part);
  choir_tensor_release(part);
  CHOIR_TRY(status);
  return choir_grad_pass(grad, 0, whole);
}

choir_status_t choir__grad_concat(choir_grad_t* grad) {
  const choir_concat_attrs_t* attrs = grad->attrs;
  int64_t start = 0;
  for (int32_t i = 0; i < grad->src_count; ++i) {
    const int64_t size = choir_tensor_shape(grad->srcs[i])[attrs->axis];
    choir_slice_attrs_t slice = {
        .axis = attrs->axis, .start = start, .stop = start + size, .step = 1};
    start += size;
    CHOIR_TRY(choir_grad_emit1(grad, i, CHOIR_OP_SLICE, grad->dy, &slice));
  }
  return NULL;
}

choir_status_t choir__grad_where(choir_grad_t* grad) {
  // A condition made of numbers has no slope.
  choir_fill_attrs_t zero = {.value = 0};
  CHOIR_TRY(choir_grad_emit1(grad, 0, CHOIR_OP_FILL, grad->srcs[0], &zero));
  for (int32_t i = 1; i <= 2; ++i) {
    if (!choir_grad_wants(grad, i)) continue;
    choir_tensor_t* zeros = NULL;
    CHOIR_TRY(zeros_like(grad, grad->srcs[i], &zeros));
    choir_tensor_t* srcs[] = {grad->srcs[0], i == 1 ? grad->dy : zeros,
                              i == 1 ? zeros : grad->dy};
    CHOIR_TRY(choir_grad_emit(grad, i, CHOIR_OP_WHERE, srcs, 3, NULL));
  }
  return NULL;
}

choir_status_t choir__grad_scatter_elements(choir_grad_t* grad) {
  if (choir_grad_wants(grad, 0)) {
    choir_tensor_t* zeros = NULL;
    CHOIR_TRY(zeros_like(grad, grad->srcs[2], &zeros));
    choir_tensor_t* srcs[] = {grad->dy, grad->srcs[1], zeros};
    CHOIR_TRY(choir_grad_emit(grad, 0, CHOIR_OP_SCATTER_ELEMENTS, srcs, 3,
                              grad->attrs));
  }
  return choir_grad_emit2(grad, 2, CHOIR_OP_SCATTER_ELEMENTS_GRAD, grad->dy,
                          grad->srcs[1], grad->attrs);
}
