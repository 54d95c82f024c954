// SPDX-License-Identifier: Apache-2.0
// States that differ from rank to rank: into one file, and out of it.
#include <stdio.h>
#include <string.h>

#include "core/allocator.h"
#include "core/status_backend.h"
#include "dist/dist_opt_internal.h"

// All elements of `tensor` in row-major memory, taken from `view`'s allocator.
typedef struct staging_s {
  void* data;
  size_t bytes;
} staging_t;

static choir_status_t staging_create(const choir__dist_opt_view_t* view,
                                     const choir_tensor_t* tensor,
                                     staging_t* out_staging) {
  *out_staging =
      (staging_t){.bytes = (size_t)choir_tensor_count(tensor) *
                           choir_dtype_bytes(choir_tensor_dtype(tensor))};
  return choir_allocate(view->allocator, out_staging->bytes,
                        "elements of a state", &out_staging->data);
}

static void staging_destroy(const choir__dist_opt_view_t* view,
                            staging_t* staging) {
  choir_deallocate(view->allocator, staging->data, staging->bytes);
}

static choir_status_t broadcast(const choir__dist_opt_view_t* view,
                                staging_t* staging, int32_t root,
                                const char* name) {
  return choir_comm_broadcast(view->comm, staging->data,
                              (int64_t)staging->bytes, CHOIR_DTYPE_U8, root,
                              name);
}

static choir_status_t create_like(const choir__dist_opt_view_t* view,
                                  const choir_tensor_t* tensor,
                                  choir_tensor_t** out_tensor) {
  return choir_tensor_create(view->device, choir_tensor_dtype(tensor),
                             choir_tensor_ndim(tensor),
                             choir_tensor_shape(tensor), out_tensor);
}

// What rank `rank`'s copy is called in a file. Returns its length.
static size_t print_name(int32_t rank, const char* name, char* text,
                         size_t text_bytes) {
  return (size_t)snprintf(text, text_bytes, "rank%d/%s", rank, name);
}

// ---- Gather ----

struct choir__rank_states_s {
  choir_allocator_t allocator;
  choir_arena_t* arena;  // names and the list
  choir_named_tensor_t* tensors;
  size_t count;
  size_t lent;  // of them the first
};

static choir_status_t no_memory(void) {
  return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a list of states");
}

static bool is_trained(const choir__dist_opt_view_t* view,
                       const choir_tensor_t* tensor) {
  for (size_t i = 0; i < view->params->count; ++i)
    if (view->params->params[i]->value == tensor)
      return view->params->params[i]->trainable;
  return false;
}

// out_differing[i]: the first rank whose state i is not rank 0's; 0: none. The
// same on all ranks. `digests` has room for `count` of each rank.
static choir_status_t compare(const choir__dist_opt_view_t* view,
                              const choir_named_tensor_t* states, size_t count,
                              uint64_t* own, uint64_t* digests,
                              int32_t* out_differing) {
  for (size_t i = 0; i < count; ++i)
    CHOIR_TRY(choir_tensor_digest(&states[i], 1, &own[i]));
  CHOIR_TRY(choir_comm_all_gather(view->comm, own, digests, (int64_t)count,
                                  CHOIR_DTYPE_I64, "digests of states"));
  for (size_t i = 0; i < count; ++i) {
    for (int32_t rank = choir_comm_size(view->comm) - 1; rank > 0; --rank)
      if (digests[(size_t)rank * count + i] != digests[i])
        out_differing[i] = rank;
    if (out_differing[i] && is_trained(view, states[i].tensor))
      return choir__status_mark_shared(
          CHOIR_ERROR(FAILED_PRECONDITION,
                      "dist_opt: parameter %s of %s is not that of rank 0; "
                      "choir_updater_consolidate makes them equal",
                      states[i].name,
                      choir_comm_peer(view->comm, out_differing[i])),
          view->comm);
  }
  return NULL;
}

// Rank 0 lists a copy of what came from `rank`.
static choir_status_t add_copy(const choir__dist_opt_view_t* view,
                               choir__rank_states_t* gathered,
                               const choir_named_tensor_t* state, int32_t rank,
                               const staging_t* staging) {
  const size_t bytes = print_name(rank, state->name, NULL, 0) + 1;
  char* name = choir_arena_alloc(gathered->arena, bytes);
  if (!name) return no_memory();
  print_name(rank, state->name, name, bytes);
  choir_tensor_t* copy = NULL;
  CHOIR_TRY(create_like(view, state->tensor, &copy));
  gathered->tensors[gathered->count++] = (choir_named_tensor_t){name, copy};
  return choir_tensor_write(copy, staging->data, staging->bytes);
}

