// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

enum { DEPTHWISE, POINT };

// One filter for each channel, then a mixture of the channels.
static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_separable_conv2d_config_t* config = layer->config;
  const choir_view_t* x = NULL;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 4, 4, &x));
#define SAME(config, KIND, field, ...) .field = (config)->field,
  choir_layer_conv2d(
      layer->model, "depthwise_conv",
      CHOIR_WINDOW_FIELDS(SAME, config, ).out_channels = x->shape[1],
      .groups = x->shape[1], .bias = config->bias);
#undef SAME
  choir_layer_conv2d(layer->model, "point_conv",
                     .out_channels = config->out_channels, .kernel_size = 1,
                     .bias = config->bias, .activation = config->activation);
  return NULL;
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x =
      choir_layer_forward(scope, layer->children[DEPTHWISE], inputs.at[0]);
  return choir_layer_forward(scope, layer->children[POINT], x);
}

CHOIR_LAYER_DEFINE(separable_conv2d, CHOIR_SEPARABLE_CONV2D_FIELDS,
                   "2-D convolution of each channel, then of 1x1",
                   .build = build, .forward = forward);
