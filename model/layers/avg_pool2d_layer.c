// SPDX-License-Identifier: Apache-2.0
#include "model/layers/pool2d_layer.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  return choir__layer_check_ndim(layer, inputs, 4, &x);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  const choir_avg_pool2d_config_t* config = layer->config;
  choir_pool2d_attrs_t attrs = CHOIR_POOL2D_ATTRS(config);
  return choir_var_avg_pool2d(scope, x, &attrs);
}

CHOIR_LAYER_DEFINE(avg_pool2d, CHOIR_POOL2D_FIELDS, "2-D pooling (avg)",
                   .build = build, .forward = forward);
