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

bool choir__clips(const choir_gradient_clip_t* clip) {
  return clip->value > 0 || clip->norm > 0;
}

// A sum of squares.
choir_status_t choir__clip_make_total(const choir_tensor_t* grad,
                                      choir_tensor_t** out_total) {
  return choir_tensor_create(choir_tensor_device(grad),
                             choir_tensor_dtype(grad), 0, NULL, out_total);
}

// ---- By value: g = min(max(g, -limit), limit) ----

static choir_status_t clip_one(choir_stream_t* stream, choir_tensor_t* grad,
                               choir_tensor_t* low, choir_tensor_t* high) {
  CHOIR_TRY(run(stream, CHOIR_OP_MAXIMUM, grad, low, &grad));
  return run(stream, CHOIR_OP_MINIMUM, grad, high, &grad);
}

choir_status_t choir__clip_values(const choir_gradient_clip_t* clip,
                                  choir_stream_t* stream,
                                  choir_tensor_t* const* grads, size_t count) {
  if (!(clip->value > 0) || count == 0) return NULL;
  choir_tensor_t* low = NULL;
  choir_tensor_t* high = NULL;
  choir_status_t status = make_constant(stream, grads[0], -clip->value, &low);
  if (!status) status = make_constant(stream, grads[0], clip->value, &high);
  for (size_t i = 0; i < count && !status; ++i)
    status = clip_one(stream, grads[i], low, high);
  choir_tensor_release(low);
  choir_tensor_release(high);
  CHOIR_TRY_NOTE(status, "clip by value");
  return NULL;
}

// ---- By norm: g *= limit / max(norm, limit), which is 1 up to the limit ----

// total += the sum of the squares of one gradient.
static choir_status_t add_squares(choir_stream_t* stream, choir_tensor_t* grad,
                                  bool is_first, choir_tensor_t* total) {
  const choir_reduce_attrs_t all = {.axis = -1};
  return choir_op_run(stream, CHOIR_OP_SUM_SQUARE, &grad, 1, &all, !is_first,
                      &total);
}

choir_status_t choir__clip_squares(choir_stream_t* stream,
                                   choir_tensor_t* const* grads, size_t count,
                                   choir_tensor_t* total) {
  choir_status_t status = NULL;
  if (count == 0) {
    const choir_fill_attrs_t zero = {.value = 0};
    status =
        choir_op_run(stream, CHOIR_OP_FILL, &total, 1, &zero, false, &total);
  }
  for (size_t i = 0; i < count && !status; ++i)
    status = add_squares(stream, grads[i], i == 0, total);
  CHOIR_TRY_NOTE(status, "clip by norm");
  return NULL;
}

// *factor, from the sum of all squares.
static choir_status_t make_factor(choir_stream_t* stream, choir_tensor_t* total,
                                  double limit, choir_tensor_t** factor) {
  choir_tensor_t* bound = NULL;
  choir_tensor_t* norm = NULL;
  choir_status_t status = make_constant(stream, total, limit, &bound);
  if (!status) status = run(stream, CHOIR_OP_SQRT, total, NULL, &norm);
  if (!status) status = run(stream, CHOIR_OP_MAXIMUM, norm, bound, &norm);
  if (!status) status = run(stream, CHOIR_OP_DIV, bound, norm, factor);
  choir_tensor_release(bound);
  choir_tensor_release(norm);
  return status;
}

choir_status_t choir__clip_scale(const choir_gradient_clip_t* clip,
                                 choir_stream_t* stream,
                                 choir_tensor_t* const* grads, size_t count,
                                 choir_tensor_t* total) {
  choir_tensor_t* factor = NULL;
  choir_status_t status = make_factor(stream, total, clip->norm, &factor);
  for (size_t i = 0; i < count && !status; ++i) {
    choir_tensor_t* grad = grads[i];
    status = run(stream, CHOIR_OP_MUL, grad, factor, &grad);
  }
  choir_tensor_release(factor);
  CHOIR_TRY_NOTE(status, "clip by norm");
  return NULL;
}
