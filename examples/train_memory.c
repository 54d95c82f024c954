// SPDX-License-Identifier: Apache-2.0
#include "examples/train_memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static choir_status_t make_batch(choir_device_t* device,
                                 const choir_view_t* one, int64_t count,
                                 choir_tensor_t** out_tensor) {
  int64_t shape[CHOIR_MAX_NDIM];
  memcpy(shape, one->shape, sizeof(shape));
  shape[0] = count;
  return choir_tensor_create(device, one->dtype, one->ndim, shape, out_tensor);
}

// By the loader's largest batch of this rank; no rank has to have samples.
static choir_status_t plan(choir_model_t* model, const choir_loader_t* loader,
                           bool is_training, choir_model_memory_t* out_memory) {
  const choir_dataset_t* dataset = choir_loader_dataset(loader);
  const int64_t count =
      choir_partition_capacity(choir_loader_partition(loader));
  choir_model_batch_t batch = {.sample_count = count, .global_count = count};
  memset(out_memory, 0, sizeof(*out_memory));
  if (count == 0) return NULL;
  choir_device_t* device = choir_model_device(model);
  choir_status_t status =
      make_batch(device, choir_dataset_x(dataset), count, &batch.inputs[0]);
  if (!status)
    status =
        make_batch(device, choir_dataset_y(dataset), count, &batch.targets[0]);
  if (!status)
    status = choir_model_plan_memory(model, is_training, &batch, out_memory);
  choir_tensor_release(batch.inputs[0]);
  choir_tensor_release(batch.targets[0]);
  return status;
}

double train_memory_resident(void) {
  double pages = 0, all = 0;
  FILE* file = fopen("/proc/self/statm", "re");
  if (!file) return 0;
  if (fscanf(file, "%lf %lf", &all, &pages) != 2) pages = 0;
  fclose(file);
  return pages * (double)sysconf(_SC_PAGESIZE);
}

static double gb(double bytes) { return 1e-9 * bytes; }

static void print_figures(const choir_model_memory_t* need, char text[256]) {
  snprintf(text, 256,
           "parameters %.3f GB, gradients %.3f GB, states %.3f GB, activations "
           "%.3f GB",
           gb((double)need->parameters), gb((double)need->gradients),
           gb((double)need->states), gb((double)need->activations));
}

choir_status_t train_memory_check(const train_memory_t* run, bool prints) {
  choir_model_memory_t need;
  choir_model_memory_t evaluation;
  CHOIR_TRY(plan(run->model, run->evaluation, false, &evaluation));
  CHOIR_TRY(plan(run->model, run->training, true, &need));
  if (evaluation.activations > need.activations)
    need.activations = evaluation.activations;
  char text[256];
  print_figures(&need, text);
  // What setting up left is given back before the first step.
  choir_device_trim(choir_model_device(run->model));
  const double all = run->before + (double)(need.parameters + need.gradients +
                                            need.states + need.activations);
  const double more = all - train_memory_resident();
  const double available = (double)choir_memory_available();
  if (prints) {
    printf("Memory of a worker: %s, program and data %.3f GB; %.3f GB in all\n",
           text, gb(run->before), gb(all));
    fflush(stdout);
  }
  if (!choir_device_is_host(choir_model_device(run->model)) ||
      more * run->workers <= available)
    return NULL;
  return CHOIR_ERROR(
      OUT_OF_MEMORY,
      "%d workers on this host need %.2f GB more and %.2f GB are "
      "left; a worker takes: %s",
      (int)run->workers, gb(more * run->workers), gb(available), text);
}
