// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_OPTIMIZER_REFERENCE_H_
#define CHOIR_TENSOR_OPS_OPTIMIZER_REFERENCE_H_

#include "tensor/ops/optimizer_factors.h"

// The reference kernel of an op "<name>_update" with sources p, g and one or
// two kept tensors: the step of optimizer_steps.h at every element.
//
//   CHOIR__UPDATE_REFERENCE(adam, 2)
//
// defines adam_update_reference.
#define CHOIR__UPDATE_REFERENCE(name, kept_count)                              \
  static choir_status_t name##_update_reference(const choir_record_t* record,  \
                                                choir_stream_t* stream) {      \
    (void)stream;                                                              \
    void* p = choir__dst_data(record, 0);                                      \
    const void* g = choir__src_data(record, 1);                                \
    void* kept[kept_count];                                                    \
    const choir_view_t* views[2 + (kept_count)] = {                            \
        choir_record_dst(record, 0), choir_record_src(record, 1)};             \
    for (int i = 0; i < (kept_count); ++i) {                                   \
      kept[i] = choir__dst_data(record, 1 + i);                                \
      views[2 + i] = choir_record_dst(record, 1 + i);                          \
    }                                                                          \
    const choir__##name##_f32_t f32 = choir__##name##_make_f32(record->attrs); \
    const choir__##name##_f64_t f64 = choir__##name##_make_f64(record->attrs); \
    const bool is_f64 = views[0]->dtype == CHOIR_DTYPE_F64;                    \
    choir__walk_t walk;                                                        \
    for (bool more = choir__walk_start(&walk, views, 2 + (kept_count)); more;  \
         more = choir__walk_next(&walk)) {                                     \
      const int64_t* at = walk.offsets;                                        \
      if (is_f64)                                                              \
        choir__##name##_step_f64(&f64, (double*)p + at[0],                     \
                                 ((const double*)g)[at[1]],                    \
                                 CHOIR__KEPT_##kept_count(double));            \
      else                                                                     \
        choir__##name##_step_f32(&f32, (float*)p + at[0],                      \
                                 ((const float*)g)[at[1]],                     \
                                 CHOIR__KEPT_##kept_count(float));             \
    }                                                                          \
    return NULL;                                                               \
  }
#define CHOIR__KEPT_1(real) (real*)kept[0] + at[2]
#define CHOIR__KEPT_2(real) CHOIR__KEPT_1(real), (real*)kept[1] + at[3]

#endif  // CHOIR_TENSOR_OPS_OPTIMIZER_REFERENCE_H_
