// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

enum { EXPAND, SHRINK, GATE };

const char* const choir_hidden_activation_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_HIDDEN_ACTIVATION_LIST(NAME)
#undef NAME
        NULL};

static choir_var_t* activate(choir_scope_t* scope, choir_var_t* x,
                             int32_t activation) {
  switch (activation) {
#define CASE(ENUM, name)    \
  case CHOIR_HIDDEN_##ENUM: \
    return choir_var_##name(scope, x);
    CHOIR_HIDDEN_ACTIVATION_LIST(CASE)
#undef CASE
  }
  return x;
}

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_feed_forward_config_t* config = layer->config;
  const choir_view_t* x = NULL;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 2, CHOIR_MAX_NDIM, &x));
  const int64_t in = x->shape[x->ndim - 1];
  const int64_t hidden = config->hidden_size ? config->hidden_size : 4 * in;
  const bool bias = config->bias;
  choir_layer_linear(layer->model, "expand", .out_features = hidden,
                     .bias = bias, .deviation = config->deviation);
  choir_layer_linear(layer->model, "shrink", .out_features = in, .bias = bias,
                     .deviation = config->out_deviation);
  if (config->gated)
    choir_layer_linear(layer->model, "gate", .out_features = hidden,
                       .bias = bias, .deviation = config->deviation);
  return NULL;
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_feed_forward_config_t* config = layer->config;
  choir_layer_t* const* children = layer->children;
  choir_var_t* x = inputs.at[0];
  choir_var_t* y = choir_layer_forward(scope, children[EXPAND], x);
  if (config->gated) {
    choir_var_t* gate = choir_layer_forward(scope, children[GATE], x);
    y = choir_var_mul(scope, activate(scope, gate, config->activation), y);
  } else {
    y = activate(scope, y, config->activation);
  }
  return choir_layer_forward(scope, children[SHRINK], y);
}

CHOIR_LAYER_DEFINE(feed_forward, CHOIR_FEED_FORWARD_FIELDS,
                   "two products with an activation between", .build = build,
                   .forward = forward, .keeps_places = true);
