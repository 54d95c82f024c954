// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

// Layers that are one op without settings.

#define FUNCTION(name)                                                   \
  static choir_var_t* name##_forward(                                    \
      choir_scope_t* scope, choir_layer_t* layer, choir_vars_t inputs) { \
    const choir_##name##_config_t* config = layer->config;               \
    choir_var_t* x = inputs.at[0];                                       \
    return config->enabled ? choir_var_##name(scope, x) : x;             \
  }                                                                      \
  CHOIR_LAYER_DEFINE(name, CHOIR_NO_FIELDS, #name, .forward = name##_forward)

FUNCTION(relu);
FUNCTION(gelu);
FUNCTION(sigmoid);
FUNCTION(tanh);
FUNCTION(softmax);
