// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  (void)inputs;  // whole numbers; gather says so where they are not
  const choir_embedding_config_t* config = layer->config;
  const int64_t shape[] = {config->num_embeddings, config->embedding_dim};
  choir_view_t w;
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 2, shape, &w));
  const choir_initializer_t normal = {.kind = CHOIR_INITIALIZER_NORMAL,
                                      .b = config->deviation};
  return choir__layer_add_param(layer, "W", &w, &normal, true);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_gather_attrs_t rows = {.axis = 0};
  return choir_var_gather(scope, choir_scope_param(scope, layer->params[0]),
                          inputs.at[0], &rows);
}

CHOIR_LAYER_DEFINE(embedding, CHOIR_EMBEDDING_FIELDS, "rows of a table",
                   .build = build, .forward = forward, .keeps_places = true);
