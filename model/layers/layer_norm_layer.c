// SPDX-License-Identifier: Apache-2.0
#include "model/layers/row_norm.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  CHOIR_TRY(choir__row_norm_add_param(layer, "scale", inputs, 1));
  return choir__row_norm_add_param(layer, "bias", inputs, 0);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_layer_norm_config_t* config = layer->config;
  choir_var_t* x = inputs.at[0];
  x = choir_var_sub(scope, x, choir__row_norm_mean(scope, x));
  x = choir__row_norm_scale(scope, x, config->epsilon);
  x = choir_var_mul(scope, x, choir_scope_param(scope, layer->params[0]));
  return choir_var_add(scope, x, choir_scope_param(scope, layer->params[1]));
}

CHOIR_LAYER_DEFINE(layer_norm, CHOIR_ROW_NORM_FIELDS,
                   "normalises each row by mean and variance", .build = build,
                   .forward = forward);
