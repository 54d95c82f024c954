// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of matrix products. With C = A B: dA = dC B^T, dB = A^T dC. An
// operand whose leading (batch) dimensions were broadcast gets the sum.

static choir_status_t emit_summed(choir_grad_t* grad, int32_t src,
                                  choir_tensor_t* a, choir_tensor_t* b,
                                  const choir_matmul_attrs_t* attrs) {
  if (!choir_grad_wants(grad, src)) return NULL;
  const choir_view_t* target = choir_tensor_view(grad->srcs[src]);
  const int32_t ndim = choir_tensor_ndim(grad->dy);
  bool broadcast = target->ndim < ndim;
  for (int32_t k = 0; !broadcast && k < ndim - 2; ++k)
    broadcast = target->shape[k] != choir_tensor_shape(grad->dy)[k];
  if (!broadcast)
    return choir_grad_emit2(grad, src, CHOIR_OP_MATMUL, a, b, attrs);
  choir_tensor_t* srcs[] = {a, b};
  choir_tensor_t* wide = NULL;
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MATMUL, srcs, 2, attrs, &wide));
  // A copy op with a wide source is summed down by the scope.
  return choir_grad_emit1(grad, src, CHOIR_OP_COPY, wide, NULL);
}

choir_status_t choir__grad_matmul(choir_grad_t* grad) {
  const choir_matmul_attrs_t* attrs = grad->attrs;
  const bool ta = attrs->transpose_a;
  const bool tb = attrs->transpose_b;
  choir_tensor_t* a = grad->srcs[0];
  choir_tensor_t* b = grad->srcs[1];
  choir_tensor_t* dc = grad->dy;
  // dA = dC op(B)^T, or its transpose when A was given transposed.
  choir_matmul_attrs_t left = {.transpose_a = false, .transpose_b = !tb};
  choir_matmul_attrs_t left_t = {.transpose_a = tb, .transpose_b = true};
  CHOIR_TRY(ta ? emit_summed(grad, 0, b, dc, &left_t)
               : emit_summed(grad, 0, dc, b, &left));
  choir_matmul_attrs_t right = {.transpose_a = !ta, .transpose_b = false};
  choir_matmul_attrs_t right_t = {.transpose_a = true, .transpose_b = ta};
  return tb ? emit_summed(grad, 1, dc, a, &right_t)
            : emit_summed(grad, 1, a, dc, &right);
}

choir_status_t choir__grad_linear(choir_grad_t* grad) {
  choir_tensor_t* x = grad->srcs[0];  // (n, in)
  choir_tensor_t* w = grad->srcs[1];  // (in, out)
  choir_sum_attrs_t over_samples = {.axis = 0, .keep_dims = false};
  CHOIR_TRY(choir_grad_emit1(grad, 2, CHOIR_OP_SUM, grad->dy, &over_samples));
  choir_matmul_attrs_t xt_dy = {.transpose_a = true, .transpose_b = false};
  CHOIR_TRY(choir_grad_emit2(grad, 1, CHOIR_OP_MATMUL, x, grad->dy, &xt_dy));
  choir_matmul_attrs_t dy_wt = {.transpose_a = false, .transpose_b = true};
  return choir_grad_emit2(grad, 0, CHOIR_OP_MATMUL, grad->dy, w, &dy_wt);
}
