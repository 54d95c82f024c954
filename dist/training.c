// SPDX-License-Identifier: Apache-2.0
#include "dist/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/allocator.h"
#include "dist/dist_opt_internal.h"

// What the file says of a run beside the caller's lines. Of the loader: all but
// the step. From SEED on they must be the same in the run that goes on.
enum { STEP, EPOCH, BATCH, SEED, GLOBAL_BATCH, SAMPLES, NUMBERS };
static const char* const number_names[NUMBERS] = {
    "step", "epoch", "batch", "seed", "global batch", "training samples"};
typedef char number_text_t[24];

typedef struct run_s {
  const char* path;
  const choir_metadata_t* lines;
  size_t line_count;
  int64_t numbers[NUMBERS];
  int number_count;            // 1 or NUMBERS
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
    out_run->numbers[SEED] = choir_loader_seed(loader);
    out_run->numbers[GLOBAL_BATCH] = partition->global_batch;
    out_run->numbers[SAMPLES] = partition->sample_count;
    out_run->number_count = NUMBERS;
  }
  out_run->view.allocator = choir_allocator_default();
  out_run->dist_opt = choir__dist_opt_from(choir_model_updater(model));
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

static choir_status_t write_all_ranks(const run_t* run) {
  choir__rank_states_t* gathered = NULL;
  CHOIR_TRY(choir__dist_opt_gather_states(run->dist_opt, run->states,
                                          run->state_count, &gathered));
  size_t count = 0;
  const choir_named_tensor_t* all = choir__rank_states_list(gathered, &count);
  choir_status_t status = run->rank == 0 ? write_file(run, all, count) : NULL;
  choir__rank_states_destroy(gathered);
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
  if (!status && is_collective)
    status = write_all_ranks(&run);
  else if (!status && path)
    status = write_file(&run, run.states, run.state_count);
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

// Files of earlier versions have no "batch".
static choir_status_t read_number(run_t* run, const choir_checkpoint_t* file,
                                  int which) {
  const char* text = choir_checkpoint_metadata(file, number_names[which]);
  char* end = NULL;
  if (which == BATCH) run->numbers[BATCH] = 0;
  if (!text && which != EPOCH) return NULL;
  run->numbers[which] = text ? strtoll(text, &end, 10) : -1;
  if (!text || end == text || *end || run->numbers[which] < 0)
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

static choir_status_t read_state(void* file, const char* name,
                                 choir_tensor_t* tensor, bool* out_found) {
  *out_found = choir_checkpoint_find(file, name);
  return *out_found && tensor ? choir_checkpoint_read(file, name, tensor)
                              : NULL;
}

// Only rank 0 has the file.
static choir_status_t read_file(run_t* run, choir_checkpoint_t* file) {
  if (file) CHOIR_TRY(read_lines(run, file));
  if (!run->dist_opt) {
    CHOIR_TRY_NOTE(choir__check_copies(run->states, run->state_count, 1,
                                       read_state, file, NULL),
                   "resume: %s", run->path);
    return choir_checkpoint_read_all(file, run->states, run->state_count);
  }
  CHOIR_TRY(choir_comm_broadcast(run->view.comm, run->numbers, SEED,
                                 CHOIR_DTYPE_I64, 0,
                                 "place of the checkpoint"));
  choir_status_t status = choir__dist_opt_distribute_states(
      run->dist_opt, run->states, run->state_count, read_state, file);
  return status && file ? choir_status_annotate(status, __FILE__, __LINE__,
                                                "resume: %s", run->path)
                        : status;
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
  return choir_loader_seek(loader, (choir_loader_position_t){
                                       run.numbers[EPOCH], run.numbers[BATCH]});
}
