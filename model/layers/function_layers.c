// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

// Layers that are one op without parameters.

#define FUNCTION(name)                                                        \
  static choir_var_t* name##_forward(                                         \
      choir_scope_t* scope, choir_layer_t* layer, choir_vars_t inputs) {      \
    const choir_##name##_config_t* config = layer->config;                    \
    choir_var_t* x = inputs.at[0];                                            \
    return config->enabled ? choir_var_##name(scope, x) : x;                  \
  }                                                                           \
  CHOIR_LAYER_DEFINE(name, CHOIR_NO_FIELDS, #name, .forward = name##_forward, \
                     .keeps_places = true)

FUNCTION(relu);
FUNCTION(gelu);
FUNCTION(silu);
FUNCTION(sigmoid);
FUNCTION(tanh);
FUNCTION(softmax);

static choir_var_t* add_forward(choir_scope_t* scope, choir_layer_t* layer,
                                choir_vars_t inputs) {
  const choir_add_config_t* config = layer->config;
  return config->enabled ? choir_var_add(scope, inputs.at[0], inputs.at[1])
                         : inputs.at[0];
}
CHOIR_LAYER_DEFINE(add, CHOIR_NO_FIELDS, "the sum of two", .min_inputs = 2,
                   .max_inputs = 2, .forward = add_forward,
                   .keeps_places = true);

static choir_var_t* cat_forward(choir_scope_t* scope, choir_layer_t* layer,
                                choir_vars_t inputs) {
  const choir_cat_config_t* config = layer->config;
  const choir_concat_attrs_t attrs = {.axis = config->axis};
  return choir_var_concat(scope, inputs.at, inputs.count, &attrs);
}
CHOIR_LAYER_DEFINE(cat, CHOIR_CAT_FIELDS, "inputs side by side",
                   .max_inputs = 15, .forward = cat_forward);
