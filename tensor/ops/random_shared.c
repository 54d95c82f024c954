// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/random_shared.h"

#include <math.h>

choir__draws_t choir__draws_make(int64_t seed, int64_t stream, int64_t step,
                                 int64_t first_sample, bool whole_tensor,
                                 const choir_view_t* view) {
  choir__draws_t draws = {
      .key = {(uint64_t)seed, (uint32_t)stream, (uint32_t)step},
      .first_sample = first_sample,
      .sample_size = choir_view_count(view),
  };
  if (!whole_tensor && view->ndim > 0 && view->shape[0] > 0)
    draws.sample_size /= view->shape[0];
  return draws;
}

uint32_t choir__draw(const choir__draws_t* draws, int64_t place) {
  return choir_random_word(
      draws->key,
      (uint64_t)draws->first_sample + (uint64_t)(place / draws->sample_size),
      (uint64_t)(place % draws->sample_size));
}

choir_status_t choir__random_reference(const choir_record_t* record,
                                       double range,
                                       float (*variate)(uint32_t word)) {
  const choir_random_attrs_t* attrs = record->attrs;
  const choir_view_t* dst = choir_record_dst(record, 0);
  void* data = choir__dst_data(record, 0);
  choir__draws_t draws =
      choir__draws_make(attrs->seed, attrs->stream, attrs->step,
                        attrs->first_sample, attrs->whole_tensor, dst);
  int64_t place = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &dst, 1); more;
       more = choir__walk_next(&walk), ++place) {
    float standard = variate(choir__draw(&draws, place));
    double value = dst->dtype == CHOIR_DTYPE_F64
                       ? fma(range, standard, attrs->low)
                       : fmaf((float)range, standard, (float)attrs->low);
    choir__real_store(data, dst->dtype, walk.offsets[0], value,
                      record->accumulate);
  }
  return NULL;
}

void choir__random_at_step(void* attrs, const choir_step_values_t* values) {
  choir_random_attrs_t* random = attrs;
  random->step = values->step;
  random->first_sample = values->first_sample;
}
