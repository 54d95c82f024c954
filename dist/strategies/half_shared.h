// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_STRATEGIES_HALF_SHARED_H_
#define CHOIR_DIST_STRATEGIES_HALF_SHARED_H_

#include <stdatomic.h>

#include "dist/strategies/strategy_internal.h"

// Averages of gradients that travel with 16 bits: what fp16 and bf16 share. A
// rank's gradients are scaled by 2^exponent and rounded, the average is taken
// in f32 and rounded once more.

typedef struct choir__half_strategy_s {
  choir_strategy_t base;  // first
  choir_dtype_t dtype;
  int32_t exponent;
  float most;                // in magnitude, before the scale
  choir_buffer_t** buffers;  // a bucket's 16-bit elements
  atomic_bool has_told;      // that something was clipped
} choir__half_strategy_t;

// clip: gradients are limited to it first; 0: they are not.
choir_status_t choir__half_attach(choir_strategy_t* strategy,
                                  choir_dtype_t dtype, int32_t exponent,
                                  double clip);
void choir__half_detach(choir_strategy_t* strategy);
choir_status_t choir__half_exchange(choir_strategy_t* strategy, int32_t bucket,
                                    choir_stream_t* stream);
// As choir_strategy_def_t's encode and decode.
void choir__half_encode_part(choir_strategy_t* strategy, int32_t bucket,
                             const choir_step_values_t* values,
                             const float* src, int64_t count, uint16_t* dst);
void choir__half_decode_part(const choir_strategy_t* strategy,
                             const uint16_t* src, int64_t count, float* dst);
bool choir__half_works_on(const choir_strategy_t* strategy,
                          const choir_device_t* device);
void choir__half_cost(bool overlaps, const choir_workload_t* workload,
                      choir_strategy_cost_t* out_cost);

#endif  // CHOIR_DIST_STRATEGIES_HALF_SHARED_H_
