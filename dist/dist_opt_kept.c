// SPDX-License-Identifier: Apache-2.0
#include "dist/dist_opt_kept_internal.h"

#include <string.h>

#include "core/device_backend.h"
#include "opt/optimizer_def.h"

#define LINE ((int64_t)(64 / sizeof(float)))

typedef struct kept_state_s {
  choir__late_fill_t late;
  choir__kept_t* kept;
  choir_tensor_t* tensor;  // the optimizer's
  int32_t number;          // of its parameter's states
  int32_t bucket;
  int64_t piece;  // where the parameter starts in the bucket
} kept_state_t;

struct choir__kept_s {
  choir_allocator_t allocator;
  choir_comm_t* comm;
  const choir_strategy_bucket_t* buckets;  // borrowed
  int32_t bucket_count;
  kept_state_t* states;
  size_t state_room;
  size_t state_count;
  int32_t numbers;  // most states of a parameter
  // [size][bucket_count]: where the rank keeps element 0 of a bucket, if it
  // were of its part, floats from the start of its states of one number.
  int64_t* bases;
  int64_t room;  // floats for the states of one number
  choir_buffer_t* region;
  int64_t start;
  void* const* regions;
};

void choir__sharded_part(int64_t count, int32_t rank, int32_t size,
                         int64_t* out_begin, int64_t* out_end) {
  int64_t first, lines;
  choir_comm_share((count + LINE - 1) / LINE, rank, size, &first, &lines);
  *out_begin = first * LINE;
  *out_end = (first + lines) * LINE;
}

// ---- Where elements are ----

static int64_t place_of(const choir__kept_t* kept, int32_t rank, int32_t number,
                        int32_t bucket, int64_t at) {
  return kept->start + number * kept->room +
         kept->bases[(int64_t)rank * kept->bucket_count + bucket] + at;
}

static void lay_out(choir__kept_t* kept) {
  const int32_t size = choir_comm_size(kept->comm);
  int64_t* base = kept->bases;
  for (int32_t rank = 0; rank < size; ++rank) {
    int64_t used = 0;
    for (int32_t b = 0; b < kept->bucket_count; ++b, ++base) {
      int64_t begin, end;
      choir__sharded_part(kept->buckets[b].count, rank, size, &begin, &end);
      *base = used - begin;
      used += end - begin;
    }
    if (used > kept->room) kept->room = used;
  }
}

// Elements of the state that a rank keeps: there, and in the whole tensor.
typedef struct kept_elements_s {
  float* there;
  float* whole;
  size_t bytes;
} kept_elements_t;

static kept_elements_t elements_of(const kept_state_t* state, int32_t rank,
                                   void* data) {
  const choir__kept_t* kept = state->kept;
  const choir_view_t* view = choir_tensor_view(state->tensor);
  int64_t from, to;
  choir__sharded_part(kept->buckets[state->bucket].count, rank,
                      choir_comm_size(kept->comm), &from, &to);
  const int64_t end = state->piece + choir_view_count(view);
  if (from < state->piece) from = state->piece;
  if (to > end) to = end;
  if (from >= to) return (kept_elements_t){0};
  return (kept_elements_t){
      .there = (float*)kept->regions[rank] +
               place_of(kept, rank, state->number, state->bucket, from),
      .whole = (float*)data + view->offset + (from - state->piece),
      .bytes = (size_t)(to - from) * sizeof(float)};
}

static void fill_state(void* self, void* data) {
  const kept_state_t* state = self;
  for (int32_t r = 0; r < choir_comm_size(state->kept->comm); ++r) {
    const kept_elements_t elements = elements_of(state, r, data);
    if (elements.bytes) memcpy(elements.whole, elements.there, elements.bytes);
  }
}

static choir_buffer_t* buffer_of(const kept_state_t* state) {
  return choir_tensor_view(state->tensor)->buffer;
}

// A look fills what is due.
void choir__kept_fill(choir__kept_t* kept) {
  for (size_t i = 0; i < kept->state_count; ++i)
    (void)choir_buffer_data(buffer_of(&kept->states[i]));
}

void choir__kept_take(choir__kept_t* kept) {
  for (size_t i = 0; i < kept->state_count; ++i) {
    kept_state_t* state = &kept->states[i];
    if (atomic_load(&state->late.is_due)) continue;
    const kept_elements_t elements =
        elements_of(state, choir_comm_rank(kept->comm),
                    choir_buffer_data(buffer_of(state)));
    if (elements.bytes) memcpy(elements.there, elements.whole, elements.bytes);
  }
}

