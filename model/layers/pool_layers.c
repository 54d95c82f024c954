// SPDX-License-Identifier: Apache-2.0
#include "model/layers/window_fields.h"

// Max and average pooling, of images and along their last axis.

static choir_var_t* pool(choir_scope_t* scope, const choir_layer_t* layer,
                         choir_var_t* x, choir_pool2d_attrs_t* attrs) {
  for (int32_t k = 0; k < 2; ++k)
    if (attrs->stride[k] == 0) attrs->stride[k] = attrs->kernel[k];
  const bool is_max = layer->def == &choir_layer_def_max_pool2d ||
                      layer->def == &choir_layer_def_max_pool1d;
  return is_max ? choir_var_max_pool2d(scope, x, attrs)
                : choir_var_avg_pool2d(scope, x, attrs);
}

static choir_status_t build_2d(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  return choir__layer_check_ndim(layer, inputs, 4, 4, &x);
}

static choir_var_t* forward_2d(choir_scope_t* scope, choir_layer_t* layer,
                               choir_vars_t inputs) {
  const choir_max_pool2d_config_t* config = layer->config;
  choir_pool2d_attrs_t attrs = {
      .kernel = {config->kernel_size,
                 choir__width(config->kernel_width, config->kernel_size)},
      .stride = CHOIR__PAIR(config, stride),
      .padding = CHOIR__PAIR(config, padding),
      .padding_after = CHOIR__PAIR(config, padding_after),
      .pad_mode = config->pad_mode};
  return pool(scope, layer, inputs.at[0], &attrs);
}

static choir_status_t build_1d(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  return choir__layer_check_ndim(layer, inputs, 3, 4, &x);
}

static choir_var_t* forward_1d(choir_scope_t* scope, choir_layer_t* layer,
                               choir_vars_t inputs) {
  const choir_max_pool1d_config_t* config = layer->config;
  choir_pool2d_attrs_t attrs = {.kernel = {1, config->kernel_size},
                                .stride = {1, config->stride},
                                .padding = {0, config->padding},
                                .padding_after = {0, config->padding_after},
                                .pad_mode = config->pad_mode};
  const choir_view_t* view = choir_var_view(inputs.at[0]);
  if (view->ndim == 4) return pool(scope, layer, inputs.at[0], &attrs);
  choir_reshape_attrs_t image = {
      .ndim = 4, .shape = {view->shape[0], view->shape[1], 1, view->shape[2]}};
  choir_var_t* y = pool(scope, layer,
                        choir_var_reshape(scope, inputs.at[0], &image), &attrs);
  if (!(view = choir_var_view(y))) return y;
  choir_reshape_attrs_t row = {
      .ndim = 3, .shape = {view->shape[0], view->shape[1], view->shape[3]}};
  return choir_var_reshape(scope, y, &row);
}

CHOIR_LAYER_DEFINE(max_pool2d, CHOIR_POOL2D_FIELDS, "2-D pooling (max)",
                   .build = build_2d, .forward = forward_2d);
CHOIR_LAYER_DEFINE(avg_pool2d, CHOIR_POOL2D_FIELDS, "2-D pooling (avg)",
                   .build = build_2d, .forward = forward_2d);
CHOIR_LAYER_DEFINE(max_pool1d, CHOIR_POOL1D_FIELDS, "1-D pooling (max)",
                   .build = build_1d, .forward = forward_1d);
CHOIR_LAYER_DEFINE(avg_pool1d, CHOIR_POOL1D_FIELDS, "1-D pooling (avg)",
                   .build = build_1d, .forward = forward_1d);
