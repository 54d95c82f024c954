// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "autograd/grad_rule.h"

// Gradients of reductions: dy is spread over what was reduced.

// dy with the reduced dimension put back as 1, broadcast to the source.
static choir_status_t spread(choir_grad_t* grad, choir_tensor_t** out_tensor) {
  const choir_reduce_attrs_t* attrs = grad->attrs;
  const choir_view_t* src = choir_tensor_view(grad->srcs[0]);
  choir_reshape_attrs_t ones = {.ndim = src->ndim};
  choir_broadcast_to_attrs_t full = {.ndim = src->ndim};
  for (int32_t k = 0; k < src->ndim; ++k) {
    const bool reduced = attrs->axis < 0 || attrs->axis == k;
    ones.shape[k] = reduced ? 1 : src->shape[k];
    full.shape[k] = src->shape[k];
  }
  choir_tensor_t* kept = NULL;
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_RESHAPE, &grad->dy, 1, &ones, &kept));
  return choir_grad_temp(grad, CHOIR_OP_BROADCAST_TO, &kept, 1, &full,
                         out_tensor);
}

choir_status_t choir__grad_sum(choir_grad_t* grad) {
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* wide = NULL;
  CHOIR_TRY(spread(grad, &wide));
  return choir_grad_emit1(grad, 0, CHOIR_OP_COPY, wide, NULL);
}

choir_status_t choir__grad_mean(choir_grad_t* grad) {
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* wide = NULL;
  CHOIR_TRY(spread(grad, &wide));
  const int64_t outputs = choir_tensor_count(grad->dy);
  const int64_t inputs = choir_tensor_count(grad->srcs[0]);
  choir_scale_attrs_t attrs = {
      .factor = inputs ? (double)outputs / (double)inputs : 0, .shift = 0};
  return choir_grad_emit1(grad, 0, CHOIR_OP_SCALE, wide, &attrs);
}

choir_status_t choir__grad_mse_loss(choir_grad_t* grad) {
  // d/dx mean (x - t)^2 = 2 (x - t) / n
  const int64_t count = choir_tensor_count(grad->srcs[0]);
  choir_tensor_t* operands[] = {grad->srcs[0], grad->srcs[1]};
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SUB, operands, 2, NULL, &slope));
  choir_scale_attrs_t factor = {.factor = count ? 2.0 / (double)count : 0,
                                .shift = 0};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SCALE, &slope, 1, &factor, &slope));
  CHOIR_TRY(choir_grad_emit2(grad, 0, CHOIR_OP_MUL, slope, grad->dy, NULL));
  if (!choir_grad_wants(grad, 1)) return NULL;
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_NEG, &slope, 1, NULL, &slope));
  return choir_grad_emit2(grad, 1, CHOIR_OP_MUL, slope, grad->dy, NULL);
}
