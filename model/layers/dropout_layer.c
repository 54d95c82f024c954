// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  const choir_dropout_config_t* config = layer->config;
  const choir_step_t* step = choir_scope_step(scope);
  const int64_t stream = choir__layer_dropout_stream(scope);
  if (!step->training || config->ratio == 0) return x;
  choir_dropout_attrs_t attrs = {.ratio = config->ratio,
                                 .seed = step->seed,
                                 .stream = stream,
                                 .step = step->step,
                                 .first_sample = step->first_sample};
  return choir_var_dropout(scope, x, &attrs);
}

CHOIR_LAYER_DEFINE(dropout, CHOIR_DROPOUT_FIELDS, "dropout", .forward = forward,
                   .keeps_places = true);
