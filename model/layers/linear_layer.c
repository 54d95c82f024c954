// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  const choir_linear_config_t* config = layer->config;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 2, CHOIR_MAX_NDIM, &x));
  const int64_t in = x->shape[x->ndim - 1];
  const int64_t out = config->out_features;
  choir_view_t w;
  choir_view_t b;
  CHOIR_TRY(choir_view_make(x->dtype, 2, (int64_t[]){in, out}, &w));
  CHOIR_TRY(choir_view_make(x->dtype, 1, &out, &b));
  choir_initializer_t normal = {.kind = CHOIR_INITIALIZER_GLOROT_NORMAL,
                                .fan_in = (double)in,
                                .fan_out = (double)out};
  if (config->deviation > 0)
    normal = (choir_initializer_t){.kind = CHOIR_INITIALIZER_NORMAL,
                                   .b = config->deviation};
  choir_initializer_t zeros = {.kind = CHOIR_INITIALIZER_CONSTANT};
  CHOIR_TRY(choir__layer_add_param(layer, "W", &w, &normal, true));
  return config->bias ? choir__layer_add_param(layer, "b", &b, &zeros, true)
                      : NULL;
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  const choir_linear_config_t* config = layer->config;
  choir_var_t* w = choir_scope_param(scope, layer->params[0]);
  choir_var_t* y =
      config->bias
          ? choir_var_linear(scope, x, w,
                             choir_scope_param(scope, layer->params[1]))
          : choir_var_matmul(scope, x, w, NULL);
  return config->activation == CHOIR_ACTIVATION_RELU ? choir_var_relu(scope, y)
                                                     : y;
}

CHOIR_LAYER_DEFINE(linear, CHOIR_LINEAR_FIELDS, "x W + b", .build = build,
                   .forward = forward, .keeps_places = true);
