// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of recurrent networks. The op recurrent_grad walks back through the
// steps; W and b take part in all of them, so their gradients are one product
// and one sum over all steps at the end.

static choir_status_t sliced(choir_grad_t* grad, choir_tensor_t* tensor,
                             int64_t axis, int64_t start, int64_t stop,
                             choir_tensor_t** out_part) {
  const choir_slice_attrs_t attrs = {
      .axis = axis, .start = start, .stop = stop, .step = 1};
  return choir_grad_temp(grad, CHOIR_OP_SLICE, &tensor, 1, &attrs, out_part);
}

// (T, N, columns) as (T N, columns).
static choir_status_t flattened(choir_grad_t* grad, choir_tensor_t* tensor,
                                choir_tensor_t** out_rows) {
  const int64_t* shape = choir_tensor_shape(tensor);
  const choir_reshape_attrs_t attrs = {
      .ndim = 2, .shape = {shape[0] * shape[1], shape[2]}};
  return choir_grad_temp(grad, CHOIR_OP_RESHAPE, &tensor, 1, &attrs, out_rows);
}

// gru: h W_n + b goes through r, so that its gradient is that of x_n times r.
static choir_status_t grad_gru(choir_grad_t* grad, choir_tensor_t* h,
                               choir_tensor_t* dx) {
  const int64_t hidden = choir_tensor_shape(grad->srcs[2])[0];
  choir_tensor_t *r, *dn, *part[2];
  CHOIR_TRY(sliced(grad, grad->dsts[1], 2, 0, hidden, &r));
  CHOIR_TRY(sliced(grad, dx, 2, 2 * hidden, 3 * hidden, &dn));
  choir_tensor_t* factors[] = {dn, r};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MUL, factors, 2, NULL, &dn));
  CHOIR_TRY(flattened(grad, dn, &dn));
  const choir_sum_attrs_t over_rows = {.axis = 0};
  CHOIR_TRY(choir_grad_emit1(grad, 4, CHOIR_OP_SUM, dn, &over_rows));
  if (!choir_grad_wants(grad, 2)) return NULL;
  const choir_matmul_attrs_t ht = {.transpose_a = true};
  choir_tensor_t* for_n[] = {h, dn};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MATMUL, for_n, 2, &ht, &part[1]));
  CHOIR_TRY(flattened(grad, dx, &dx));
  CHOIR_TRY(sliced(grad, dx, 1, 0, 2 * hidden, &dx));
  choir_tensor_t* for_rz[] = {h, dx};
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MATMUL, for_rz, 2, &ht, &part[0]));
  const choir_concat_attrs_t columns = {.axis = 1};
  return choir_grad_emit(grad, 2, CHOIR_OP_CONCAT, part, 2, &columns);
}

choir_status_t choir__grad_recurrent(choir_grad_t* grad) {
  const choir_recurrent_attrs_t* attrs = grad->attrs;
  choir_tensor_t* srcs[] = {grad->dsts[1], grad->srcs[1], grad->srcs[2],
                            grad->dsts[0], grad->dy};
  choir_tensor_t* made[CHOIR_OP_MAX_RESULTS];  // dx, dinitial
  CHOIR_TRY(
      choir_grad_temp_all(grad, CHOIR_OP_RECURRENT_GRAD, srcs, 5, attrs, made));
  CHOIR_TRY(choir_grad_pass(grad, 0, made[0]));
  CHOIR_TRY(choir_grad_pass(grad, 3, made[1]));
  const bool is_gru = attrs->cell == CHOIR_CELL_GRU;
  if (!choir_grad_wants(grad, 2) && !(is_gru && choir_grad_wants(grad, 4)))
    return NULL;
  // h before each step, and the gradient of what it gave to the sums.
  choir_tensor_t *h, *dsums;
  const int64_t steps = choir_tensor_shape(grad->srcs[0])[0];
  CHOIR_TRY(sliced(grad, grad->dsts[0], 0, attrs->reverse,
                   steps + attrs->reverse, &h));
  CHOIR_TRY(flattened(grad, h, &h));
  if (is_gru) return grad_gru(grad, h, made[0]);
  CHOIR_TRY(flattened(grad, made[0], &dsums));
  const choir_matmul_attrs_t ht = {.transpose_a = true};
  return choir_grad_emit2(grad, 2, CHOIR_OP_MATMUL, h, dsums, &ht);
}
