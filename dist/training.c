// SPDX-License-Identifier: Apache-2.0
#include "dist/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/allocator.h"
#include "core/status_backend.h"
#include "dist/dist_opt_internal.h"
#include "model/updater_backend.h"

enum { NAME_BYTES = 512 };
// Of a place: counting on from it stays possible.
#define LAST_NUMBER (INT64_MAX / 2)

// What the file says of a run beside the caller's lines. Of the loader: all but
// the step. From SEED on they must be the same in the run that goes on.
enum { STEP, EPOCH, BATCH, SAMPLE, SEED, GLOBAL_BATCH, SAMPLES, NUMBERS };
static const char* const number_names[NUMBERS] = {
    "step", "epoch",        "batch",           "sample",
    "seed", "global batch", "training samples"};
typedef char number_text_t[24];

typedef struct run_s {
  const char* path;
  const choir_metadata_t* lines;
  size_t line_count;
  int64_t numbers[NUMBERS];
  int number_count;  // 1 or NUMBERS
  choir_updater_t* updater;
  choir_dist_opt_t* dist_opt;  // NULL: a lone updater
  choir__dist_opt_view_t view;
  int32_t rank;
  choir_named_tensor_t* states;  // [state_count]
  size_t state_count;
} run_t;

static choir_status_t run_init(choir_model_t* model,
                               const choir_loader_t* loader, const char* path,
                               const choir_metadata_t* lines, size_t line_count,
                               const char* call, run_t* out_run) {
  *out_run = (run_t){.path = path,
                     .lines = lines,
                     .line_count = line_count,
                     .numbers = {choir_model_step(model)},
                     .number_count = 1};
  if (loader) {
    const choir_loader_position_t place = choir_loader_position(loader);
    const choir_partition_t* partition = choir_loader_partition(loader);
    out_run->numbers[EPOCH] = place.epoch;
    out_run->numbers[BATCH] = place.step;
    out_run->numbers[SAMPLE] = place.sample;
    out_run->numbers[SEED] = choir_loader_seed(loader);
    out_run->numbers[GLOBAL_BATCH] = partition->global_batch;
    out_run->numbers[SAMPLES] = partition->sample_count;
    out_run->number_count = NUMBERS;
  }
  out_run->view.allocator = choir_allocator_default();
  out_run->updater = choir_model_updater(model);
  out_run->dist_opt = choir__dist_opt_from(out_run->updater);
  if (out_run->dist_opt) {
    CHOIR_TRY(choir__dist_opt_settle(out_run->dist_opt, call, &out_run->view));
    out_run->rank = choir_comm_rank(out_run->view.comm);
  }
  out_run->state_count = choir_model_states(model, NULL);
  void* memory = NULL;
  choir_status_t status = choir_allocate(
      out_run->view.allocator,
      out_run->state_count * sizeof(choir_named_tensor_t), call, &memory);
  out_run->states = memory;
  if (!status) choir_model_states(model, out_run->states);
  return status;
}

// Ends the call: the others hear of a failure of this rank.
static choir_status_t run_end(run_t* run, const char* call,
                              choir_status_t status) {
  choir_deallocate(run->view.allocator, run->states,
                   run->state_count * sizeof(choir_named_tensor_t));
  return run->view.comm ? choir__agree_on_outcome(run->view.comm, call, status)
                        : status;
}

static const char* print_number(int64_t number, number_text_t text) {
  snprintf(text, sizeof(number_text_t), "%" PRId64, number);
  return text;
}

// ---- States that differ from rank to rank ----

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

// What rank `rank`'s copy is called in a file.
static const char* copy_name(int32_t rank, const char* name,
                             char text[NAME_BYTES]) {
  if (rank == 0) return name;
  snprintf(text, NAME_BYTES, "rank%d/%s", rank, name);
  return text;
}

