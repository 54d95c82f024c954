// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  const choir_gelu_config_t* config = layer->config;
  return config->enabled ? choir_var_gelu(scope, x) : x;
}

CHOIR_LAYER_DEFINE(gelu, CHOIR_NO_FIELDS, "gelu", .forward = forward);
