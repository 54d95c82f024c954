// SPDX-License-Identifier: Apache-2.0
#include "model/layers/row_norm.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  return choir__row_norm_add_param(layer, "scale", inputs, 1);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_rms_norm_config_t* config = layer->config;
  choir_var_t* x = choir__row_norm_scale(scope, inputs.at[0], config->epsilon);
  return choir_var_mul(scope, x, choir_scope_param(scope, layer->params[0]));
}

CHOIR_LAYER_DEFINE(rms_norm, CHOIR_ROW_NORM_FIELDS,
                   "normalises each row by its root mean square",
                   .build = build, .forward = forward);
