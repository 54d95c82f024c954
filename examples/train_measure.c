// SPDX-License-Identifier: Apache-2.0
#include "examples/train_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A slow network is timed for fewer steps, as the fastest rank waits for the
// slowest, and not longer than its deadline.
#define MOST_STEPS 20
#define LEAST_STEPS 3
#define ENOUGH_SECONDS 10.0

static choir_status_t next_batch(choir_loader_t* loader,
                                 choir_model_batch_t* out_batch,
                                 const choir_batch_t** out_loaded) {
  CHOIR_TRY(choir_loader_next(loader, out_loaded));
  const choir_batch_t* loaded = *out_loaded;
  *out_batch = (choir_model_batch_t){.inputs = {loaded->x},
                                     .targets = {loaded->y},
                                     .first_sample = loaded->first_in_step,
                                     .sample_count = loaded->sample_count,
                                     .global_count = loaded->global_count};
  return NULL;
}

// ---- Shares ----

// As many steps on all ranks, by the slowest one's time.
static choir_status_t count_steps(choir_model_t* model, choir_comm_t* comm,
                                  const choir_model_batch_t* batch,
                                  int32_t* out_steps) {
  double seconds = 0;
  CHOIR_TRY(choir_model_rehearse(model, batch, 1, &seconds));
  CHOIR_TRY(choir_comm_all_reduce(comm, &seconds, &seconds, 1, CHOIR_DTYPE_F64,
                                  CHOIR_REDUCE_MAX, "time of a step"));
  *out_steps = MOST_STEPS;
  if (seconds * MOST_STEPS > ENOUGH_SECONDS)
    *out_steps = (int32_t)(ENOUGH_SECONDS / seconds);
  if (*out_steps < LEAST_STEPS) *out_steps = LEAST_STEPS;
  return NULL;
}

static void print_shares(const char* shares, const double* speeds,
                         int32_t size) {
  printf("balance: --shares %s (samples/s of each worker alone: ", shares);
  for (int32_t rank = 0; rank < size; ++rank)
    printf("%s%.0f", rank ? ", " : "", speeds[rank]);
  printf(")\n");
  fflush(stdout);
}

choir_status_t train_measure_shares(choir_model_t* model, choir_comm_t* comm,
                                    choir_loader_t* loader, bool prints,
                                    char** out_shares) {
  *out_shares = NULL;
  const choir_batch_t* loaded;
  choir_model_batch_t batch;
  int32_t steps = 0;
  double own = 0;
  CHOIR_TRY(next_batch(loader, &batch, &loaded));
  CHOIR_TRY(count_steps(model, comm, &batch, &steps));
  CHOIR_TRY(choir_model_rehearse(model, &batch, steps, &own));
  own = own > 0 ? (double)batch.sample_count / own : 0;

  const int32_t size = choir_comm_size(comm);
  const size_t text_bytes = 21 * (size_t)size;
  double* speeds = calloc((size_t)size, sizeof(double));
  int64_t* shares = calloc((size_t)size, sizeof(int64_t));
  char* text = malloc(text_bytes);
  choir_status_t status =
      speeds && shares && text
          ? choir_comm_all_gather(comm, &own, speeds, 1, CHOIR_DTYPE_F64,
                                  "speeds of workers")
          : CHOIR_ERROR(OUT_OF_MEMORY, "no memory for shares");
  if (!status)
    status = choir_shares_from_speeds(speeds, size, loaded->global_count,
                                      loaded->micro_shard, shares);
  if (!status) {
    *out_shares = choir_shares_print(shares, size, text, text_bytes);
    text = NULL;
    if (prints) print_shares(*out_shares, speeds, size);
  }
  free(speeds);
  free(shares);
  free(text);
  return status;
}

// ---- Precision ----

// F32, with times of 0, where the file says none that is known.
static choir_status_t read_precision(const char* path,
                                     choir_precision_choice_t* out_choice,
                                     bool* out_known) {
  static const choir_dtype_t dtypes[] = {CHOIR_DTYPE_F32, CHOIR_DTYPE_BF16,
                                         CHOIR_DTYPE_F16};
  choir_checkpoint_t* file = NULL;
  CHOIR_TRY(choir_checkpoint_open(path, &file));
  const char* saved = choir_checkpoint_metadata(file, "precision");
  for (int i = 0; i < 3 && saved; ++i) {
    if (strcmp(saved, choir_dtype_name(dtypes[i])) != 0) continue;
    out_choice->dtype = dtypes[i];
    *out_known = true;
  }
  choir_checkpoint_destroy(file);
  return NULL;
}

choir_status_t train_measure_precision(choir_model_t* model, choir_comm_t* comm,
                                       choir_loader_t* loader,
                                       const char* resume, bool prints) {
  const bool is_first = !comm || choir_comm_rank(comm) == 0;
  struct {
    choir_precision_choice_t choice;
    bool is_known;
  } found;
  memset(&found, 0, sizeof(found));
  if (resume && is_first)
    CHOIR_TRY(read_precision(resume, &found.choice, &found.is_known));
  if (comm)
    CHOIR_TRY(choir_comm_broadcast(comm, &found, (int64_t)sizeof(found),
                                   CHOIR_DTYPE_U8, 0, "saved precision"));
  if (!found.is_known) {
    const choir_batch_t* loaded;
    choir_model_batch_t batch;
    CHOIR_TRY(next_batch(loader, &batch, &loaded));
    CHOIR_TRY(choir_model_choose_precision(model, &batch, &found.choice));
    if (comm)
      CHOIR_TRY(choir_comm_broadcast(comm, &found, (int64_t)sizeof(found),
                                     CHOIR_DTYPE_U8, 0, "precision"));
  }
  const char* name = choir_dtype_name(found.choice.dtype);
  if (prints && found.is_known)
    printf("precision: %s, as in %s\n", name, resume);
  else if (prints)
    printf(
        "precision: %s (forward and backward of a step: f32 %.3g ms, bf16 %.3g "
        "ms)\n",
        name, 1e3 * found.choice.f32_seconds, 1e3 * found.choice.bf16_seconds);
  if (prints) fflush(stdout);
  return choir_model_set_precision(model, found.choice.dtype);
}
