// SPDX-License-Identifier: Apache-2.0
#include "model/layers/window_fields.h"

// Convolution and transposed convolution of images.

// What W follows from. Of the transposed one input and output change places.
typedef struct filters_s {
  int64_t out_channels, groups;
  int64_t kernel_size, kernel_width;
  bool is_transposed;
} filters_t;

static choir_status_t add_w(choir_layer_t* layer, choir_vars_t inputs,
                            const filters_t* filters) {
  const choir_view_t* x = NULL;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 4, 4, &x));
  if (filters->kernel_width == 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s (%s): kernel_width is 0; needs 1 or more, or -1 for "
                       "the height's",
                       layer->name, layer->def->name);
  const int64_t in = x->shape[1], out = filters->out_channels;
  const int64_t groups = filters->groups;
  if (in % groups != 0 || out % groups != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %lld input and %lld output channels in %lld "
                       "groups; both must be multiples of the groups",
                       layer->name, (long long)in, (long long)out,
                       (long long)groups);
  const int64_t shape[] = {
      filters->is_transposed ? in : out,
      (filters->is_transposed ? out : in) / groups, filters->kernel_size,
      choir__width(filters->kernel_width, filters->kernel_size)};
  choir_view_t w;
  CHOIR_TRY(choir_view_make(x->dtype, 4, shape, &w));
  // As the activations: the kernels read weights channel by channel.
  choir_view_set_channels_last(&w);
  const int64_t fan_in = in / groups * shape[2] * shape[3];
  const choir_initializer_t normal = {.kind = CHOIR_INITIALIZER_GLOROT_NORMAL,
                                      .fan_in = (double)fan_in,
                                      .fan_out = (double)out};
  return choir__layer_add_param(layer, "W", &w, &normal, true);
}

static choir_status_t add_b(choir_layer_t* layer, choir_vars_t inputs,
                            int64_t channels, bool trainable) {
  choir_view_t b;
  CHOIR_TRY(
      choir_view_make(choir_var_view(inputs.at[0])->dtype, 1, &channels, &b));
  const choir_initializer_t zeros = {.kind = CHOIR_INITIALIZER_CONSTANT};
  return choir__layer_add_param(layer, "b", &b, &zeros, trainable);
}

#define FILTERS_OF(config, transposed)                               \
  (filters_t) {                                                      \
    (config)->out_channels, (config)->groups, (config)->kernel_size, \
        (config)->kernel_width, transposed                           \
  }

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_conv2d_config_t* config = layer->config;
  const filters_t filters = FILTERS_OF(config, false);
  CHOIR_TRY(add_w(layer, inputs, &filters));
  // Without a bias the op still takes one: zeros that nobody learns.
  return add_b(layer, inputs, config->out_channels, config->bias);
}

static choir_status_t build_transposed(choir_layer_t* layer,
                                       choir_vars_t inputs) {
  const choir_conv_transpose2d_config_t* config = layer->config;
  const filters_t filters = FILTERS_OF(config, true);
  CHOIR_TRY(add_w(layer, inputs, &filters));
  return config->bias ? add_b(layer, inputs, config->out_channels, true) : NULL;
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_conv2d_config_t* config = layer->config;
  choir_conv2d_attrs_t attrs = {
      .stride = CHOIR__PAIR(config, stride),
      .padding = CHOIR__PAIR(config, padding),
      .padding_after = CHOIR__PAIR(config, padding_after),
      .pad_mode = config->pad_mode,
      .dilation = CHOIR__PAIR(config, dilation),
      .groups = config->groups,
      .activation = config->activation};
  return choir_var_conv2d(scope, inputs.at[0],
                          choir_scope_param(scope, layer->params[0]),
                          choir_scope_param(scope, layer->params[1]), &attrs);
}

static choir_var_t* forward_transposed(choir_scope_t* scope,
                                       choir_layer_t* layer,
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

CHOIR_LAYER_DEFINE(conv2d, CHOIR_CONV2D_FIELDS, "2-D convolution",
                   .build = build, .forward = forward);
CHOIR_LAYER_DEFINE(conv_transpose2d, CHOIR_CONV_TRANSPOSE2D_FIELDS,
                   "transposed 2-D convolution", .build = build_transposed,
                   .forward = forward_transposed);
