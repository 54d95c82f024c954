// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of norms of rows, probabilities and losses.

choir_status_t choir__grad_layer_norm(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  const int32_t sources[] = {0, 1, 2};
  return choir_grad_emit_many(grad, sources, 3, CHOIR_OP_LAYER_NORM_GRAD, srcs,
                              3, grad->attrs);
}

choir_status_t choir__grad_rms_norm(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  const int32_t sources[] = {0, 1};
  return choir_grad_emit_many(grad, sources, 2, CHOIR_OP_RMS_NORM_GRAD, srcs, 3,
                              grad->attrs);
}

choir_status_t choir__grad_softmax(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_SOFTMAX_GRAD, grad->dsts[0],
                          grad->dy, NULL);
}

choir_status_t choir__grad_log_softmax(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_LOG_SOFTMAX_GRAD, grad->dsts[0],
                          grad->dy, NULL);
}

choir_status_t choir__grad_softmax_cross_entropy(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->dsts[1], grad->srcs[1], grad->dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD, srcs, 3,
                         NULL);
}

choir_status_t choir__grad_cross_entropy(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_CROSS_ENTROPY_GRAD, srcs, 3, NULL);
}

choir_status_t choir__grad_binary_cross_entropy(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  const int32_t sources[] = {0, 1};
  return choir_grad_emit_many(
      grad, sources, 2, CHOIR_OP_BINARY_CROSS_ENTROPY_GRAD, srcs, 3, NULL);
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
