// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  const choir_flatten_config_t* config = layer->config;
  return config->enabled ? choir_var_flatten(scope, x, NULL) : x;
}

CHOIR_LAYER_DEFINE(flatten, CHOIR_NO_FIELDS, "flatten", .forward = forward);