static choir_status_t gather_state(const choir__dist_opt_view_t* view,
                                   choir__rank_states_t* gathered,
                                   const choir_named_tensor_t* state,
                                   staging_t* staging) {
  const int32_t own = choir_comm_rank(view->comm);
  for (int32_t rank = 1; rank < choir_comm_size(view->comm); ++rank) {
    if (rank == own)
      CHOIR_TRY(
          choir_tensor_read(state->tensor, staging->data, staging->bytes));
    CHOIR_TRY(broadcast(view, staging, rank, state->name));
    if (own == 0) CHOIR_TRY(add_copy(view, gathered, state, rank, staging));
  }
  return NULL;
}

static choir_status_t gather(const choir__dist_opt_view_t* view,
                             choir__rank_states_t* gathered,
                             const choir_named_tensor_t* states, size_t count) {
  const size_t size = (size_t)choir_comm_size(view->comm);
  uint64_t* digests =
      choir_arena_alloc(gathered->arena, (size + 1) * count * sizeof(uint64_t));
  int32_t* differing =
      choir_arena_alloc(gathered->arena, count * sizeof(int32_t));
  gathered->tensors = choir_arena_alloc(
      gathered->arena, size * count * sizeof(choir_named_tensor_t));
  if (!digests || !differing || !gathered->tensors) return no_memory();
  memset(differing, 0, count * sizeof(int32_t));
  CHOIR_TRY(
      compare(view, states, count, digests + size * count, digests, differing));
  if (choir_comm_rank(view->comm) == 0) {
    memcpy(gathered->tensors, states, count * sizeof(choir_named_tensor_t));
    gathered->count = count;
    gathered->lent = count;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!differing[i]) continue;
    staging_t staging;
    CHOIR_TRY(staging_create(view, states[i].tensor, &staging));
    choir_status_t status = gather_state(view, gathered, &states[i], &staging);
    staging_destroy(view, &staging);
    CHOIR_TRY(status);
  }
  return NULL;
}

static choir_status_t rank_states_create(choir_allocator_t allocator,
                                         choir__rank_states_t** out_gathered) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir__rank_states_t),
                           "states of ranks", &memory));
  choir__rank_states_t* gathered = memory;
  gathered->allocator = allocator;
  *out_gathered = gathered;
  return choir_arena_create(allocator, 4096, &gathered->arena);
}

choir_status_t choir__dist_opt_gather_states(
    choir_dist_opt_t* dist_opt, const choir_named_tensor_t* states,
    size_t count, choir__rank_states_t** out_gathered) {
  *out_gathered = NULL;
  choir__dist_opt_view_t view;
  CHOIR_TRY(choir__dist_opt_settle(dist_opt, "gather_states", &view));
  choir__rank_states_t* gathered = NULL;
  choir_status_t status = rank_states_create(view.allocator, &gathered);
  if (!status) status = gather(&view, gathered, states, count);
  status = choir__agree_on_outcome(view.comm, "gather_states", status);
  if (status)
    choir__rank_states_destroy(gathered);
  else
    *out_gathered = gathered;
  return status;
}

const choir_named_tensor_t* choir__rank_states_list(
    const choir__rank_states_t* gathered, size_t* out_count) {
  *out_count = gathered->count;
  return gathered->tensors;
}

void choir__rank_states_destroy(choir__rank_states_t* gathered) {
  if (!gathered) return;
  for (size_t i = gathered->lent; i < gathered->count; ++i)
    choir_tensor_release(gathered->tensors[i].tensor);
  choir_arena_destroy(gathered->arena);
  choir_deallocate(gathered->allocator, gathered, sizeof(*gathered));
}

// ---- Distribute ----

typedef struct reader_s {
  choir__state_read_t read;
  void* self;
} reader_t;

// Reads rank `rank`'s copy; tensor NULL: only looks for it.
static choir_status_t read_copy(const reader_t* reader, const char* name,
                                int32_t rank, choir_tensor_t* tensor,
                                bool* out_found) {
  *out_found = false;
  if (rank == 0) return reader->read(reader->self, name, tensor, out_found);
  char text[512];
  print_name(rank, name, text, sizeof text);
  return reader->read(reader->self, text, tensor, out_found);
}