// The tensors of a file, each with a reference: those of the model, whole, and
// copies of others'.
typedef struct list_s {
  choir_arena_t* arena;  // names and the list
  choir_named_tensor_t* tensors;
  size_t count;
} list_t;

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
  for (size_t i = 0; i < count; ++i) {
    own[i] = 0;  // of a shard
    if (!states[i].shard)
      CHOIR_TRY(choir_tensor_digest(&states[i], 1, &own[i]));
  }
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
static choir_status_t add_copy(const choir__dist_opt_view_t* view, list_t* list,
                               const choir_named_tensor_t* state, int32_t rank,
                               const staging_t* staging) {
  char* name = choir_arena_alloc(list->arena, NAME_BYTES);
  if (!name) return no_memory();
  choir_tensor_t* copy = NULL;
  CHOIR_TRY(create_like(view, state->tensor, &copy));
  list->tensors[list->count++] = (choir_named_tensor_t){
      .name = copy_name(rank, state->name, name), .tensor = copy};
  return choir_tensor_write(copy, staging->data, staging->bytes);
}

static choir_status_t gather_state(const choir__dist_opt_view_t* view,
                                   list_t* list,
                                   const choir_named_tensor_t* state,
                                   staging_t* staging) {
  const int32_t own = choir_comm_rank(view->comm);
  for (int32_t rank = 1; rank < choir_comm_size(view->comm); ++rank) {
    if (rank == own)
      CHOIR_TRY(
          choir_tensor_read(state->tensor, staging->data, staging->bytes));
    CHOIR_TRY(broadcast(view, staging, rank, state->name));
    if (own == 0) CHOIR_TRY(add_copy(view, list, state, rank, staging));
  }
  return NULL;
}

// The states, whole, on rank `root`; on others none.
static choir_status_t list_wholes(const run_t* run, int32_t root,
                                  int32_t copies, list_t* list) {
  list->tensors =
      choir_arena_alloc(list->arena, (size_t)copies * run->state_count *
                                         sizeof(choir_named_tensor_t));
  if (!list->tensors) return no_memory();
  for (size_t i = 0; i < run->state_count; ++i) {
    choir_tensor_t* whole = NULL;
    CHOIR_TRY(
        choir_updater_gather(run->updater, &run->states[i], root, &whole));
    if (run->rank == root)
      list->tensors[list->count++] =
          (choir_named_tensor_t){.name = run->states[i].name, .tensor = whole};
    else
      choir_tensor_release(whole);
  }
  return NULL;
}

static choir_status_t gather(const run_t* run, list_t* list) {
  const choir__dist_opt_view_t* view = &run->view;
  const choir_named_tensor_t* states = run->states;
  const size_t count = run->state_count;
  const size_t size = (size_t)choir_comm_size(view->comm);
  uint64_t* digests =
      choir_arena_alloc(list->arena, (size + 1) * count * sizeof(uint64_t));
  int32_t* differing = choir_arena_alloc(list->arena, count * sizeof(int32_t));
  if (!digests || !differing) return no_memory();
  memset(differing, 0, count * sizeof(int32_t));
  CHOIR_TRY(
      compare(view, states, count, digests + size * count, digests, differing));
  CHOIR_TRY(list_wholes(run, 0, (int32_t)size, list));
  for (size_t i = 0; i < count; ++i) {
    if (!differing[i]) continue;
    staging_t staging;
    CHOIR_TRY(staging_create(view, states[i].tensor, &staging));
    choir_status_t status = gather_state(view, list, &states[i], &staging);
    staging_destroy(view, &staging);
    CHOIR_TRY(status);
  }
  return NULL;
}

// ---- Save ----

static choir_status_t write_file(const run_t* run,
                                 const choir_named_tensor_t* states,
                                 size_t count) {
  number_text_t texts[NUMBERS];
  const size_t line_count = (size_t)run->number_count + run->line_count;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(run->view.allocator,
                           line_count * sizeof(choir_metadata_t), "lines",
                           &memory));
  choir_metadata_t* lines = memory;
  for (int i = 0; i < run->number_count; ++i)
    lines[i] = (choir_metadata_t){number_names[i],
                                  print_number(run->numbers[i], texts[i])};
  for (size_t i = 0; i < run->line_count; ++i)
    lines[run->number_count + i] = run->lines[i];
  choir_status_t status =
      choir_checkpoint_save(run->path, states, count, lines, line_count);
  choir_deallocate(run->view.allocator, memory,
                   line_count * sizeof(choir_metadata_t));
  return status;
}

