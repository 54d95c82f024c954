// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// The gradient of a mask is an op of its own: few masks want one, and it is
// shared out among threads by the mask's elements, the other gradients by heads
// of k and v.
choir_status_t choir__grad_attention(choir_grad_t* grad) {
  static const int32_t q_k_v[] = {0, 1, 2};
  const bool has_mask = grad->src_count == 4;
  choir_tensor_t* srcs[7] = {grad->srcs[0], grad->srcs[1], grad->srcs[2],
                             grad->dsts[0], grad->dsts[1], grad->dy};
  if (has_mask) srcs[6] = grad->srcs[3];
  CHOIR_TRY(choir_grad_emit_many(grad, q_k_v, 3, CHOIR_OP_ATTENTION_GRAD, srcs,
                                 has_mask ? 7 : 6, grad->attrs));
  // One that only hides places has no slope.
  if (!has_mask || !choir_dtype_is_float(choir_tensor_dtype(srcs[6])))
    return NULL;
  return choir_grad_emit(grad, 3, CHOIR_OP_ATTENTION_MASK_GRAD, srcs, 7,
                         grad->attrs);
}
