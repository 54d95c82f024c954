// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// The gradient of a cast is cast back. In mixed precision, whose products stand
// between casts, it is also where the gradient of an f16 product is scaled and
// its sources' scaled back.

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
