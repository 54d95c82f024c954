// SPDX-License-Identifier: Apache-2.0
// Gradients of several passes forward and backward that make one step.
#include "dist/dist_opt_internal.h"

struct choir__passes_s {
  const choir_strategy_bucket_t* bucket;
  // Gradients times samples of the passes before, [count], and their samples.
  // Read and written by records only.
  float* sums;
  int64_t samples;
};

choir_status_t choir__passes_create(choir_allocator_t allocator,
                                    const choir_strategy_bucket_t* bucket,
                                    choir__passes_t** out_passes) {
  if (bucket->dtype != CHOIR_DTYPE_F32)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "dist_opt: %s has parameters of %s; several passes "
                       "per step are for f32 ones",
                       bucket->name, choir_dtype_name(bucket->dtype));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir__passes_t),
                           "gradients of passes", &memory));
  choir__passes_t* passes = memory;
  passes->bucket = bucket;
  *out_passes = passes;
  CHOIR_TRY(choir_allocate(allocator, (size_t)bucket->count * sizeof(float),
                           "gradients of passes", &memory));
  passes->sums = memory;
  return NULL;
}

void choir__passes_destroy(choir_allocator_t allocator,
                           choir__passes_t* passes) {
  if (!passes) return;
  choir_deallocate(allocator, passes->sums,
                   (size_t)passes->bucket->count * sizeof(float));
  choir_deallocate(allocator, passes, sizeof(*passes));
}

typedef struct pass_attrs_s {
  choir__passes_t* passes;
  bool is_partial;
  int64_t samples;  // of the passes so far
} pass_attrs_t;

// Of a pass that is followed by others: sums += samples * gradient. Of the
// last: gradient = (sums + samples * gradient) / all samples.
static choir_status_t run_pass(const choir_record_t* record,
                               choir_stream_t* stream) {
  const pass_attrs_t* attrs = record->attrs;
  (void)stream;
  choir__passes_t* passes = attrs->passes;
  const int64_t count = passes->bucket->count;
  float* grads = passes->bucket->grads;
  float* sums = passes->sums;
  const float weight = (float)(attrs->samples - passes->samples);
  const bool is_first = passes->samples == 0;
  passes->samples = attrs->is_partial ? attrs->samples : 0;
  if (attrs->is_partial) {
    for (int64_t i = 0; i < count; ++i)
      sums[i] = (is_first ? 0 : sums[i]) + weight * grads[i];
  } else if (!is_first) {
    const float all = (float)attrs->samples;
    for (int64_t i = 0; i < count; ++i)
      grads[i] = (sums[i] + weight * grads[i]) / all;
  }
  return NULL;
}

static void pass_at_step(void* attrs, const choir_step_values_t* values) {
  ((pass_attrs_t*)attrs)->samples = values->sample_count;
}

static const choir_kernel_t pass_kernel = {.name = "accumulate/dist_opt",
                                           .run = run_pass};

choir_status_t choir__passes_submit(choir__passes_t* passes, bool is_partial,
                                    int64_t samples, choir_stream_t* stream) {
  const pass_attrs_t attrs = {
      .passes = passes, .is_partial = is_partial, .samples = samples};
  const choir_record_t record = {.kernel = &pass_kernel,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs),
                                 .at_step = pass_at_step,
                                 .label = passes->bucket->name};
  return choir_stream_submit(stream, &record);
}