// Of all ranks on rank 0, or of this one.
static choir_status_t write_list(const run_t* run, bool of_all) {
  list_t list = {0};
  choir_status_t status =
      choir_arena_create(run->view.allocator, 4096, &list.arena);
  if (!status)
    status =
        of_all ? gather(run, &list) : list_wholes(run, run->rank, 1, &list);
  if (!status && (!of_all || run->rank == 0))
    status = write_file(run, list.tensors, list.count);
  for (size_t i = 0; i < list.count; ++i)
    choir_tensor_release(list.tensors[i].tensor);
  choir_arena_destroy(list.arena);
  return status;
}

choir_status_t choir_training_save(choir_model_t* model,
                                   const choir_loader_t* loader,
                                   const char* path,
                                   const choir_metadata_t* lines,
                                   size_t line_count) {
  run_t run;
  choir_status_t status =
      run_init(model, loader, path, lines, line_count, "save", &run);
  const bool is_collective =
      run.dist_opt && choir_dist_opt_ranks_differ(run.dist_opt);
  if (!is_collective) run.view.comm = NULL;  // the others are elsewhere
  if (!status && (is_collective || path))
    status = write_list(&run, is_collective);
  return run_end(&run, "save", status);
}

// ---- Resume ----

static choir_status_t check_line(const run_t* run,
                                 const choir_checkpoint_t* file,
                                 const char* key, const char* own) {
  const char* saved = choir_checkpoint_metadata(file, key);
  if (saved && strcmp(saved, own) == 0) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "resume: %s was saved with %s %s, this run has %s; both "
                     "must be the same",
                     run->path, key, saved ? saved : "(none)", own);
}

// Files of earlier versions have no "batch", or no "sample".
static choir_status_t read_number(run_t* run, const choir_checkpoint_t* file,
                                  int which) {
  const char* text = choir_checkpoint_metadata(file, number_names[which]);
  char* end = NULL;
  if (which == BATCH || which == SAMPLE) run->numbers[which] = 0;
  if (!text && which != EPOCH) return NULL;
  run->numbers[which] = text ? strtoll(text, &end, 10) : -1;
  if (!text || end == text || *end || run->numbers[which] < 0 ||
      run->numbers[which] > LAST_NUMBER)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "resume: %s has %s '%s'; a number from 0 is needed",
                       run->path, number_names[which], text ? text : "(none)");
  return NULL;
}

static choir_status_t read_lines(run_t* run, const choir_checkpoint_t* file) {
  for (size_t i = 0; i < run->line_count; ++i)
    CHOIR_TRY(check_line(run, file, run->lines[i].key, run->lines[i].value));
  for (int i = SEED; i < NUMBERS && run->number_count == NUMBERS; ++i) {
    number_text_t text;
    CHOIR_TRY(check_line(run, file, number_names[i],
                         print_number(run->numbers[i], text)));
  }
  for (int i = STEP; i < SEED && i < run->number_count; ++i)
    CHOIR_TRY(read_number(run, file, i));
  return NULL;
}

// has_own[i]: state i was saved for each of `size` ranks.
static choir_status_t look_for_copies(const run_t* run,
                                      const choir_checkpoint_t* file,
                                      int32_t size, uint8_t* has_own) {
  for (size_t i = 0; i < run->state_count; ++i) {
    const char* name = run->states[i].name;
    char text[NAME_BYTES];
    int32_t saved = 0;
    while (choir_checkpoint_find(file, copy_name(saved, name, text))) ++saved;
    if (saved == 0)
      return CHOIR_ERROR(NOT_FOUND, "resume: %s: there is no %s", run->path,
                         name);
    if (saved != 1 && saved != size)
      return CHOIR_ERROR(
          FAILED_PRECONDITION,
          "resume: %s: %s was saved for each of %d workers and this run has "
          "%d; it needs as many as it was saved with",
          run->path, name, saved, size);
    has_own[i] = saved > 1;
  }
  return NULL;
}

