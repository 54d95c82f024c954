// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "model/kv_cache_internal.h"
#include "model/layer_def.h"
#include "tensor/op_def.h"

enum { QUERY, KEY, VALUE, OUT };

// Query, key, value and the mask, if there is one.
typedef struct sources_s {
  choir_var_t *query, *key, *value, *mask;
} sources_t;

static sources_t sources_of(choir_vars_t inputs) {
  choir_var_t* const* at = inputs.at;
  choir_var_t* mask = inputs.count % 2 == 0 ? at[inputs.count - 1] : NULL;
  return inputs.count < 3 ? (sources_t){at[0], at[0], at[0], mask}
                          : (sources_t){at[0], at[1], at[2], mask};
}

static int64_t head_dim(const choir_layer_t* layer, const choir_view_t* query) {
  const choir_multi_head_attention_config_t* config = layer->config;
  return config->head_dim ? config->head_dim
                          : query->shape[2] / config->num_heads;
}

static int64_t value_dim(const choir_layer_t* layer,
                         const choir_view_t* query) {
  const choir_multi_head_attention_config_t* config = layer->config;
  return config->value_dim ? config->value_dim : head_dim(layer, query);
}

static int64_t kv_heads(const choir_layer_t* layer) {
  const choir_multi_head_attention_config_t* config = layer->config;
  return config->kv_heads ? config->kv_heads : config->num_heads;
}

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  const choir_multi_head_attention_config_t* config = layer->config;
  const sources_t s = sources_of(inputs);
  const choir_view_t* query = NULL;
  CHOIR_TRY(choir__layer_check_ndim(layer, CHOIR_VARS(s.key), 3, 3, &query));
  CHOIR_TRY(choir__layer_check_ndim(layer, CHOIR_VARS(s.value), 3, 3, &query));
  CHOIR_TRY(choir__layer_check_ndim(layer, CHOIR_VARS(s.query), 3, 3, &query));
  const int64_t heads = config->num_heads;
  if (config->head_dim == 0 && query->shape[2] % heads != 0)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "%s (multi_head_attention): a row has %lld elements for %lld "
        "heads; needs a multiple of the heads, or head_dim",
        layer->name, (long long)query->shape[2], (long long)heads);
  const int64_t served = kv_heads(layer);
  if (heads % served != 0)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "%s (multi_head_attention): num_heads is %lld and kv_heads %lld; needs "
        "a multiple of kv_heads",
        layer->name, (long long)heads, (long long)served);
  const int64_t columns = head_dim(layer, query);
  const bool bias = config->bias;
  const double deviation = config->deviation;
  choir_layer_linear(layer->model, "query", .out_features = heads * columns,
                     .bias = bias, .deviation = deviation);
  choir_layer_linear(layer->model, "key", .out_features = served * columns,
                     .bias = bias, .deviation = deviation);
  choir_layer_linear(layer->model, "value",
                     .out_features = served * value_dim(layer, query),
                     .bias = bias, .deviation = deviation);
  choir_layer_linear(layer->model, "out", .out_features = query->shape[2],
                     .bias = bias, .deviation = config->out_deviation);
  return NULL;
}

static choir_var_t* swap_heads(choir_scope_t* scope, choir_var_t* x) {
  const choir_transpose_attrs_t order = {.axes = {0, 2, 1, 3, -1, -1, -1, -1}};
  return choir_var_transpose(scope, x, &order);
}

// (n, t, heads * size) -> (n, heads, t, size)
static choir_var_t* split(choir_scope_t* scope, choir_var_t* x, int64_t heads) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;  // something failed before
  const choir_reshape_attrs_t attrs = {
      .ndim = 4,
      .shape = {view->shape[0], view->shape[1], heads, view->shape[2] / heads}};
  return swap_heads(scope, choir_var_reshape(scope, x, &attrs));
}

// Rows of query or key (n, heads, t, head_dim) turned by their places.
static choir_var_t* turn(choir_scope_t* scope, const choir_layer_t* layer,
                         choir_var_t* x) {
  const choir_multi_head_attention_config_t* config = layer->config;
  const choir_kv_cache_t* cache = choir_scope_step(scope)->cache;
  const choir_rotary_attrs_t attrs = {
      .theta = config->rotary,
      .offset = cache ? choir_kv_cache_count(cache) : 0};
  return config->rotary > 0 ? choir_var_rotary(scope, x, &attrs) : x;
}

