// SPDX-License-Identifier: Apache-2.0
// Buckets: which parameter's gradient is in which, and where in it.
#include <stdio.h>

#include "dist/dist_opt_parts_internal.h"

// Gradients start on cache lines, so that no two are written to one line.
static int64_t padded(int64_t count, choir_dtype_t dtype) {
  const int64_t line = 64 / (int64_t)choir_dtype_bytes(dtype);
  return (count + line - 1) / line * line;
}

// From the last parameter to the first: which bucket, and how large it gets.
int32_t choir__buckets_assign(const choir_param_set_t* params,
                              int64_t bucket_bytes, int32_t size,
                              choir__bucket_t* buckets,
                              choir__place_t* places) {
  choir__bucket_t* bucket = NULL;
  int32_t count = 0;
  for (size_t i = params->count; i-- > 0;) {
    const choir_param_t* param = params->params[i];
    places[i].bucket = -1;
    if (!param->trainable) continue;
    const choir_dtype_t dtype = choir_tensor_dtype(param->value);
    const int64_t bytes =
        bucket ? bucket->count * (int64_t)choir_dtype_bytes(bucket->dtype) : 0;
    if (!bucket || bucket->dtype != dtype || bytes >= bucket_bytes) {
      bucket = &buckets[count];
      bucket->dtype = dtype;
      snprintf(bucket->name, sizeof bucket->name, "gradient bucket %d",
               count++);
    }
    places[i] = (choir__place_t){count - 1, bucket->count};
    bucket->count += padded(choir_tensor_count(param->value), dtype);
    ++bucket->param_count;
  }
  for (int32_t b = 0; b < count; ++b) {
    bucket = &buckets[b];
    bucket->part = padded((bucket->count + size - 1) / size, bucket->dtype);
  }
  return count;
}

// Of the axis whose elements are furthest apart.
static int64_t rows_of(const choir_view_t* view) {
  int64_t rows = 1;
  int64_t stride = 0;
  for (int32_t axis = 0; axis < view->ndim; ++axis) {
    if (view->shape[axis] == 1 || view->strides[axis] <= stride) continue;
    stride = view->strides[axis];
    rows = view->shape[axis];
  }
  return rows;
}

int64_t choir__bucket_part_of(const choir__bucket_t* bucket, int32_t rank,
                              int64_t offset, int64_t count,
                              int64_t* out_start) {
  int64_t begin = rank * bucket->part - offset;
  int64_t end = begin + bucket->part;
  if (begin < 0) begin = 0;
  if (end > count) end = count;
  *out_start = begin < end ? begin : 0;
  return begin < end ? end - begin : 0;
}

static choir_status_t place_gradients(choir_dist_opt_t* dist) {
  choir_strategy_piece_t* piece = dist->pieces;
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    choir__bucket_t* bucket = &dist->buckets[b];
    CHOIR_TRY(choir_event_create(dist->device, &bucket->ready));
    CHOIR_TRY(choir_comm_buffer_create(dist->comm, dist->device,
                                       (size_t)choir_comm_size(dist->comm) *
                                           (size_t)bucket->part *
                                           choir_dtype_bytes(bucket->dtype),
                                       &bucket->buffer));
    choir_strategy_bucket_t* shown = &dist->strategy_buckets[b];
    *shown = (choir_strategy_bucket_t){.name = bucket->name,
                                       .dtype = bucket->dtype,
                                       .count = bucket->count,
                                       .pieces = piece};
    for (size_t i = dist->params->count; i-- > 0;) {
      if (dist->places[i].bucket != b) continue;
      const int64_t offset = dist->places[i].offset;
      choir_param_t* param = dist->params->params[i];
      choir_view_t view = *choir_tensor_view(param->value);
      *piece++ = (choir_strategy_piece_t){.offset = offset,
                                          .count = choir_view_count(&view),
                                          .rows = rows_of(&view)};
      dist->values[dist->value_count++] = param->value;
      ++shown->piece_count;
      view.buffer = bucket->buffer;
      view.offset = offset;
      choir_tensor_t* grad = NULL;
      CHOIR_TRY(choir_tensor_from_view(&view, &grad));
      choir_param_use_grad(param, grad);
      choir_tensor_release(grad);
    }
  }
  return NULL;
}

static choir_status_t make_passes(choir_dist_opt_t* dist) {
  if (dist->config.backward_passes_per_step == 1) return NULL;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    CHOIR_TRY(choir__passes_create(dist->allocator, &dist->strategy_buckets[b],
                                   &dist->buckets[b].passes));
  return NULL;
}

static choir_status_t allocate_lists(choir_dist_opt_t* dist) {
  const size_t count = dist->params->count;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(choir__bucket_t),
                           "buckets", &memory));
  dist->buckets = memory;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(choir__place_t),
                           "bucket map", &memory));
  dist->places = memory;
  CHOIR_TRY(choir_allocate(dist->allocator,
                           count * sizeof(choir_strategy_bucket_t),
                           "buckets for the strategy", &memory));
  dist->strategy_buckets = memory;
  CHOIR_TRY(choir_allocate(dist->allocator,
                           count * sizeof(choir_strategy_piece_t),
                           "places of parameters", &memory));
  dist->pieces = memory;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(choir_tensor_t*),
                           "parameters of buckets", &memory));
  dist->values = memory;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(choir_trace_value_t),
                           "traced parameters", &memory));
  dist->traced = memory;
  return NULL;
}

void choir__buckets_drop(choir_dist_opt_t* dist) {
  if (!dist->params) return;  // never laid out, or dropped before
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    choir__passes_destroy(dist->allocator, dist->buckets[b].passes);
    choir_buffer_release(dist->buckets[b].buffer);
    choir_buffer_release(dist->buckets[b].values);
    choir_buffer_release(dist->buckets[b].second);
    choir_event_release(dist->buckets[b].ready);
  }
  choir_deallocate(dist->allocator, dist->buckets,
                   dist->params->count * sizeof(choir__bucket_t));
  choir_deallocate(dist->allocator, dist->places,
                   dist->params->count * sizeof(choir__place_t));
  choir_deallocate(dist->allocator, dist->strategy_buckets,
                   dist->params->count * sizeof(choir_strategy_bucket_t));
  choir_deallocate(dist->allocator, dist->pieces,
                   dist->params->count * sizeof(choir_strategy_piece_t));
  dist->buckets = NULL;
  dist->places = NULL;
  dist->strategy_buckets = NULL;
  dist->pieces = NULL;
  choir_deallocate(dist->allocator, dist->values,
                   dist->params->count * sizeof(choir_tensor_t*));
  choir_deallocate(dist->allocator, dist->traced,
                   dist->params->count * sizeof(choir_trace_value_t));
  dist->values = NULL;
  dist->traced = NULL;
  dist->value_count = 0;
  dist->bucket_count = 0;
}

choir_status_t choir__buckets_lay_out(choir_dist_opt_t* dist) {
  CHOIR_TRY(allocate_lists(dist));
  dist->bucket_count = choir__buckets_assign(
      dist->params, dist->config.bucket_bytes, choir_comm_size(dist->comm),
      dist->buckets, dist->places);
  CHOIR_TRY(place_gradients(dist));
  return make_passes(dist);
}