// One copy for all, or one for each, from rank 0, whose `scratch` takes those
// of others.
static choir_status_t distribute_state(
    const run_t* run, choir_checkpoint_t* file, const char* name, bool has_own,
    choir_tensor_t* whole, choir_tensor_t* scratch, staging_t* staging) {
  const int32_t copies = has_own ? choir_comm_size(run->view.comm) : 1;
  for (int32_t rank = 0; rank < copies; ++rank) {
    if (file) {
      char text[NAME_BYTES];
      choir_tensor_t* tensor = rank == 0 ? whole : scratch;
      CHOIR_TRY(
          choir_checkpoint_read(file, copy_name(rank, name, text), tensor));
      CHOIR_TRY(choir_tensor_read(tensor, staging->data, staging->bytes));
    }
    CHOIR_TRY(broadcast(&run->view, staging, 0, name));
    if (!file && (!has_own || rank == run->rank))
      CHOIR_TRY(choir_tensor_write(whole, staging->data, staging->bytes));
  }
  return NULL;
}

static choir_status_t distribute_whole(const run_t* run,
                                       choir_checkpoint_t* file,
                                       const char* name, bool has_own,
                                       choir_tensor_t* whole) {
  staging_t staging;
  choir_tensor_t* scratch = NULL;
  CHOIR_TRY(staging_create(&run->view, whole, &staging));
  choir_status_t status = create_like(&run->view, whole, &scratch);
  if (!status)
    status =
        distribute_state(run, file, name, has_own, whole, scratch, &staging);
  choir_tensor_release(scratch);
  staging_destroy(&run->view, &staging);
  return status;
}

// Only rank 0 has the file.
static choir_status_t distribute(run_t* run, choir_checkpoint_t* file,
                                 uint8_t* has_own) {
  CHOIR_TRY(choir_comm_broadcast(run->view.comm, run->numbers, SEED,
                                 CHOIR_DTYPE_I64, 0,
                                 "place of the checkpoint"));
  CHOIR_TRY(choir_comm_broadcast(run->view.comm, has_own,
                                 (int64_t)run->state_count, CHOIR_DTYPE_U8, 0,
                                 "which states differ"));
  for (size_t i = 0; i < run->state_count; ++i) {
    choir_tensor_t* whole = NULL;
    CHOIR_TRY(choir_named_tensor_make_whole(&run->states[i], &whole));
    choir_status_t status =
        distribute_whole(run, file, run->states[i].name, has_own[i], whole);
    if (!status) status = choir_named_tensor_take(&run->states[i], whole);
    choir_tensor_release(whole);
    CHOIR_TRY(status);
  }
  return choir__dist_opt_take_params(run->dist_opt);
}

static choir_status_t read_file(run_t* run, choir_checkpoint_t* file) {
  void* has_own = NULL;
  CHOIR_TRY(choir_allocate(run->view.allocator, run->state_count,
                           "list of states", &has_own));
  choir_status_t status = file ? read_lines(run, file) : NULL;
  if (!status && file)
    status = look_for_copies(
        run, file, run->view.comm ? choir_comm_size(run->view.comm) : 1,
        has_own);
  if (!status)
    status = run->view.comm ? distribute(run, file, has_own)
                            : choir_checkpoint_read_all(file, run->states,
                                                        run->state_count);
  choir_deallocate(run->view.allocator, has_own, run->state_count);
  return status;
}

choir_status_t choir_training_resume(choir_model_t* model,
                                     choir_loader_t* loader, const char* path,
                                     const choir_metadata_t* lines,
                                     size_t line_count) {
  run_t run;
  choir_checkpoint_t* file = NULL;
  choir_status_t status =
      run_init(model, loader, path, lines, line_count, "resume", &run);
  if (!status && run.rank == 0) status = choir_checkpoint_open(path, &file);
  if (!status) status = read_file(&run, file);
  choir_checkpoint_destroy(file);
  CHOIR_TRY(run_end(&run, "resume", status));
  choir_model_set_step(model, run.numbers[STEP]);
  if (!loader) return NULL;
  return choir_loader_seek(
      loader, (choir_loader_position_t){run.numbers[EPOCH], run.numbers[BATCH],
                                        run.numbers[SAMPLE]});
}

// ---- Ranks that are lost ----

choir_status_t choir_training_follow(choir_model_t* model,
                                     choir_loader_t* loader) {
  choir_dist_opt_t* dist_opt = choir__dist_opt_from(choir_model_updater(model));
  return dist_opt
             ? choir__dist_opt_follow(dist_opt, loader, choir_model_step(model))
             : NULL;
}

choir_status_t choir_training_recover(choir_model_t* model,
                                      choir_status_t status) {
  return choir__model_take_back(model, status);
}
