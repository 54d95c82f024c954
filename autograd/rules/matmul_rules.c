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

// (..., columns) as (rows, columns).
static choir_status_t as_rows(choir_grad_t* grad, choir_tensor_t* tensor,
                              choir_tensor_t** out_rows) {
  const choir_view_t* view = choir_tensor_view(tensor);
  *out_rows = tensor;
  if (view->ndim == 2) return NULL;
  choir_reshape_attrs_t attrs = {.ndim = 2,
                                 .shape = {1, view->shape[view->ndim - 1]}};
  for (int32_t k = 0; k < view->ndim - 1; ++k) attrs.shape[0] *= view->shape[k];
  return choir_grad_temp(grad, CHOIR_OP_RESHAPE, &tensor, 1, &attrs, out_rows);
}

// dB of one B (k, n), or transposed (n, k), for all rows of A: the sum over
// them is a product too.
static choir_status_t emit_joined(choir_grad_t* grad, bool transposed) {
  if (!choir_grad_wants(grad, 1)) return NULL;
  choir_tensor_t* a = NULL;
  choir_tensor_t* dc = NULL;
  CHOIR_TRY(as_rows(grad, grad->srcs[0], &a));
  CHOIR_TRY(as_rows(grad, grad->dy, &dc));
  const choir_matmul_attrs_t attrs = {.transpose_a = true};
  static const int32_t b = 1;
  choir_tensor_t* srcs[] = {transposed ? dc : a, transposed ? a : dc};
  return choir_grad_emit_rows(grad, &b, 1, CHOIR_OP_MATMUL, srcs, 2, 1 | 2,
                              &attrs);
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
  if (!ta && choir_tensor_ndim(b) == 2) return emit_joined(grad, tb);
  choir_matmul_attrs_t right = {.transpose_a = !ta, .transpose_b = false};
  choir_matmul_attrs_t right_t = {.transpose_a = true, .transpose_b = ta};
  return tb ? emit_summed(grad, 1, dc, a, &right_t)
            : emit_summed(grad, 1, a, dc, &right);
}

choir_status_t choir__grad_linear(choir_grad_t* grad) {
  choir_tensor_t* dy = NULL;
  CHOIR_TRY(as_rows(grad, grad->dy, &dy));
  const choir_sum_attrs_t over_samples = {.axis = 0, .keep_dims = false};
  static const int32_t b = 2;
  CHOIR_TRY(choir_grad_emit_rows(grad, &b, 1, CHOIR_OP_SUM, &dy, 1, 1,
                                 &over_samples));
  CHOIR_TRY(emit_joined(grad, false));
  const choir_matmul_attrs_t dy_wt = {.transpose_b = true};
  return choir_grad_emit2(grad, 0, CHOIR_OP_MATMUL, grad->dy, grad->srcs[1],
                          &dy_wt);
}

// Where W has other uses, the loss is the last of them, and so the first here:
// its gradient is written where it belongs, and theirs are added.
choir_status_t choir__grad_linear_cross_entropy(choir_grad_t* grad) {
  static const int32_t x_w[] = {0, 2};
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->srcs[2],
                            grad->dsts[1], grad->dy};
  return choir_grad_emit_many(grad, x_w, 2, CHOIR_OP_LINEAR_CROSS_ENTROPY_GRAD,
                              srcs, 5, grad->attrs);
}
