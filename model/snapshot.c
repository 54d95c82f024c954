// SPDX-License-Identifier: Apache-2.0
// What a training step changes beside what the updater does.
#include <string.h>

#include "model/model_internal.h"

static size_t list_changing(const choir_model_t* model, choir_tensor_t** out) {
  size_t count = 0;
  out[count++] = model->loss_sum;
  out[count++] = model->correct;
  out[count++] = model->evaluation_loss;
  for (size_t i = 0; i < model->params->count; ++i)
    if (!model->params->params[i]->grad)
      out[count++] = model->params->params[i]->value;
  return count;
}

// from[i] to to[i], which is made where it is NULL.
static choir_status_t copy_all(const choir_model_t* model,
                               choir_tensor_t** from, choir_tensor_t** to,
                               size_t count) {
  choir_stream_t* stream = choir_device_stream(model->device);
  for (size_t i = 0; i < count; ++i)
    CHOIR_TRY(
        choir_op_run(stream, CHOIR_OP_COPY, &from[i], 1, NULL, false, &to[i]));
  return NULL;
}

choir_status_t choir__snapshot_take(choir_model_t* model,
                                    choir__snapshot_t* snapshot) {
  if (!snapshot->changing) {
    snapshot->most = model->params->count + 3;
    const size_t bytes = 2 * snapshot->most * sizeof(choir_tensor_t*);
    void* memory = NULL;
    CHOIR_TRY(choir_allocate(choir_device_allocator(model->device), bytes,
                             "what a step changes", &memory));
    memset(memory, 0, bytes);
    snapshot->changing = memory;
    snapshot->kept = snapshot->changing + snapshot->most;
    snapshot->count = list_changing(model, snapshot->changing);
  }
  snapshot->metrics = model->metrics;
  snapshot->step = model->step;
  snapshot->pass = model->pass;
  snapshot->pass_samples = model->pass_samples;
  return copy_all(model, snapshot->changing, snapshot->kept, snapshot->count);
}

choir_status_t choir__snapshot_restore(choir_model_t* model,
                                       const choir__snapshot_t* snapshot) {
  model->metrics = snapshot->metrics;
  model->step = snapshot->step;
  model->pass = snapshot->pass;
  model->pass_samples = snapshot->pass_samples;
  return copy_all(model, snapshot->kept, snapshot->changing, snapshot->count);
}

void choir__snapshot_drop(const choir_model_t* model,
                          choir__snapshot_t* snapshot) {
  for (size_t i = 0; i < snapshot->count; ++i)
    choir_tensor_release(snapshot->kept[i]);
  if (snapshot->changing)
    choir_deallocate(choir_device_allocator(model->device), snapshot->changing,
                     2 * snapshot->most * sizeof(choir_tensor_t*));
  *snapshot = (choir__snapshot_t){0};
}