static choir_var_t* cut(choir_scope_t* scope, choir_var_t* x, int64_t axis,
                        int64_t start, int64_t count) {
  const choir_slice_attrs_t attrs = {
      .axis = axis, .start = start, .stop = start + count, .step = 1};
  return choir_var_slice(scope, x, &attrs);
}

// A constant in the shape of x.
static choir_var_t* fill(choir_scope_t* scope, choir_var_t* x, double value) {
  const choir_fill_attrs_t attrs = {.value = value};
  return choir_var_fill(scope, x, &attrs);
}

// Scores (n, heads, t, s) where `seen`, which broadcasts, is not 0.
static choir_var_t* keep(choir_scope_t* scope, choir_var_t* seen,
                         choir_var_t* scores) {
  choir_var_t* one = scores;
  for (int64_t axis = 0; axis < 4; ++axis) one = cut(scope, one, axis, 0, 1);
  return choir_var_where(scope, seen, scores, fill(scope, one, -INFINITY));
}

// (t, s) of the scores: 1 where the column is not behind the row. Each row is
// the one above it moved by a place: t rows of t ones and s - 1 zeros, one
// after the other, read from place t - 1 on in rows that are shorter by one.
static choir_var_t* lower_triangle(choir_scope_t* scope, choir_var_t* scores) {
  const choir_view_t* view = choir_var_view(scores);
  if (!view) return scores;
  const int64_t t = view->shape[2], s = view->shape[3];
  choir_var_t* column = cut(scope, scores, 0, 0, 1);
  column = cut(scope, cut(scope, column, 1, 0, 1), 3, 0, 1);
  const choir_reshape_attrs_t flat = {.ndim = 1, .shape = {t}};
  const choir_pad_attrs_t zeros = {.mode = CHOIR_PAD_CONSTANT,
                                   .after = {s - 1}};
  choir_var_t* row = choir_var_pad(
      scope, fill(scope, choir_var_reshape(scope, column, &flat), 1), &zeros);
  if (t == 1) return row;
  const choir_tile_attrs_t times = {.ndim = 1, .repeats = {t}};
  const int64_t length = t + s - 2;
  const choir_reshape_attrs_t rows = {.ndim = 2, .shape = {t, length}};
  choir_var_t* all =
      cut(scope, choir_var_tile(scope, row, &times), 0, t - 1, t * length);
  return cut(scope, choir_var_reshape(scope, all, &rows), 1, 0, s);
}

static choir_var_t* mask_scores(choir_scope_t* scope, choir_var_t* scores,
                                choir_var_t* mask, bool causal) {
  if (mask) {
    const choir_view_t* view = choir_var_view(mask);
    scores = choir_dtype_is_float(view->dtype)
                 ? choir_var_add(scope, scores, mask)
                 : keep(scope, mask, scores);
  }
  return causal ? keep(scope, lower_triangle(scope, scores), scores) : scores;
}

// k or v (n, kv_heads, s, ...) with each head so often that there are `heads`.
static choir_var_t* for_all_heads(choir_scope_t* scope, choir_var_t* x,
                                  int64_t heads) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || view->shape[1] == heads) return x;
  const choir_repeat_attrs_t attrs = {.repeats = heads / view->shape[1],
                                      .axis = 1};
  return choir_var_repeat(scope, x, &attrs);
}

// y by way of all weights: for devices without a kernel of attention.
static choir_var_t* attend_by_parts(choir_scope_t* scope, choir_var_t* query,
                                    choir_var_t* key, choir_var_t* value,
                                    choir_var_t* mask,
                                    const choir_attention_attrs_t* attrs) {
  const choir_view_t* view = choir_var_view(query);
  if (!view) return query;
  const choir_scale_attrs_t scale = {.factor = 1 / sqrt((double)view->shape[3]),
                                     .shift = 0};
  key = for_all_heads(scope, key, view->shape[1]);
  value = for_all_heads(scope, value, view->shape[1]);
  const choir_matmul_attrs_t with_transpose = {.transpose_b = true};
  choir_var_t* scores = choir_var_matmul(
      scope, choir_var_scale(scope, query, &scale), key, &with_transpose);
  choir_var_t* weights =
      choir_var_softmax(scope, mask_scores(scope, scores, mask, attrs->causal));
  if (attrs->dropout > 0) {
    const choir_dropout_attrs_t dropout = {.ratio = attrs->dropout,
                                           .seed = attrs->seed,
                                           .stream = attrs->stream,
                                           .step = attrs->step,
                                           .first_sample = attrs->first_sample};
    weights = choir_var_dropout(scope, weights, &dropout);
  }
  return choir_var_matmul(scope, weights, value, NULL);
}

