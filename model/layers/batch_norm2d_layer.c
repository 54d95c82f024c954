// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

enum { SCALE, BIAS, MEAN, VAR };

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 4, 4, &x));
  choir_view_t v;
  CHOIR_TRY(choir_view_make(x->dtype, 1, &x->shape[1], &v));
  choir_initializer_t zeros = {.kind = CHOIR_INITIALIZER_CONSTANT};
  choir_initializer_t ones = {.kind = CHOIR_INITIALIZER_CONSTANT, .a = 1};
  CHOIR_TRY(choir__layer_add_param(layer, "scale", &v, &ones, true));
  CHOIR_TRY(choir__layer_add_param(layer, "bias", &v, &zeros, true));
  CHOIR_TRY(choir__layer_add_param(layer, "running_mean", &v, &zeros, false));
  return choir__layer_add_param(layer, "running_var", &v, &ones, false);
}

// running = (1 - momentum) running + weight * batch
static choir_status_t update_average(choir_scope_t* scope,
                                     choir_tensor_t* running,
                                     choir_tensor_t* batch, double momentum,
                                     double weight) {
  choir_stream_t* stream = choir_scope_stream(scope);
  choir_scale_attrs_t keep = {.factor = 1 - momentum, .shift = 0};
  choir_scale_attrs_t add = {.factor = weight, .shift = 0};
  CHOIR_TRY(choir_op_run(stream, CHOIR_OP_SCALE, &running, 1, &keep, false,
                         &running));
  return choir_op_run(stream, CHOIR_OP_SCALE, &batch, 1, &add, true, &running);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  const choir_batch_norm2d_config_t* config = layer->config;
  choir_batch_norm_attrs_t attrs = {.epsilon = config->epsilon};
  choir_var_t* vars[5] = {x};
  for (int32_t i = 0; i < 4; ++i)
    vars[1 + i] = choir_scope_param(scope, layer->params[i]);
  if (!choir_scope_step(scope)->training)
    return choir_scope_op(scope, CHOIR_OP_BATCH_NORM_INFER, vars, 5, &attrs,
                          NULL);
  choir_var_t* batch[2];
  choir_var_t* y =
      choir_scope_op(scope, CHOIR_OP_BATCH_NORM, vars, 3, &attrs, batch);
  if (!choir_scope_is_ok(scope)) return y;
  const choir_view_t* view = choir_var_view(x);
  const double count =
      (double)(view->shape[0] * view->shape[2] * view->shape[3]);
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  choir_status_t status = update_average(scope, layer->params[MEAN]->value,
                                         choir_var_tensor(batch[0]),
                                         config->momentum, config->momentum);
  if (!status)
    status = update_average(scope, layer->params[VAR]->value,
                            choir_var_tensor(batch[1]), config->momentum,
                            config->momentum * unbiased);
  return status ? choir_scope_fail(scope, status) : y;
}

CHOIR_LAYER_DEFINE(batch_norm2d, CHOIR_BATCH_NORM2D_FIELDS,
                   "normalises each channel over the batch", .build = build,
                   .forward = forward);
