// SPDX-License-Identifier: Apache-2.0
// Batch normalisation. In a training step nodes of the plain form do as
// PyTorch's layers in train mode.
#include "model/layer_def.h"
#include "onnx/onnx_internal.h"
#include "onnx/operators/onnx_constants_internal.h"

enum { X, SCALE, BIAS, MEAN, VAR, INPUTS };

// x with four dimensions, channels second.
static choir_var_t* as_image(choir__onnx_call_t* c, const choir_view_t* x) {
  if (x->ndim == 4) return IN(X);
  int64_t shape[4] = {x->shape[0], x->ndim > 1 ? x->shape[1] : 1, 1, 1};
  if (x->ndim > 2) shape[3] = x->shape[x->ndim - 1];
  if (!choir__onnx_product(c, x->shape, 2, x->ndim - 1, &shape[2]))
    return choir_scope_fail(c->scope, NULL);
  return choir__onnx_reshape(c, IN(X), 4, shape);
}

// (1 - share) old + share fresh, of an average that is kept.
static choir_var_t* average(choir__onnx_call_t* c, choir_var_t* old,
                            choir_var_t* fresh, double share) {
  return DO(add, choir__onnx_line(c, old, 1 - share, 0),
            choir__onnx_line(c, fresh, share, 0));
}

// The state behind an input; NULL: it is none of the model's.
static choir_tensor_t* state_of(choir__onnx_call_t* c, int32_t i) {
  const choir__onnx_place_t* places = c->run->graph->places;
  const int32_t place = c->node->inputs[i];
  if (place < 0 || places[place].param < 0) return NULL;
  choir_param_t* param = c->run->onnx->params[places[place].param];
  return param->trainable ? NULL : param->value;
}

// Moves the model's own averages towards those of this batch.
static void update_states(choir__onnx_call_t* c, choir_var_t* const* batch,
                          double count, double share) {
  choir_tensor_t* states[] = {state_of(c, MEAN), state_of(c, VAR)};
  if (!CALL_IS_OK || !states[0] || !states[1]) return;
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  choir_status_t status = choir__update_average(
      c->scope, states[0], choir_var_tensor(batch[0]), share, share);
  if (!status)
    status =
        choir__update_average(c->scope, states[1], choir_var_tensor(batch[1]),
                              share, share * unbiased);
  if (status) choir__onnx_fail(c, status);
}

// Normalises by the batch; `gives` says that the node's results are averages.
static choir_var_t* train(choir__onnx_call_t* c, choir_var_t* const* vars,
                          double epsilon, bool gives) {
  const choir_batch_norm_attrs_t attrs = {.epsilon = epsilon};
  const double share = 1 - choir__onnx_float(c, "momentum", 0.9);
  choir_var_t* batch[2];
  choir_var_t* y =
      choir_scope_op(c->scope, CHOIR_OP_BATCH_NORM, vars, 3, &attrs, batch);
  const choir_view_t* view = choir_var_view(vars[X]);
  if (!CALL_IS_OK || !view) return y;
  for (int32_t i = 0; gives && i < 2; ++i) {
    OUT(1 + i, average(c, vars[MEAN + i], batch[i], share));
    OUT(3 + i, batch[i]);
  }
  const double count =
      (double)view->shape[0] * (double)view->shape[2] * (double)view->shape[3];
  if (choir__onnx_is_training(c) && !c->run->before)
    update_states(c, batch, count, share);
  return y;
}

void choir__onnx_op_batch_normalization(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(X);
  if (!x) return;
  for (int32_t i = SCALE; i < INPUTS; ++i)
    if (!VIEW(i)) {
      if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input %d is missing", i);
      return;
    }
  if (x->ndim < 1 || choir__onnx_int(c, "spatial", 1) == 0) {
    FAIL(
        UNIMPLEMENTED,
        "x has %d dimensions, attribute spatial is %lld; needs 1 or more and 1",
        x->ndim, (long long)choir__onnx_int(c, "spatial", 1));
    return;
  }
  choir_var_t* vars[INPUTS] = {as_image(c, x)};
  for (int32_t i = SCALE; i < INPUTS; ++i)
    vars[i] = choir__onnx_beside(c, IN(i), x->dtype);
  const double epsilon = choir__onnx_float(c, "epsilon", 1e-5);
  const bool gives = c->version < 14
                         ? choir__onnx_wants(c, 1) || choir__onnx_wants(c, 2)
                         : choir__onnx_int(c, "training_mode", 0) != 0;
  choir_var_t* y;
  if (gives || choir__onnx_is_training(c)) {
    y = train(c, vars, epsilon, gives);
  } else {
    const choir_batch_norm_infer_attrs_t attrs = {.epsilon = epsilon};
    y = DO(batch_norm_infer, vars, INPUTS, &attrs);
  }
  OUT(0, x->ndim == 4 ? y : choir__onnx_reshape(c, y, x->ndim, x->shape));
}
