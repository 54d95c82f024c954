// SPDX-License-Identifier: Apache-2.0
#include "examples/balance.h"

#include <stdio.h>
#include <stdlib.h>

// Until a step is recorded, planned and replayed for the first time.
#define WARM_UP_STEPS 3
#define TIMED_STEPS 20
// A slow network is timed for fewer steps, as the fastest rank waits for the
// slowest, and not longer than its deadline.
#define LEAST_TIMED_STEPS 3
#define ENOUGH_SECONDS 10.0

typedef struct rehearsal_s {
  void* net;  // the model's `self`
  choir_model_t* model;
  choir_optimizer_t* optimizer;
} rehearsal_t;

static choir_status_t open_rehearsal(const train_task_t* task,
                                     const train_options_t* options,
                                     choir_device_t* device,
                                     const choir_dataset_t* data,
                                     rehearsal_t* rehearsal) {
  // Of one batch, again and again, there is nothing to learn.
  CHOIR_TRY(train_task_make(task, options, device, data, 0, &rehearsal->net,
                            &rehearsal->model, &rehearsal->optimizer));
  return choir_model_set_updater(rehearsal->model,
                                 choir_optimizer_updater(rehearsal->optimizer));
}

static void close_rehearsal(rehearsal_t* rehearsal) {
  choir_model_release(rehearsal->model);
  choir_optimizer_release(rehearsal->optimizer);
  free(rehearsal->net);
}

static choir_status_t time_step(const rehearsal_t* rehearsal,
                                choir_device_t* device,
                                const choir_batch_t* batch,
                                double* out_seconds) {
  const double start = choir_clock_seconds();
  const choir_model_batch_t one = {.inputs = {batch->x},
                                   .targets = {batch->y},
                                   .sample_count = batch->sample_count,
                                   .global_count = batch->sample_count};
  CHOIR_TRY(choir_model_train_one_batch(rehearsal->model, &one));
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(device)));
  *out_seconds = choir_clock_seconds() - start;
  return NULL;
}

static int compare_doubles(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

// Samples per second in a step of middling length: one that something else on
// the machine held up must not count.
static choir_status_t time_steps(const rehearsal_t* rehearsal,
                                 choir_device_t* device,
                                 const choir_batch_t* batch,
                                 double* out_speed) {
  double times[TIMED_STEPS] = {0};
  for (int step = 0; step < WARM_UP_STEPS; ++step)
    CHOIR_TRY(time_step(rehearsal, device, batch, &times[0]));
  int count = 0;
  double spent = 0;
  while (count < TIMED_STEPS &&
         (count < LEAST_TIMED_STEPS || spent < ENOUGH_SECONDS)) {
    CHOIR_TRY(time_step(rehearsal, device, batch, &times[count]));
    spent += times[count++];
  }
  qsort(times, (size_t)count, sizeof(times[0]), compare_doubles);
  *out_speed = (double)batch->sample_count / times[count / 2];
  return NULL;
}

// This rank's speed with a batch.
static choir_status_t rehearse(const train_task_t* task,
                               const train_options_t* options,
                               choir_comm_t* comm, choir_device_t* device,
                               const choir_dataset_t* data,
                               const choir_batch_t* batch, double* out_speed) {
  rehearsal_t rehearsal = {0};
  choir_status_t status =
      open_rehearsal(task, options, device, data, &rehearsal);
  // Those of one host are to be as slow as they will be: together.
  if (!status) status = choir_comm_barrier(comm, "rehearsal");
  if (!status) status = time_steps(&rehearsal, device, batch, out_speed);
  close_rehearsal(&rehearsal);
  return status;
}

static void print_line(const char* shares, const double* speeds, int32_t size) {
  printf("balance: --shares %s (samples/s of each worker alone: ", shares);
  for (int32_t rank = 0; rank < size; ++rank)
    printf("%s%.0f", rank ? ", " : "", speeds[rank]);
  printf(")\n");
  fflush(stdout);
}

choir_status_t balance_measure(const train_task_t* task,
                               const train_options_t* options,
                               choir_comm_t* comm, choir_device_t* device,
                               choir_loader_t* loader, char** out_shares) {
  *out_shares = NULL;
  const choir_batch_t* batch = NULL;
  CHOIR_TRY(choir_loader_next(loader, &batch));
  double own = 0;
  CHOIR_TRY(rehearse(task, options, comm, device, choir_loader_dataset(loader),
                     batch, &own));

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
    status = choir_shares_from_speeds(speeds, size, batch->global_count,
                                      batch->micro_shard, shares);
  if (!status) {
    *out_shares = choir_shares_print(shares, size, text, text_bytes);
    text = NULL;
    if (choir_comm_rank(comm) == 0 && !options->quiet)
      print_line(*out_shares, speeds, size);
  }
  free(speeds);
  free(shares);
  free(text);
  return status;
}
