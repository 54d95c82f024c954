// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of elementwise ops. With y = f(x): dx = f'(x) dy.

static choir_status_t scaled(choir_grad_t* grad, int32_t src,
                             choir_tensor_t* tensor, double factor) {
  choir_scale_attrs_t attrs = {.factor = factor, .shift = 0};
  return choir_grad_emit1(grad, src, CHOIR_OP_SCALE, tensor, &attrs);
}

choir_status_t choir__grad_neg(choir_grad_t* grad) {
  return choir_grad_emit1(grad, 0, CHOIR_OP_NEG, grad->dy, NULL);
}

choir_status_t choir__grad_abs(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_ABS_GRAD, grad->srcs[0], grad->dy,
                          NULL);
}

choir_status_t choir__grad_exp(choir_grad_t* grad) {  // y dy
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, grad->dsts[0], grad->dy, NULL);
}

choir_status_t choir__grad_log(choir_grad_t* grad) {  // dy / x
  return choir_grad_emit2(grad, 0, CHOIR_OP_DIV, grad->dy, grad->srcs[0], NULL);
}

choir_status_t choir__grad_sqrt(choir_grad_t* grad) {  // dy / 2y
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* half = NULL;
  choir_scale_attrs_t attrs = {.factor = 0.5, .shift = 0};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SCALE, &grad->dy, 1, &attrs, &half));
  return choir_grad_emit2(grad, 0, CHOIR_OP_DIV, half, grad->dsts[0], NULL);
}

choir_status_t choir__grad_square(choir_grad_t* grad) {  // 2x dy
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* twice = NULL;
  choir_scale_attrs_t attrs = {.factor = 2, .shift = 0};
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_SCALE, &grad->srcs[0], 1, &attrs, &twice));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, twice, grad->dy, NULL);
}

choir_status_t choir__grad_relu(choir_grad_t* grad) {
  if (grad->dy_is_masked) return choir_grad_pass(grad, 0, grad->dy);
  return choir_grad_emit2(grad, 0, CHOIR_OP_RELU_GRAD, grad->dsts[0], grad->dy,
                          NULL);
}

choir_status_t choir__grad_sigmoid(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_SIGMOID_GRAD, grad->dsts[0],
                          grad->dy, NULL);
}

choir_status_t choir__grad_tanh(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_TANH_GRAD, grad->dsts[0], grad->dy,
                          NULL);
}

choir_status_t choir__grad_gelu(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_GELU_GRAD, grad->srcs[0], grad->dy,
                          NULL);
}

choir_status_t choir__grad_scale(choir_grad_t* grad) {
  const choir_scale_attrs_t* attrs = grad->attrs;
  return scaled(grad, 0, grad->dy, attrs->factor);
}

choir_status_t choir__grad_add(choir_grad_t* grad) {
  CHOIR_TRY(choir_grad_pass(grad, 0, grad->dy));
  return choir_grad_pass(grad, 1, grad->dy);
}

choir_status_t choir__grad_sub(choir_grad_t* grad) {
  CHOIR_TRY(choir_grad_pass(grad, 0, grad->dy));
  return choir_grad_emit1(grad, 1, CHOIR_OP_NEG, grad->dy, NULL);
}

choir_status_t choir__grad_mul(choir_grad_t* grad) {
  CHOIR_TRY(
      choir_grad_emit2(grad, 0, CHOIR_OP_MUL, grad->dy, grad->srcs[1], NULL));
  return choir_grad_emit2(grad, 1, CHOIR_OP_MUL, grad->dy, grad->srcs[0], NULL);
}

choir_status_t choir__grad_div(choir_grad_t* grad) {
  // y = a / b: da = dy / b, db = -y dy / b
  CHOIR_TRY(
      choir_grad_emit2(grad, 0, CHOIR_OP_DIV, grad->dy, grad->srcs[1], NULL));
  if (!choir_grad_wants(grad, 1)) return NULL;
  choir_tensor_t* da = NULL;
  choir_tensor_t* negative = NULL;
  choir_tensor_t* quotient[] = {grad->dy, grad->srcs[1]};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_DIV, quotient, 2, NULL, &da));
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_NEG, &da, 1, NULL, &negative));
  return choir_grad_emit2(grad, 1, CHOIR_OP_MUL, negative, grad->dsts[0], NULL);
}

// The larger (smaller) operand gets dy; where both are equal, the first.
static choir_status_t select_grad(choir_grad_t* grad, choir_op_t second_wins) {
  choir_tensor_t* mask = NULL;
  choir_tensor_t* operands[] = {grad->srcs[1], grad->srcs[0]};
  CHOIR_TRY(choir_grad_temp(grad, second_wins, operands, 2, NULL, &mask));
  CHOIR_TRY(choir_grad_emit2(grad, 1, CHOIR_OP_MUL, mask, grad->dy, NULL));
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* rest = NULL;
  choir_scale_attrs_t one_minus = {.factor = -1, .shift = 1};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SCALE, &mask, 1, &one_minus, &rest));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, rest, grad->dy, NULL);
}

choir_status_t choir__grad_maximum(choir_grad_t* grad) {
  return select_grad(grad, CHOIR_OP_GREATER);
}

choir_status_t choir__grad_minimum(choir_grad_t* grad) {
  return select_grad(grad, CHOIR_OP_LESS);
}

choir_status_t choir__grad_dropout(choir_grad_t* grad) {
  // The mask depends on place only: dropping dy draws the same one.
  return choir_grad_emit1(grad, 0, CHOIR_OP_DROPOUT, grad->dy, grad->attrs);
}