void choir__kept_put_off(choir__kept_t* kept) {
  for (size_t i = 0; i < kept->state_count; ++i)
    atomic_store(&kept->states[i].late.is_due, true);
}

// ---- Life ----

static void add_states(choir__kept_t* kept, const choir_dist_opt_t* dist,
                       const choir_param_t* param, int32_t bucket,
                       int64_t piece) {
  choir_tensor_t* const* tensors = NULL;
  const int32_t count =
      choir__optimizer_states_of(dist->optimizer, param, &tensors);
  if (count > kept->numbers) kept->numbers = count;
  for (int32_t k = 0; k < count; ++k) {
    kept_state_t* state = &kept->states[kept->state_count++];
    *state = (kept_state_t){.late = {.fill = fill_state, .self = state},
                            .kept = kept,
                            .tensor = tensors[k],
                            .number = k,
                            .bucket = bucket,
                            .piece = piece};
    choir_tensor_retain(state->tensor);
  }
}

static choir_status_t fill(choir__kept_t* kept, const choir_dist_opt_t* dist) {
  const size_t places =
      (size_t)choir_comm_size(kept->comm) * (size_t)kept->bucket_count;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(kept->allocator, places * sizeof(int64_t),
                           "places of kept states", &memory));
  kept->bases = memory;
  kept->state_room = choir_optimizer_states(dist->optimizer, NULL);
  CHOIR_TRY(choir_allocate(kept->allocator,
                           kept->state_room * sizeof(kept_state_t),
                           "kept states", &memory));
  kept->states = memory;
  for (int32_t b = 0; b < kept->bucket_count; ++b) {
    int32_t piece = 0;
    for (size_t i = dist->params->count; i-- > 0;)
      if (dist->bucket_of[i] == b)
        add_states(kept, dist, dist->params->params[i], b,
                   kept->buckets[b].pieces[piece++].offset);
  }
  lay_out(kept);
  return NULL;
}

choir_status_t choir__kept_create(const choir_dist_opt_t* dist,
                                  choir__kept_t** out_kept) {
  *out_kept = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, sizeof(choir__kept_t),
                           "kept states", &memory));
  choir__kept_t* kept = memory;
  kept->allocator = dist->allocator;
  kept->comm = dist->comm;
  kept->buckets = dist->strategy_buckets;
  kept->bucket_count = dist->bucket_count;
  choir_status_t status = fill(kept, dist);
  if (status)
    choir__kept_destroy(kept);
  else
    *out_kept = kept;
  return status;
}

void choir__kept_destroy(choir__kept_t* kept) {
  if (!kept) return;
  const choir_allocator_t allocator = kept->allocator;
  for (size_t i = 0; i < kept->state_count; ++i) {
    choir__buffer_set_late_fill(buffer_of(&kept->states[i]), NULL);
    choir_tensor_release(kept->states[i].tensor);
  }
  choir_deallocate(allocator, kept->states,
                   kept->state_room * sizeof(kept_state_t));
  choir_deallocate(allocator, kept->bases,
                   (size_t)choir_comm_size(kept->comm) *
                       (size_t)kept->bucket_count * sizeof(int64_t));
  choir_deallocate(allocator, kept, sizeof(*kept));
}

int64_t choir__kept_count(const choir__kept_t* kept) {
  return kept->numbers * kept->room;
}

void choir__kept_place(choir__kept_t* kept, choir_buffer_t* region,
                       int64_t start, void* const* regions) {
  kept->region = region;
  kept->start = start;
  kept->regions = regions;
  for (size_t i = 0; i < kept->state_count; ++i)
    choir__buffer_set_late_fill(buffer_of(&kept->states[i]),
                                &kept->states[i].late);
}

choir_status_t choir__kept_stretch(const choir__kept_t* kept, int32_t bucket,
                                   int64_t at, int64_t count,
                                   int32_t state_count,
                                   choir_tensor_t** out_states) {
  choir_view_t view;
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 1, &count, &view));
  view.buffer = kept->region;
  choir_status_t status = NULL;
  for (int32_t k = 0; k < state_count && !status; ++k) {
    view.offset = place_of(kept, choir_comm_rank(kept->comm), k, bucket, at);
    status = choir_tensor_from_view(&view, &out_states[k]);
  }
  return status;
}
