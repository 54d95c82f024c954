// SPDX-License-Identifier: Apache-2.0
#include "model/kv_cache.h"
#include "model/layer_def.h"

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_position_embedding_config_t* config = layer->config;
  const choir_view_t* x = NULL;
  CHOIR_TRY(choir__layer_check_ndim(layer, inputs, 2, CHOIR_MAX_NDIM, &x));
  const int64_t shape[] = {config->num_embeddings, x->shape[x->ndim - 1]};
  choir_view_t w;
  CHOIR_TRY(choir_view_make(x->dtype, 2, shape, &w));
  const choir_initializer_t normal = {.kind = CHOIR_INITIALIZER_NORMAL,
                                      .b = config->deviation};
  return choir__layer_add_param(layer, "W", &w, &normal, true);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_position_embedding_config_t* config = layer->config;
  const choir_view_t* x = choir_var_view(inputs.at[0]);
  choir_var_t* w = choir_scope_param(scope, layer->params[0]);
  if (!x) return w;  // something failed before
  const choir_kv_cache_t* cache = choir_scope_step(scope)->cache;
  const int64_t before = cache ? choir_kv_cache_count(cache) : 0;
  const int64_t rows = before + x->shape[x->ndim - 2];
  if (rows > config->num_embeddings)
    choir_scope_fail(
        scope, CHOIR_ERROR(INVALID_ARGUMENT,
                           "%s (position_embedding): the input has %lld rows; "
                           "there are embeddings of %lld",
                           layer->name, (long long)rows,
                           (long long)config->num_embeddings));
  const choir_slice_attrs_t part = {
      .axis = 0, .start = before, .stop = rows, .step = 1};
  return choir_var_add(scope, inputs.at[0], choir_var_slice(scope, w, &part));
}

CHOIR_LAYER_DEFINE(position_embedding, CHOIR_POSITION_EMBEDDING_FIELDS,
                   "adds a row of a table to each place", .build = build,
                   .forward = forward, .keeps_places = true);
