// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_RANDOM_SHARED_H_
#define CHOIR_TENSOR_OPS_RANDOM_SHARED_H_

#include "core/random.h"
#include "tensor/ops/elements.h"

// Which word of the generator belongs to which element: that of its sample
// (dimension 0, counted from first_sample) and its row-major place within the
// sample, whatever the layout and however samples are split into batches.
typedef struct choir__draws_s {
  choir_random_key_t key;
  int64_t first_sample;
  int64_t sample_size;  // elements of one sample
} choir__draws_t;

// Scalars, and everything with whole_tensor, are one sample.
choir__draws_t choir__draws_make(int64_t seed, int64_t stream, int64_t step,
                                 int64_t first_sample, bool whole_tensor,
                                 const choir_view_t* view);
// The word of row-major element `place` of the tensor.
uint32_t choir__draw(const choir__draws_t* draws, int64_t place);

// The reference of random_uniform and random_normal:
// low + range * variate(word), in f32 with one fma (f64: in double), where
// variate gives a standard variable.
choir_status_t choir__random_reference(const choir_record_t* record,
                                       double range,
                                       float (*variate)(uint32_t word));

// Of choir_random_attrs_t: step and first sample follow the step.
void choir__random_at_step(void* attrs, const choir_step_values_t* values);

#define CHOIR__RANDOM_KEY_FIELDS(type)                                         \
  CHOIR_FIELD_INT(type, seed, 0, -9223372036854775808.0,                       \
                  9223372036854774784.0, "the run's"),                         \
      CHOIR_FIELD_INT(type, stream, 0, 0, UINT32_MAX, "the purpose's"),        \
      CHOIR_FIELD_INT(type, step, 0, 0, UINT32_MAX, "training step or epoch"), \
      CHOIR_FIELD_INT(type, first_sample, 0, 0, 9223372036854774784.0,         \
                      "global number of the first sample")

#endif  // CHOIR_TENSOR_OPS_RANDOM_SHARED_H_
