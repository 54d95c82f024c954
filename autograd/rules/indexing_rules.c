// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of ops that choose, repeat and place elements: what an element of
// the result gets goes to the one that it came from.

static choir_status_t zeros_like(choir_grad_t* grad, choir_tensor_t* tensor,
                                 choir_tensor_t** out_tensor) {
  choir_fill_attrs_t zero = {.value = 0};
  return choir_grad_temp(grad, CHOIR_OP_FILL, &tensor, 1, &zero, out_tensor);
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

choir_status_t choir__grad_gather(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_GATHER_GRAD, srcs, 3, grad->attrs);
}

choir_status_t choir__grad_gather_elements(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_GATHER_ELEMENTS_GRAD, srcs, 3,
                         grad->attrs);
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

choir_status_t choir__grad_pad(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_PAD_GRAD, grad->srcs[0], grad->dy,
                          grad->attrs);
}

choir_status_t choir__grad_tile(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_TILE_GRAD, grad->srcs[0], grad->dy,
                          grad->attrs);
}

choir_status_t choir__grad_repeat(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_REPEAT_GRAD, grad->srcs[0],
                          grad->dy, grad->attrs);
}
