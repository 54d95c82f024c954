// SPDX-License-Identifier: Apache-2.0
// layer_norm and rms_norm.
#include "model/layer_def.h"

// Adds a parameter of one number for each column of the input.
static choir_status_t add_row(choir_layer_t* layer, const char* name,
                              choir_vars_t inputs, double value) {
  const choir_view_t* x = choir_var_view(inputs.at[0]);
  if (x->ndim < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s (%s): the input has no dimension; 1 or more are "
                       "needed",
                       layer->name, layer->def->name);
  choir_view_t row;
  CHOIR_TRY(choir_view_make(x->dtype, 1, &x->shape[x->ndim - 1], &row));
  const choir_initializer_t constant = {.kind = CHOIR_INITIALIZER_CONSTANT,
                                        .a = value};
  return choir__layer_add_param(layer, name, &row, &constant, true);
}

static choir_status_t build_scale(choir_layer_t* layer, choir_vars_t inputs) {
  return add_row(layer, "scale", inputs, 1);
}

static choir_status_t build_both(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_layer_norm_config_t* config = layer->config;
  CHOIR_TRY(build_scale(layer, inputs));
  return config->bias ? add_row(layer, "bias", inputs, 0) : NULL;
}

static choir_var_t* layer_norm(choir_scope_t* scope, choir_layer_t* layer,
                               choir_vars_t inputs) {
  const choir_layer_norm_config_t* config = layer->config;
  const choir_layer_norm_attrs_t attrs = {.epsilon = config->epsilon};
  choir_var_t* scale = choir_scope_param(scope, layer->params[0]);
  // The op has a bias in any case: without one, zeros that nothing learns.
  const choir_fill_attrs_t zero = {.value = 0};
  choir_var_t* bias = config->bias ? choir_scope_param(scope, layer->params[1])
                                   : choir_var_fill(scope, scale, &zero);
  return choir_var_layer_norm(scope, inputs.at[0], scale, bias, &attrs);
}

static choir_var_t* rms_norm(choir_scope_t* scope, choir_layer_t* layer,
                             choir_vars_t inputs) {
  const choir_rms_norm_config_t* config = layer->config;
  const choir_rms_norm_attrs_t attrs = {.epsilon = config->epsilon};
  return choir_var_rms_norm(scope, inputs.at[0],
                            choir_scope_param(scope, layer->params[0]), &attrs);
}

CHOIR_LAYER_DEFINE(layer_norm, CHOIR_LAYER_NORM_FIELDS,
                   "normalises each row by mean and variance",
                   .build = build_both, .forward = layer_norm,
                   .keeps_places = true);
CHOIR_LAYER_DEFINE(rms_norm, CHOIR_ROW_NORM_FIELDS,
                   "normalises each row by its root mean square",
                   .build = build_scale, .forward = rms_norm,
                   .keeps_places = true);
