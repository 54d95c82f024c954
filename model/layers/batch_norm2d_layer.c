// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"
#include "model/model_internal.h"
#include "model/sync_batch_norm.h"

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

// ---- Over the samples of all ranks ----

static choir_sync_batch_norm_t sync_norm(const choir_layer_t* layer) {
  const choir_batch_norm2d_config_t* config = layer->config;
  return (choir_sync_batch_norm_t){.name = layer->name,
                                   .running_mean = layer->params[MEAN]->value,
                                   .running_var = layer->params[VAR]->value,
                                   .momentum = config->momentum,
                                   .epsilon = config->epsilon,
                                   .only_micro_shards = !config->sync};
}

// choir_model_compile runs forward once, in the scope of the model.
static choir_status_t note_use(const choir_scope_t* scope,
                               const choir_layer_t* layer) {
  const choir_batch_norm2d_config_t* config = layer->config;
  choir_model_t* model = layer->model;
  const bool is_over_ranks =
      config->sync || choir_device_is_reproducible(model->device);
  if (!is_over_ranks || model->is_compiled || scope != model->scope)
    return NULL;
  const choir_sync_batch_norm_t norm = sync_norm(layer);
  return choir_model_add_sync_batch_norm(model, &norm);
}

static choir_var_t* forward_over_ranks(choir_scope_t* scope,
                                       choir_layer_t* layer,
                                       choir_var_t* const* vars) {
  bool has_backward = false;
  choir_tensor_t* srcs[3];
  for (int32_t i = 0; i < 3; ++i) {
    has_backward |= choir_var_wants_grad(vars[i]);
    srcs[i] = choir_var_tensor(vars[i]);
  }
  choir_sync_batch_norm_use_t* use = choir_scope_alloc(scope, sizeof(*use));
  if (!choir_scope_is_ok(scope)) return choir_scope_fail(scope, NULL);
  const choir_sync_batch_norm_t norm = sync_norm(layer);
  choir_status_t status = choir_sync_batch_norm_forward(
      layer->model, scope, &norm, srcs, has_backward, use);
  if (!status)
    status = choir__sync_norm_update(scope, &norm, use->mean, use->unbiased);
  if (status) return choir_scope_fail(scope, status);
  const choir_custom_op_t op = {.name = "batch_norm over ranks",
                                .backward = choir_sync_batch_norm_backward,
                                .self = use,
                                .knows_micro_shards = true};
  return choir_scope_record_custom(scope, &op, vars, 3, use->y);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  const choir_batch_norm2d_config_t* config = layer->config;
  choir_batch_norm_attrs_t attrs = {.epsilon = config->epsilon};
  choir_var_t* vars[5] = {x};
  for (int32_t i = 0; i < 4; ++i)
    vars[1 + i] = choir_scope_param(scope, layer->params[i]);
  if (!choir_scope_step(scope)->training) {
    choir_scope_fail(scope, note_use(scope, layer));
    return choir_scope_op(scope, CHOIR_OP_BATCH_NORM_INFER, vars, 5, &attrs,
                          NULL);
  }
  if (config->sync || choir_scope_step(scope)->micro_shard > 0)
    return forward_over_ranks(scope, layer, vars);
  choir_var_t* batch[2];
  choir_var_t* y =
      choir_scope_op(scope, CHOIR_OP_BATCH_NORM, vars, 3, &attrs, batch);
  if (!choir_scope_is_ok(scope)) return y;
  const choir_view_t* view = choir_var_view(x);
  const double count =
      (double)(view->shape[0] * view->shape[2] * view->shape[3]);
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  choir_status_t status = choir__update_average(
      scope, layer->params[MEAN]->value, choir_var_tensor(batch[0]),
      config->momentum, config->momentum);
  if (!status)
    status = choir__update_average(scope, layer->params[VAR]->value,
                                   choir_var_tensor(batch[1]), config->momentum,
                                   config->momentum * unbiased);
  return status ? choir_scope_fail(scope, status) : y;
}

CHOIR_LAYER_DEFINE(batch_norm2d, CHOIR_BATCH_NORM2D_FIELDS,
                   "normalises each channel over the batch", .build = build,
                   .forward = forward);
