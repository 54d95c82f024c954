// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of ops that move elements: the same move backwards.

choir_status_t choir__grad_copy(choir_grad_t* grad) {
  return choir_grad_pass(grad, 0, grad->dy);
}

// Whether dy is f32 and is to be a factor, in f16, of the gradients of a
// product of casts from f32.
static bool feeds_narrow_product(const choir_grad_t* grad) {
  choir_op_t op;
  choir_grad_t product;
  if (choir_tensor_dtype(grad->srcs[0]) != CHOIR_DTYPE_F16 ||
      choir_tensor_dtype(grad->dy) != CHOIR_DTYPE_F32 ||
      choir_tensor_count(grad->dy) == 0 ||
      !choir_grad_only_producer(grad, 0, &op, &product) ||
      op == CHOIR_OP_COUNT || !choir_op_info(op).is_product)
    return false;
  for (int32_t i = 0; i < product.src_count; ++i) {
    choir_grad_t source;
    if (!choir_grad_wants(&product, i)) continue;
    if (!choir_grad_only_producer(&product, i, &op, &source) ||
        op != CHOIR_OP_CAST ||
        choir_tensor_dtype(source.srcs[0]) != CHOIR_DTYPE_F32)
      return false;
  }
  return true;
}

// The scale of dy that makes its largest element 1 or a little more. Sums of
// some ten thousand products with it stay below f16's largest number, and what
// f16 takes for 0 is below 2^-24 of that element.
static choir_status_t loss_scale(choir_grad_t* grad,
                                 choir_tensor_t** out_scale) {
  const choir_reduce_attrs_t all = {.axis = -1};
  choir_tensor_t* most = NULL;
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_ABS, &grad->dy, 1, NULL, &most));
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MAX, &most, 1, &all, &most));
  return choir_grad_temp(grad, CHOIR_OP_UNIT_SCALE, &most, 1, NULL, out_scale);
}

choir_status_t choir__grad_cast(choir_grad_t* grad) {
  choir_cast_attrs_t attrs = {.dtype = choir_tensor_dtype(grad->srcs[0])};
  if (grad->scale) {
    choir_tensor_t* srcs[] = {NULL, grad->scale};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_CAST, &grad->dy, 1, &attrs, srcs));
    return choir_grad_emit(grad, 0, CHOIR_OP_DIV, srcs, 2, NULL);
  }
  choir_tensor_t* dy = grad->dy;
  if (choir_grad_wants(grad, 0) && feeds_narrow_product(grad)) {
    // Each product's gradient has a scale of its own (as Zhao et al. 2019,
    // "Adaptive Loss Scaling for Mixed Precision Training", arXiv:1910.12385),
    // taken from the gradient itself: no step is lost to a guess.
    choir_tensor_t* srcs[] = {dy, NULL};
    CHOIR_TRY(loss_scale(grad, &srcs[1]));
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MUL, srcs, 2, NULL, &dy));
    choir_grad_set_scale(grad, 0, srcs[1]);
  }
  return choir_grad_emit1(grad, 0, CHOIR_OP_CAST, dy, &attrs);
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
  choir_fill_attrs_t zero = {.value = 0};
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_FILL, &grad->srcs[0], 1, &zero, &whole));
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
