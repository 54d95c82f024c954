// SPDX-License-Identifier: Apache-2.0
// Training steps that update nothing and of which nothing is left.
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "model/model_internal.h"
#include "model/updater_backend.h"

// The first is recorded and planned, the second touches its memory.
enum { WARM_UP_STEPS = 2, CHOICE_STEPS = 5 };
// f32 is finer, and a machine's other work makes as much difference.
#define WORTHWHILE 0.95

// In the place of the model's updater.
typedef struct stand_in_s {
  choir_updater_t updater;
  choir_updater_vtable_t vtable;
  choir_updater_t* own;
} stand_in_t;

static choir_status_t open_all_gather(choir_updater_t* updater,
                                      size_t most_bytes) {
  choir_updater_t* real = ((stand_in_t*)updater)->own;
  return real->vtable->open_all_gather(real, most_bytes);
}

static choir_status_t all_gather(choir_updater_t* updater,
                                 const choir_step_values_t* values,
                                 choir_tensor_t* own, int64_t rows,
                                 int64_t total, const char* name,
                                 choir_tensor_t** out_all) {
  choir_updater_t* real = ((stand_in_t*)updater)->own;
  return real->vtable->all_gather(real, values, own, rows, total, name,
                                  out_all);
}

// ---- Steps ----

// With another updater. Graphs are dropped, as theirs are of the same kind as
// those of real steps.
static choir_status_t step_aside(choir_model_t* model,
                                 const choir__aside_t* aside) {
  stand_in_t stand_in = {.updater = {.params = model->params},
                         .vtable = {.backward_and_update = aside->backward},
                         .own = model->updater};
  stand_in.updater.vtable = &stand_in.vtable;
  if (model->updater->vtable->all_gather) {
    stand_in.vtable.open_all_gather = open_all_gather;
    stand_in.vtable.all_gather = all_gather;
  }
  const bool checks_loss = model->checks_loss;
  model->pass = model->pass_samples = 0;
  model->checks_loss = false;
  choir__model_drop_graphs(model);
  model->updater = &stand_in.updater;
  choir_status_t status = aside->run(model, aside->self);
  // Also of a step that failed.
  status = choir_status_join(
      status, choir_stream_synchronize(choir_device_stream(model->device)));
  model->updater = stand_in.own;
  choir__model_drop_graphs(model);
  model->last_graph = 0;
  model->checks_loss = checks_loss;
  return status;
}

choir_status_t choir__model_step_aside(choir_model_t* model,
                                       const choir__aside_t* aside) {
  choir__snapshot_t before = {0};
  choir_status_t status = choir__snapshot_take(model, &before);
  if (!status) {
    status = step_aside(model, aside);
    status = choir_status_join(status, choir__snapshot_restore(model, &before));
  }
  choir__snapshot_drop(model, &before);
  return status;
}

// ---- Timed ----

typedef struct timing_s {
  const choir_model_batch_t* batch;
  double* seconds;  // [steps]
  int32_t steps;
} timing_t;

static void backward(choir_updater_t* updater, choir_scope_t* scope,
                     choir_var_t* loss) {
  if (!loss) return;  // no sample
  const choir_backward_options_t all = {.params = updater->params->params,
                                        .param_count = updater->params->count};
  choir_scope_backward(scope, loss, &all);
}

static choir_status_t time_step(choir_model_t* model, const timing_t* timing,
                                int32_t step) {
  const double start = choir_clock_seconds();
  CHOIR_TRY(choir_model_train_one_batch(model, timing->batch));
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(model->device)));
  timing->seconds[step] = choir_clock_seconds() - start;
  return NULL;
}

static choir_status_t time_steps(choir_model_t* model, void* self) {
  const timing_t* timing = self;
  // The graph of a run's very first step would be for that one alone.
  if (model->step == 0) model->step = 1;
  for (int32_t i = 0; i < WARM_UP_STEPS; ++i)
    CHOIR_TRY(time_step(model, timing, 0));
  for (int32_t i = 0; i < timing->steps; ++i)
    CHOIR_TRY(time_step(model, timing, i));
  return NULL;
}

static int compare_seconds(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

choir_status_t choir_model_rehearse(choir_model_t* model,
                                    const choir_model_batch_t* batch,
                                    int32_t steps, double* out_seconds) {
  *out_seconds = 0;
  if (steps < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: rehearse: %d steps; at least 1 is needed",
                       model->def->name, steps);
  CHOIR_TRY(choir__model_need_updater(model, "rehearse"));
  if (batch->sample_count == 0 && model->sync_norm_count == 0) return NULL;
  choir_allocator_t allocator = choir_device_allocator(model->device);
  const size_t bytes = (size_t)steps * sizeof(double);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "rehearsal", &memory));
  timing_t timing = {batch, memory, steps};
  const choir__aside_t aside = {backward, time_steps, &timing};
  choir_status_t status = choir__model_step_aside(model, &aside);
  if (!status && batch->sample_count > 0) {
    // One that something else on the machine held up does not count.
    qsort(timing.seconds, (size_t)steps, sizeof(double), compare_seconds);
    *out_seconds = timing.seconds[steps / 2];
  }
  choir_deallocate(allocator, memory, bytes);
  CHOIR_TRY_NOTE(status, "model %s: rehearse", model->def->name);
  return NULL;
}

choir_status_t choir_model_choose_precision(
    choir_model_t* model, const choir_model_batch_t* batch,
    choir_precision_choice_t* out_choice) {
  memset(out_choice, 0, sizeof(*out_choice));
  out_choice->dtype = CHOIR_DTYPE_F32;
  const choir_dtype_t before = model->precision;
  choir_status_t status = choir_model_set_precision(model, CHOIR_DTYPE_F32);
  if (!status)
    status = choir_model_rehearse(model, batch, CHOICE_STEPS,
                                  &out_choice->f32_seconds);
  if (!status) status = choir_model_set_precision(model, CHOIR_DTYPE_BF16);
  if (!status)
    status = choir_model_rehearse(model, batch, CHOICE_STEPS,
                                  &out_choice->bf16_seconds);
  if (out_choice->bf16_seconds < WORTHWHILE * out_choice->f32_seconds)
    out_choice->dtype = CHOIR_DTYPE_BF16;
  return choir_status_join(status, choir_model_set_precision(model, before));
}
