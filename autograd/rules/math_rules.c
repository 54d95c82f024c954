// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of the functions of the C library and their like. With y = f(x):
// dx = f'(x) dy.

static choir_status_t temp1(choir_grad_t* grad, choir_op_t op,
                            choir_tensor_t* tensor,
                            choir_tensor_t** out_tensor) {
  return choir_grad_temp(grad, op, &tensor, 1, NULL, out_tensor);
}

static choir_status_t temp2(choir_grad_t* grad, choir_op_t op,
                            choir_tensor_t* a, choir_tensor_t* b,
                            choir_tensor_t** out_tensor) {
  choir_tensor_t* operands[] = {a, b};
  return choir_grad_temp(grad, op, operands, 2, NULL, out_tensor);
}

// factor * tensor + shift
static choir_status_t line(choir_grad_t* grad, choir_tensor_t* tensor,
                           double factor, double shift,
                           choir_tensor_t** out_tensor) {
  choir_scale_attrs_t attrs = {.factor = factor, .shift = shift};
  return choir_grad_temp(grad, CHOIR_OP_SCALE, &tensor, 1, &attrs, out_tensor);
}

// (1 - x) (1 + x), which keeps its digits near x = 1.
static choir_status_t one_minus_square(choir_grad_t* grad,
                                       choir_tensor_t** out_tensor) {
  choir_tensor_t* minus = NULL;
  choir_tensor_t* plus = NULL;
  CHOIR_TRY(line(grad, grad->srcs[0], -1, 1, &minus));
  CHOIR_TRY(line(grad, grad->srcs[0], 1, 1, &plus));
  return temp2(grad, CHOIR_OP_MUL, minus, plus, out_tensor);
}

// ---- Stairs: no slope but where they jump, and none is said there ----

static choir_status_t flat(choir_grad_t* grad) {
  choir_fill_attrs_t zero = {.value = 0};
  return choir_grad_emit1(grad, 0, CHOIR_OP_FILL, grad->srcs[0], &zero);
}

choir_status_t choir__grad_ceil(choir_grad_t* grad) { return flat(grad); }
choir_status_t choir__grad_floor(choir_grad_t* grad) { return flat(grad); }
choir_status_t choir__grad_round(choir_grad_t* grad) { return flat(grad); }
choir_status_t choir__grad_round_even(choir_grad_t* grad) { return flat(grad); }
choir_status_t choir__grad_sign(choir_grad_t* grad) { return flat(grad); }

// ---- Powers ----

choir_status_t choir__grad_reciprocal(choir_grad_t* grad) {  // -y y dy
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(temp1(grad, CHOIR_OP_NEG, grad->dy, &slope));
  CHOIR_TRY(temp2(grad, CHOIR_OP_MUL, slope, grad->dsts[0], &slope));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, slope, grad->dsts[0], NULL);
}

choir_status_t choir__grad_pow(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  CHOIR_TRY(choir_grad_emit(grad, 0, CHOIR_OP_POW_GRAD_BASE, srcs, 3, NULL));
  return choir_grad_emit(grad, 1, CHOIR_OP_POW_GRAD_EXPONENT, srcs, 3, NULL);
}

// ---- Circular functions ----

// op(tensor) dy
static choir_status_t times(choir_grad_t* grad, choir_op_t op,
                            choir_tensor_t* tensor) {
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(temp1(grad, op, tensor, &slope));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, slope, grad->dy, NULL);
}

// dy / op(tensor)
static choir_status_t by(choir_grad_t* grad, choir_op_t op,
                         choir_tensor_t* tensor) {
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* divisor = NULL;
  CHOIR_TRY(temp1(grad, op, tensor, &divisor));
  return choir_grad_emit2(grad, 0, CHOIR_OP_DIV, grad->dy, divisor, NULL);
}

choir_status_t choir__grad_sin(choir_grad_t* grad) {
  return times(grad, CHOIR_OP_COS, grad->srcs[0]);
}

choir_status_t choir__grad_cos(choir_grad_t* grad) {
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(temp1(grad, CHOIR_OP_SIN, grad->srcs[0], &slope));
  CHOIR_TRY(temp1(grad, CHOIR_OP_NEG, slope, &slope));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, slope, grad->dy, NULL);
}

choir_status_t choir__grad_tan(choir_grad_t* grad) {  // (1 + y^2) dy
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(temp1(grad, CHOIR_OP_SQUARE, grad->dsts[0], &slope));
  CHOIR_TRY(line(grad, slope, 1, 1, &slope));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, slope, grad->dy, NULL);
}

choir_status_t choir__grad_asin(choir_grad_t* grad) {  // dy / sqrt(1 - x^2)
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* square = NULL;
  CHOIR_TRY(one_minus_square(grad, &square));
  return by(grad, CHOIR_OP_SQRT, square);
}

choir_status_t choir__grad_acos(choir_grad_t* grad) {  // -dy / sqrt(1 - x^2)
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* root = NULL;
  CHOIR_TRY(one_minus_square(grad, &root));
  CHOIR_TRY(temp1(grad, CHOIR_OP_SQRT, root, &root));
  return by(grad, CHOIR_OP_NEG, root);
}

choir_status_t choir__grad_atan(choir_grad_t* grad) {  // dy / (1 + x^2)
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* divisor = NULL;
  CHOIR_TRY(temp1(grad, CHOIR_OP_SQUARE, grad->srcs[0], &divisor));
  CHOIR_TRY(line(grad, divisor, 1, 1, &divisor));
  return choir_grad_emit2(grad, 0, CHOIR_OP_DIV, grad->dy, divisor, NULL);
}

// ---- Hyperbolic functions ----

choir_status_t choir__grad_sinh(choir_grad_t* grad) {
  return times(grad, CHOIR_OP_COSH, grad->srcs[0]);
}

choir_status_t choir__grad_cosh(choir_grad_t* grad) {
  return times(grad, CHOIR_OP_SINH, grad->srcs[0]);
}

// By y, as x^2 would be too large for f16 from 256 on.
choir_status_t choir__grad_asinh(choir_grad_t* grad) {  // dy / sqrt(x^2 + 1)
  return by(grad, CHOIR_OP_COSH, grad->dsts[0]);
}

choir_status_t choir__grad_acosh(choir_grad_t* grad) {  // dy / sqrt(x^2 - 1)
  return by(grad, CHOIR_OP_SINH, grad->dsts[0]);
}

choir_status_t choir__grad_atanh(choir_grad_t* grad) {  // dy / (1 - x^2)
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* divisor = NULL;
  CHOIR_TRY(one_minus_square(grad, &divisor));
  return choir_grad_emit2(grad, 0, CHOIR_OP_DIV, grad->dy, divisor, NULL);
}

choir_status_t choir__grad_erf(choir_grad_t* grad) {  // 2/sqrt(pi) e^-x^2 dy
  if (!choir_grad_wants(grad, 0)) return NULL;
  choir_tensor_t* slope = NULL;
  CHOIR_TRY(temp1(grad, CHOIR_OP_SQUARE, grad->srcs[0], &slope));
  CHOIR_TRY(temp1(grad, CHOIR_OP_NEG, slope, &slope));
  CHOIR_TRY(temp1(grad, CHOIR_OP_EXP, slope, &slope));
  CHOIR_TRY(line(grad, slope, 1.12837916709551257390, 0, &slope));
  return choir_grad_emit2(grad, 0, CHOIR_OP_MUL, slope, grad->dy, NULL);
}
