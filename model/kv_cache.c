// SPDX-License-Identifier: Apache-2.0
#include "model/kv_cache.h"

#include <string.h>

#include "model/kv_cache_internal.h"
#include "model/layer_def.h"
#include "model/model_internal.h"

// One for each time that forward runs the layer.
typedef struct entry_s {
  struct entry_s* next;
  const choir_layer_t* layer;  // its model is retained
  choir_tensor_t* rows[2];     // of keys and values (n, heads, places, d)
  bool has_come[2];            // the places that come now
} entry_t;

struct choir_kv_cache_s {
  choir_device_t* device;
  choir_model_t* model;  // NULL: of layers without one
  choir_allocator_t allocator;
  int64_t samples;
  int64_t places;
  int64_t count;
  int64_t coming;  // places of the step that runs
  entry_t* entries;
};

choir_status_t choir_kv_cache_create_alone(choir_device_t* device,
                                           int64_t samples, int64_t places,
                                           choir_kv_cache_t** out_cache) {
  *out_cache = NULL;
  if (samples < 1 || places < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "kv_cache: %lld samples of %lld places; needs 1 of "
                       "each or more",
                       (long long)samples, (long long)places);
  choir_allocator_t allocator = choir_device_allocator(device);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(allocator, sizeof(choir_kv_cache_t), "kv_cache", &memory));
  choir_kv_cache_t* cache = memory;
  cache->allocator = allocator;
  cache->samples = samples;
  cache->places = places;
  cache->device = device;
  choir_device_retain(device);
  *out_cache = cache;
  return NULL;
}

choir_status_t choir_kv_cache_create(choir_model_t* model, int64_t samples,
                                     int64_t places,
                                     choir_kv_cache_t** out_cache) {
  CHOIR_TRY(choir_kv_cache_create_alone(choir_model_device(model), samples,
                                        places, out_cache));
  (*out_cache)->model = model;
  choir_model_retain(model);
  return NULL;
}

void choir_kv_cache_destroy(choir_kv_cache_t* cache) {
  if (!cache) return;
  while (cache->entries) {
    entry_t* entry = cache->entries;
    cache->entries = entry->next;
    for (int32_t i = 0; i < 2; ++i) choir_tensor_release(entry->rows[i]);
    choir_model_release(entry->layer->model);
    choir_deallocate(cache->allocator, entry, sizeof(*entry));
  }
  choir_model_t* model = cache->model;
  choir_device_t* device = cache->device;
  choir_deallocate(cache->allocator, cache, sizeof(*cache));
  choir_model_release(model);
  choir_device_release(device);
}

int64_t choir_kv_cache_count(const choir_kv_cache_t* cache) {
  return cache->count;
}

void choir_kv_cache_keep(choir_kv_cache_t* cache, int64_t count) {
  if (count >= 0 && count < cache->count) cache->count = count;
}

// The first one whose places did not come yet.
static choir_status_t find(choir_kv_cache_t* cache, const choir_layer_t* layer,
                           int32_t which, entry_t** out_entry) {
  entry_t** at = &cache->entries;
  while (*at && ((*at)->layer != layer || (*at)->has_come[which]))
    at = &(*at)->next;
  if (!*at) {
    void* memory = NULL;
    CHOIR_TRY(
        choir_allocate(cache->allocator, sizeof(entry_t), "kv_cache", &memory));
    *at = memory;
    (*at)->layer = layer;
    choir_model_retain(layer->model);
  }
  (*at)->has_come[which] = true;
  *out_entry = *at;
  return NULL;
}

// Zeros: what no row sees must be a number.
static choir_status_t make_rows(const choir_kv_cache_t* cache,
                                const choir_view_t* x,
                                choir_tensor_t** out_rows) {
  choir_device_t* device = cache->device;
  const int64_t shape[] = {cache->samples, x->shape[1], cache->places,
                           x->shape[3]};
  const choir_fill_attrs_t zero = {.value = 0};
  choir_tensor_t* rows = NULL;
  CHOIR_TRY(choir_tensor_create(device, x->dtype, 4, shape, &rows));
  choir_status_t status =
      choir_op_run(choir_device_stream(device), CHOIR_OP_FILL, &rows, 1, &zero,
                   false, &rows);
  if (!status)
    *out_rows = rows;
  else
    choir_tensor_release(rows);
  return status;
}

static choir_status_t append(const choir_kv_cache_t* cache, choir_tensor_t* x,
                             choir_tensor_t** rows) {
  const choir_view_t* view = choir_tensor_view(x);
  if (view->shape[0] != cache->samples || view->shape[2] != cache->coming)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "kv_cache: keys of %lld places of %lld samples; the "
                       "input has %lld of %lld",
                       (long long)view->shape[2], (long long)view->shape[0],
                       (long long)cache->coming, (long long)cache->samples);
  if (!*rows) CHOIR_TRY(make_rows(cache, view, rows));
  choir_view_t place = *choir_tensor_view(*rows);
  place.shape[2] = view->shape[2];
  place.offset += cache->count * place.strides[2];
  choir_tensor_t* dst = NULL;
  CHOIR_TRY(choir_tensor_from_view(&place, &dst));
  choir_status_t status =
      choir_op_run(choir_device_stream(choir_tensor_device(x)), CHOIR_OP_COPY,
                   &x, 1, NULL, false, &dst);
  choir_tensor_release(dst);
  return status;
}

choir_var_t* choir__kv_cache_append(choir_kv_cache_t* cache,
                                    choir_scope_t* scope,
                                    const choir_layer_t* layer, int32_t which,
                                    choir_var_t* x) {
  choir_tensor_t* rows = choir_var_tensor(x);
  if (!rows) return x;  // something failed before
  entry_t* entry = NULL;
  choir_status_t status = find(cache, layer, which, &entry);
  if (!status) status = append(cache, rows, &entry->rows[which]);
  if (status) return choir_scope_fail(scope, status);
  return choir_scope_input(scope, entry->rows[which]);
}

choir_status_t choir_kv_cache_begin(choir_kv_cache_t* cache,
                                    const choir_tensor_t* x) {
  const int64_t* shape = choir_tensor_shape(x);
  if (choir_tensor_ndim(x) < 2 || shape[0] != cache->samples || shape[1] < 1 ||
      shape[1] > cache->places - cache->count) {
    char text[160];
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "predict_next: x is %s; the cache is of %lld samples "
        "and has room for %lld of its %lld places",
        choir_view_print(choir_tensor_view(x), text, sizeof(text)),
        (long long)cache->samples, (long long)(cache->places - cache->count),
        (long long)cache->places);
  }
  cache->coming = shape[1];
  for (entry_t* entry = cache->entries; entry; entry = entry->next)
    memset(entry->has_come, 0, sizeof(entry->has_come));
  return NULL;
}

void choir_kv_cache_end(choir_kv_cache_t* cache, bool is_done) {
  if (is_done) cache->count += cache->coming;
  cache->coming = 0;
}

choir_status_t choir_model_predict_next(choir_model_t* model,
                                        choir_kv_cache_t* cache,
                                        choir_tensor_t* x,
                                        choir_tensor_t** out_y) {
  *out_y = NULL;
  if (cache->model != model)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "predict_next: the cache is another model's");
  CHOIR_TRY(choir_kv_cache_begin(cache, x));
  choir_status_t status = choir__model_forward(model, cache, x, out_y);
  choir_kv_cache_end(cache, !status);
  CHOIR_TRY_NOTE(status, "predict_next");
  return NULL;
}
