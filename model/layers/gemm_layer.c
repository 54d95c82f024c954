// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_view_t* x = NULL;
  const choir_gemm_config_t* config = layer->config;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 2, CHOIR_MAX_NDIM, &x));
  const int64_t in = x->shape[x->ndim - (config->transpose_a ? 2 : 1)];
  const int64_t out = config->out_features;
  const int64_t shape[] = {config->transpose_b ? out : in,
                           config->transpose_b ? in : out};
  choir_view_t w;
  choir_view_t b;
  CHOIR_TRY(choir_view_make(x->dtype, 2, shape, &w));
  CHOIR_TRY(choir_view_make(x->dtype, 2, (int64_t[]){1, out}, &b));
  const choir_initializer_t glorot = {.kind = CHOIR_INITIALIZER_GLOROT_NORMAL,
                                      .fan_in = (double)in,
                                      .fan_out = (double)out};
  const choir_initializer_t zeros = {.kind = CHOIR_INITIALIZER_CONSTANT};
  CHOIR_TRY(choir__layer_add_param(layer, "W", &w, &glorot, true));
  return config->bias ? choir__layer_add_param(layer, "b", &b, &zeros, true)
                      : NULL;
}

static choir_var_t* times(choir_scope_t* scope, choir_var_t* x, double factor) {
  const choir_scale_attrs_t attrs = {.factor = factor, .shift = 0};
  return factor == 1 ? x : choir_var_scale(scope, x, &attrs);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_gemm_config_t* config = layer->config;
  const choir_matmul_attrs_t attrs = {.transpose_a = config->transpose_a,
                                      .transpose_b = config->transpose_b};
  choir_var_t* y = times(
      scope,
      choir_var_matmul(scope, inputs.at[0],
                       choir_scope_param(scope, layer->params[0]), &attrs),
      config->alpha);
  if (!config->bias) return y;
  return choir_var_add(
      scope, y,
      times(scope, choir_scope_param(scope, layer->params[1]), config->beta));
}

CHOIR_LAYER_DEFINE(gemm, CHOIR_GEMM_FIELDS, "alpha op(x) op(W) + beta b",
                   .build = build, .forward = forward);