static choir_var_t* attend(choir_scope_t* scope, choir_layer_t* layer,
                           choir_var_t* query, choir_var_t* key,
                           choir_var_t* value, choir_var_t* mask) {
  const choir_multi_head_attention_config_t* config = layer->config;
  const choir_step_t* step = choir_scope_step(scope);
  const int64_t stream = choir__layer_dropout_stream(scope);
  const choir_attention_attrs_t attrs = {
      .causal = config->causal,
      .dropout = step->training ? config->dropout : 0,
      .seed = step->seed,
      .stream = stream,
      .step = step->step,
      .first_sample = step->first_sample};
  choir_var_t* const vars[] = {query, key, value, mask};
  const int32_t count = mask ? 4 : 3;
  choir_tensor_t* srcs[4];
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {NULL};
  bool has_kernel = true;
  for (int32_t i = 0; i < count; ++i) {
    srcs[i] = choir_var_tensor(vars[i]);
    has_kernel = has_kernel && srcs[i];
  }
  has_kernel = has_kernel && choir__op_has_kernel(choir_scope_device(scope),
                                                  CHOIR_OP_ATTENTION, srcs,
                                                  count, &attrs, false, dsts);
  return has_kernel ? choir_var_attention(scope, vars, count, &attrs)
                    : attend_by_parts(scope, query, key, value, mask, &attrs);
}

// The rows of query are those behind what the cache holds. Here no device goes
// by way of all weights.
static choir_var_t* attend_cached(choir_scope_t* scope, choir_layer_t* layer,
                                  const sources_t* s, choir_var_t* query,
                                  choir_var_t* key, choir_var_t* value) {
  const choir_multi_head_attention_config_t* config = layer->config;
  choir_kv_cache_t* cache = choir_scope_step(scope)->cache;
  if (!config->causal || s->mask || s->key != s->query || s->value != s->query)
    return choir_scope_fail(
        scope, CHOIR_ERROR(FAILED_PRECONDITION,
                           "%s (multi_head_attention): keys can be kept where "
                           "it is causal, without a mask, and all keys and "
                           "values come of its one input",
                           layer->name));
  const choir_attention_attrs_t attrs = {.causal = true,
                                         .offset = choir_kv_cache_count(cache)};
  choir_var_t* const vars[] = {
      query, choir__kv_cache_append(cache, scope, layer, 0, key),
      choir__kv_cache_append(cache, scope, layer, 1, value)};
  return choir_var_attention(scope, vars, 3, &attrs);
}

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const choir_multi_head_attention_config_t* config = layer->config;
  const sources_t s = sources_of(inputs);
  choir_layer_t* const* children = layer->children;
  const choir_view_t* x = choir_var_view(s.query);
  const int64_t heads = config->num_heads, served = kv_heads(layer);
  choir_var_t* query =
      split(scope, choir_layer_forward(scope, children[QUERY], s.query), heads);
  choir_var_t* key =
      split(scope, choir_layer_forward(scope, children[KEY], s.key), served);
  choir_var_t* value = split(
      scope, choir_layer_forward(scope, children[VALUE], s.value), served);
  query = turn(scope, layer, query);
  key = turn(scope, layer, key);
  choir_var_t* heads_out =
      swap_heads(scope, choir_scope_step(scope)->cache
                            ? attend_cached(scope, layer, &s, query, key, value)
                            : attend(scope, layer, query, key, value, s.mask));
  const choir_reshape_attrs_t joined = {
      .ndim = 3,
      .shape = {x->shape[0], x->shape[1], heads * value_dim(layer, x)}};
  return choir_layer_forward(scope, children[OUT],
                             choir_var_reshape(scope, heads_out, &joined));
}

CHOIR_LAYER_DEFINE(multi_head_attention, CHOIR_MULTI_HEAD_ATTENTION_FIELDS,
                   "multi-head attention", .max_inputs = 4, .build = build,
                   .forward = forward, .keeps_places = true);
