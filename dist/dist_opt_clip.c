// SPDX-License-Identifier: Apache-2.0
// Limits of combined gradients. The norm is the all-reduced sum of what each
// rank has of its part of every bucket, also where every rank has everything:
// ranks on unlike processors then go on with the same number.
#include "core/trace_backend.h"
#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"
#include "tensor/tensor_def.h"

struct choir__clip_s {
  const choir_dist_opt_t* dist;  // borrowed
  choir_tensor_t* total;         // the sum of squares
  choir_tensor_t** owned;        // [params] of this rank's part; NULL: nothing
  choir_tensor_t** list;         // [params] scratch
};

static choir_status_t make_owned(const choir_dist_opt_t* dist, size_t index,
                                 choir_tensor_t** out_tensor) {
  const choir__place_t* place = &dist->places[index];
  if (place->bucket < 0) return NULL;
  choir_tensor_t* grad = dist->params->params[index]->grad;
  int64_t start;
  const int64_t count = choir__bucket_part_of(
      &dist->buckets[place->bucket], choir_comm_rank(dist->comm), place->offset,
      choir_tensor_count(grad), &start);
  return count > 0 ? choir__tensor_stretch(grad, start, count, out_tensor)
                   : NULL;
}

static choir_status_t fill(choir__clip_t* clip) {
  const choir_dist_opt_t* dist = clip->dist;
  const size_t bytes = dist->params->count * sizeof(choir_tensor_t*);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, 2 * bytes, "limits of gradients",
                           &memory));
  clip->owned = memory;
  clip->list = clip->owned + dist->params->count;
  for (size_t i = 0; i < dist->params->count; ++i) {
    CHOIR_TRY(make_owned(dist, i, &clip->owned[i]));
    if (!clip->total && dist->places[i].bucket >= 0)
      CHOIR_TRY(
          choir__clip_make_total(dist->params->params[i]->grad, &clip->total));
  }
  return NULL;
}

choir_status_t choir__clip_create(const choir_dist_opt_t* dist,
                                  choir__clip_t** out_clip) {
  *out_clip = NULL;
  if (!choir__clips(choir__optimizer_clip(dist->optimizer))) return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, sizeof(choir__clip_t),
                           "limits of gradients", &memory));
  choir__clip_t* clip = memory;
  clip->dist = dist;
  choir_status_t status = fill(clip);
  if (status)
    choir__clip_destroy(clip);
  else
    *out_clip = clip;
  return status;
}

void choir__clip_destroy(choir__clip_t* clip) {
  if (!clip) return;
  const choir_dist_opt_t* dist = clip->dist;
  const size_t count = dist->params->count;
  for (size_t i = 0; clip->owned && i < count; ++i)
    choir_tensor_release(clip->owned[i]);
  choir_tensor_release(clip->total);
  choir_deallocate(dist->allocator, clip->owned,
                   2 * count * sizeof(choir_tensor_t*));
  choir_deallocate(dist->allocator, clip, sizeof(*clip));
}

// Of parameters that are not frozen since: this rank's parts, or all of them.
static size_t list_grads(choir__clip_t* clip, bool is_owned) {
  const choir_dist_opt_t* dist = clip->dist;
  size_t count = 0;
  for (size_t i = 0; i < dist->params->count; ++i) {
    const choir_param_t* param = dist->params->params[i];
    if (!param->trainable || dist->places[i].bucket < 0) continue;
    choir_tensor_t* grad = is_owned ? clip->owned[i] : param->grad;
    if (grad) clip->list[count++] = grad;
  }
  return count;
}

static choir_status_t add_up(const choir__clip_t* clip,
                             choir_stream_t* stream) {
  const choir_strategy_t* strategy = clip->dist->strategy;
  const choir_view_t* view = choir_tensor_view(clip->total);
  void* data = choir_buffer_data(view->buffer);
  const choir_collective_t sum = {.kind = CHOIR_COLLECTIVE_ALL_REDUCE,
                                  .op = CHOIR_REDUCE_SUM,
                                  .dtype = view->dtype,
                                  .count = 1,
                                  .src = data,
                                  .dst = data,
                                  .weight = 1,
                                  .name = "norm of gradients"};
  const choir_trace_value_t traced = {"norm", *view};
  choir__trace_set_results(stream, &traced, 1);
  choir_status_t status = choir__strategy_submit_collective(
      strategy, clip->dist->device, stream, &sum);
  choir__dist_opt_trace_nothing(stream);
  return status;
}

choir_status_t choir__clip_submit(choir__clip_t* clip, bool is_owned,
                                  choir_stream_t* stream) {
  const choir_gradient_clip_t* limits =
      choir__optimizer_clip(clip->dist->optimizer);
  size_t count = list_grads(clip, is_owned);
  CHOIR_TRY(choir__clip_values(limits, stream, clip->list, count));
  if (!(limits->norm > 0)) return NULL;
  // With micro-shards every rank has all gradients, and the norm's bits follow
  // from them alone.
  const bool is_whole = clip->dist->has_sums;
  count = list_grads(clip, !is_whole);
  CHOIR_TRY(choir__clip_squares(stream, clip->list, count, clip->total));
  if (!is_whole) CHOIR_TRY(add_up(clip, stream));
  count = list_grads(clip, is_owned);
  return choir__clip_scale(limits, stream, clip->list, count, clip->total);
}
