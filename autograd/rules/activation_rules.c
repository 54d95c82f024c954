// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "autograd/grad_rule.h"

// Gradients of the activations that have no fast kernel. With y = f(x):
// dx = f'(x) dy.

choir_status_t choir__grad_softplus(choir_grad_t* grad) {  // sigmoid(x) dy
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_SIGMOID, &grad->srcs[0], 1, NULL, &slope));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, slope, grad->dy, NULL);
}

choir_status_t choir__grad_softsign(choir_grad_t* grad) {  // dy / (1 + |x|)^2
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* size = NULL;
  choir_tensor_t* quotient = NULL;
  choir_scale_attrs_t plus_one = {.factor = 1, .shift = 1};
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_ABS, &grad->srcs[0], 1, NULL, &size));
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SCALE, &size, 1, &plus_one, &size));
  choir_tensor_t* operands[] = {grad->dy, size};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_DIV, operands, 2, NULL, &quotient));
  return choir_grad_emit2(grad, 0, CHOIR_OP_DIV, quotient, size, NULL);
}

choir_status_t choir__grad_elu(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_ELU_GRAD, grad->srcs[0], grad->dy,
                          grad->attrs);
}

choir_status_t choir__grad_selu(choir_grad_t* grad) {
  // gamma elu(x)
  if (!choir_grad_wants(grad, 0)) return NULL;
  const choir_selu_attrs_t* attrs = grad->attrs;
  choir_elu_grad_attrs_t elu = {.alpha = attrs->alpha};
  choir_scale_attrs_t gamma = {.factor = attrs->gamma, .shift = 0};
  choir_tensor_t* operands[] = {grad->srcs[0], grad->dy};
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_ELU_GRAD, operands, 2, &elu, &slope));
  return choir_grad_emit1(grad, 0, CHOIR_OP_SCALE, slope, &gamma);
}

choir_status_t choir__grad_leaky_relu(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_LEAKY_RELU_GRAD, grad->srcs[0],
                          grad->dy, grad->attrs);
}

choir_status_t choir__grad_hard_sigmoid(choir_grad_t* grad) {
  // clip(alpha x + gamma, 0, 1)
  if (!choir_grad_wants(grad, 0)) return NULL;
  const choir_hard_sigmoid_attrs_t* attrs = grad->attrs;
  choir_scale_attrs_t line = {.factor = attrs->alpha, .shift = attrs->gamma};
  choir_scale_attrs_t alpha = {.factor = attrs->alpha, .shift = 0};
  choir_clip_grad_attrs_t range = {.low = 0, .high = 1};
  choir_tensor_t* unclipped = NULL;
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SCALE, &grad->srcs[0], 1, &line,
                            &unclipped));
  choir_tensor_t* operands[] = {unclipped, grad->dy};
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_CLIP_GRAD, operands, 2, &range, &slope));
  return choir_grad_emit1(grad, 0, CHOIR_OP_SCALE, slope, &alpha);
}

choir_status_t choir__grad_clip(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_CLIP_GRAD, grad->srcs[0], grad->dy,
                          grad->attrs);
}

choir_status_t choir__grad_prelu(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  CHOIR_TRY(choir_grad_emit(grad, 0, CHOIR_OP_PRELU_GRAD, srcs, 3, NULL));
  if (!choir_grad_wants(grad, 1)) return NULL;
  // min(x, 0) dy
  choir_clip_attrs_t range = {.low = -INFINITY, .high = 0};
  choir_tensor_t* below = NULL;
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_CLIP, &grad->srcs[0], 1, &range, &below));
  return choir_grad_emit2(grad, 1, CHOIR_OP_MUL, below, grad->dy, NULL);
}