// How many ranks `name` was saved for; looks no further than one beyond size.
static choir_status_t count_copies(const reader_t* reader, const char* name,
                                   int32_t size, int32_t* out_count) {
  bool found = true;
  *out_count = 0;
  while (*out_count <= size) {
    CHOIR_TRY(read_copy(reader, name, *out_count, NULL, &found));
    if (!found) return NULL;
    ++*out_count;
  }
  return NULL;
}

choir_status_t choir__check_copies(const choir_named_tensor_t* states,
                                   size_t count, int32_t size,
                                   choir__state_read_t read, void* self,
                                   uint8_t* out_has_own) {
  const reader_t reader = {read, self};
  for (size_t i = 0; i < count; ++i) {
    int32_t saved = 0;
    CHOIR_TRY(count_copies(&reader, states[i].name, size, &saved));
    if (saved == 0)
      return CHOIR_ERROR(NOT_FOUND, "there is no %s", states[i].name);
    if (saved != 1 && saved != size)
      return CHOIR_ERROR(
          FAILED_PRECONDITION,
          "%s was saved for each of %d workers%s and this run has %d; it needs "
          "as many as it was saved with",
          states[i].name, saved, saved > size ? " or more" : "", size);
    if (out_has_own) out_has_own[i] = saved > 1;
  }
  return NULL;
}

// Into `tensor`, on rank 0, and on into the staging.
static choir_status_t stage_copy(const reader_t* reader, const char* name,
                                 int32_t rank, choir_tensor_t* tensor,
                                 staging_t* staging) {
  bool found = false;
  CHOIR_TRY(read_copy(reader, name, rank, tensor, &found));
  if (!found) return CHOIR_ERROR(NOT_FOUND, "there is no %s any more", name);
  return choir_tensor_read(tensor, staging->data, staging->bytes);
}

// One copy for all, or one for each; `scratch` takes those of others on rank 0.
static choir_status_t distribute_state(const choir__dist_opt_view_t* view,
                                       const reader_t* reader,
                                       const choir_named_tensor_t* state,
                                       bool has_own, choir_tensor_t* scratch,
                                       staging_t* staging) {
  const int32_t own = choir_comm_rank(view->comm);
  const int32_t copies = has_own ? choir_comm_size(view->comm) : 1;
  for (int32_t rank = 0; rank < copies; ++rank) {
    if (own == 0)
      CHOIR_TRY(stage_copy(reader, state->name, rank,
                           rank == 0 ? state->tensor : scratch, staging));
    CHOIR_TRY(broadcast(view, staging, 0, state->name));
    if (own != 0 && (!has_own || rank == own))
      CHOIR_TRY(
          choir_tensor_write(state->tensor, staging->data, staging->bytes));
  }
  return NULL;
}

static choir_status_t distribute(const choir__dist_opt_view_t* view,
                                 const reader_t* reader,
                                 const choir_named_tensor_t* states,
                                 size_t count, uint8_t* has_own) {
  if (choir_comm_rank(view->comm) == 0)
    CHOIR_TRY(choir__check_copies(states, count, choir_comm_size(view->comm),
                                  reader->read, reader->self, has_own));
  CHOIR_TRY(choir_comm_broadcast(view->comm, has_own, (int64_t)count,
                                 CHOIR_DTYPE_U8, 0, "which states differ"));
  for (size_t i = 0; i < count; ++i) {
    staging_t staging;
    choir_tensor_t* scratch = NULL;
    CHOIR_TRY(staging_create(view, states[i].tensor, &staging));
    choir_status_t status = create_like(view, states[i].tensor, &scratch);
    if (!status)
      status = distribute_state(view, reader, &states[i], has_own[i], scratch,
                                &staging);
    choir_tensor_release(scratch);
    staging_destroy(view, &staging);
    CHOIR_TRY(status);
  }
  return NULL;
}

choir_status_t choir__dist_opt_distribute_states(
    choir_dist_opt_t* dist_opt, const choir_named_tensor_t* states,
    size_t count, choir__state_read_t read, void* self) {
  choir__dist_opt_view_t view;
  CHOIR_TRY(choir__dist_opt_settle(dist_opt, "distribute_states", &view));
  const reader_t reader = {read, self};
  void* has_own = NULL;
  choir_status_t status =
      choir_allocate(view.allocator, count, "list of states", &has_own);
  if (!status) status = distribute(&view, &reader, states, count, has_own);
  choir_deallocate(view.allocator, has_own, count);
  if (!status) status = choir__dist_opt_take_params(dist_opt);
  return choir__agree_on_outcome(view.comm, "distribute_states", status);
}
