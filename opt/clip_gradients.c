// SPDX-License-Identifier: Apache-2.0
// Clipping of gradients, made of ops: each is a record, so that graphs and GPUs
// run it like any other work, and the host waits for nothing.
#include "opt/optimizer_internal.h"
#include "tensor/ops.h"

static const choir_field_t fields[] = {
    CHOIR_CONFIG_TABLE(choir_gradient_clip_t, CHOIR_GRADIENT_CLIP_FIELDS)};
const choir_struct_def_t choir_gradient_clip_def =
    CHOIR_STRUCT_DEF("clip", choir_gradient_clip_t, fields,
                     "limits of the gradients before an update");

static choir_status_t run(choir_stream_t* stream, choir_op_t op,
                          choir_tensor_t* a, choir_tensor_t* b,
                          choir_tensor_t** dst) {
  choir_tensor_t* srcs[] = {a, b};
  return choir_op_run(stream, op, srcs, b ? 2 : 1, NULL, false, dst);
}

// A scalar of a gradient's dtype.
static choir_status_t make_constant(choir_stream_t* stream,
                                    const choir_tensor_t* like, double value,
                                    choir_tensor_t** out_tensor) {
  const choir_fill_attrs_t attrs = {.value = value};
  CHOIR_TRY(choir_tensor_create(choir_tensor_device(like),
                                choir_tensor_dtype(like), 0, NULL, out_tensor));
  return choir_op_run(stream, CHOIR_OP_FILL, out_tensor, 1, &attrs, false,
                      out_tensor);
}

// ---- By value: g = min(max(g, -limit), limit) ----

static choir_status_t clip_one(choir_stream_t* stream, choir_tensor_t* grad,
                               choir_tensor_t* low, choir_tensor_t* high) {
  CHOIR_TRY(run(stream, CHOIR_OP_MAXIMUM, grad, low, &grad));
  return run(stream, CHOIR_OP_MINIMUM, grad, high, &grad);
}

static choir_status_t clip_values(choir_stream_t* stream,
                                  const choir_param_set_t* params,
                                  double limit) {
  choir_tensor_t* low = NULL;
  choir_tensor_t* high = NULL;
  choir_status_t status = NULL;
  for (size_t i = 0; i < params->count && !status; ++i) {
    choir_tensor_t* grad = params->params[i]->grad;
    if (!params->params[i]->trainable) continue;
    if (!low) status = make_constant(stream, grad, -limit, &low);
    if (!status && !high) status = make_constant(stream, grad, limit, &high);
    if (!status) status = clip_one(stream, grad, low, high);
  }
  choir_tensor_release(low);
  choir_tensor_release(high);
  return status;
}

// ---- By norm: g *= limit / max(norm, limit), which is 1 up to the limit ----

// *total += the sum of the squares of one gradient; makes it at first.
static choir_status_t add_squares(choir_stream_t* stream, choir_tensor_t* grad,
                                  choir_tensor_t** total) {
  const choir_reduce_attrs_t all = {.axis = -1};
  choir_tensor_t* squares = NULL;
  choir_status_t status = run(stream, CHOIR_OP_SQUARE, grad, NULL, &squares);
  if (!status)
    status = choir_op_run(stream, CHOIR_OP_SUM, &squares, 1, &all,
                          *total != NULL, total);
  choir_tensor_release(squares);
  return status;
}

// *factor, from the sum of all squares.
static choir_status_t make_factor(choir_stream_t* stream, choir_tensor_t* total,
                                  double limit, choir_tensor_t** factor) {
  choir_tensor_t* bound = NULL;
  choir_status_t status = make_constant(stream, total, limit, &bound);
  if (!status) status = run(stream, CHOIR_OP_SQRT, total, NULL, &total);
  if (!status) status = run(stream, CHOIR_OP_MAXIMUM, total, bound, &total);
  if (!status) status = run(stream, CHOIR_OP_DIV, bound, total, factor);
  choir_tensor_release(bound);
  return status;
}

static choir_status_t clip_norm(choir_stream_t* stream,
                                const choir_param_set_t* params, double limit) {
  choir_tensor_t* total = NULL;
  choir_tensor_t* factor = NULL;
  choir_status_t status = NULL;
  for (size_t i = 0; i < params->count && !status; ++i)
    if (params->params[i]->trainable)
      status = add_squares(stream, params->params[i]->grad, &total);
  if (!status && total) status = make_factor(stream, total, limit, &factor);
  for (size_t i = 0; i < params->count && !status; ++i) {
    choir_tensor_t* grad = params->params[i]->grad;
    if (params->params[i]->trainable)
      status = run(stream, CHOIR_OP_MUL, grad, factor, &grad);
  }
  choir_tensor_release(total);
  choir_tensor_release(factor);
  return status;
}

choir_status_t choir__clip_gradients(const choir_gradient_clip_t* clip,
                                     choir_stream_t* stream,
                                     const choir_param_set_t* params) {
  if (clip->value > 0)
    CHOIR_TRY_NOTE(clip_values(stream, params, clip->value), "clip by value");
  if (clip->norm > 0)
    CHOIR_TRY_NOTE(clip_norm(stream, params, clip->norm), "clip by norm");
  return NULL;
}
