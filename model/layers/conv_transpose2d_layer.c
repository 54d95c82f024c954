// SPDX-License-Identifier: Apache-2.0
#include "model/layers/window_fields.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  const choir_conv_transpose2d_config_t* config = layer->config;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 4, &x));
  if (config->kernel_width == 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s (conv_transpose2d): kernel_width is 0; needs 1 or "
                       "more, or -1 for the height's",
                       layer->name);
  const int64_t channels = x->shape[1];
  const int64_t out = config->out_channels;
  if (channels % config->groups != 0 || out % config->groups != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %lld input and %lld output channels in %lld "
                       "groups; both must be multiples of the groups",
                       layer->name, (long long)channels, (long long)out,
                       (long long)config->groups);
  const int64_t shape[] = {
      channels, out / config->groups, config->kernel_size,
      choir__width(config->kernel_width, config->kernel_size)};
  choir_view_t w;
  choir_view_t b;
  CHOIR_TRY(choir_view_make(x->dtype, 4, shape, &w));
  choir_view_set_channels_last(&w);
  CHOIR_TRY(choir_view_make(x->dtype, 1, &out, &b));
  const int64_t fan_in = channels / config->groups * shape[2] * shape[3];
  const choir_initializer_t normal = {.kind = CHOIR_INITIALIZER_GLOROT_NORMAL,
                                      .fan_in = (double)fan_in,
                                      .fan_out = (double)out};
  const choir_initializer_t zeros = {.kind = CHOIR_INITIALIZER_CONSTANT};
  CHOIR_TRY(choir__layer_add_param(layer, "W", &w, &normal, true));
  return config->bias ? choir__layer_add_param(layer, "b", &b, &zeros, true)
                      : NULL;
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_conv_transpose2d_config_t* config = layer->config;
  const choir_conv_transpose2d_attrs_t attrs = {
      .stride = CHOIR__PAIR(config, stride),
      .padding = CHOIR__PAIR(config, padding),
      .output_padding = CHOIR__PAIR(config, output_padding),
      .dilation = CHOIR__PAIR(config, dilation),
      .groups = config->groups};
  choir_var_t* y = choir_var_conv_transpose2d(
      scope, inputs.at[0], choir_scope_param(scope, layer->params[0]), &attrs);
  if (!config->bias) return y;
  const choir_reshape_attrs_t channels = {.ndim = 3, .shape = {-1, 1, 1}};
  choir_var_t* b = choir_scope_param(scope, layer->params[1]);
  return choir_var_add(scope, y, choir_var_reshape(scope, b, &channels));
}

CHOIR_LAYER_DEFINE(conv_transpose2d, CHOIR_CONV_TRANSPOSE2D_FIELDS,
                   "transposed 2-D convolution", .build = build,
                   .forward = forward);
