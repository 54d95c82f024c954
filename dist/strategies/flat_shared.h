// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_STRATEGIES_FLAT_SHARED_H_
#define CHOIR_DIST_STRATEGIES_FLAT_SHARED_H_

#include "dist/strategies/strategy_internal.h"

// All trainable parameters as one array of f32: bucket after bucket, with the
// zeros between parameters.

int64_t choir__flat_count(const choir_strategy_t* strategy);

// A stretch of the array that lies in one parameter.
typedef struct choir__flat_piece_s {
  float* value;
  int64_t at;  // its place in the array
  int64_t count;
} choir__flat_piece_t;
typedef void (*choir__flat_visit_t)(void* self,
                                    const choir__flat_piece_t* piece);
// Calls `visit` for all pieces of elements [begin, end), in order.
void choir__flat_visit(const choir_strategy_t* strategy, int64_t begin,
                       int64_t end, choir__flat_visit_t visit, void* self);

// Copies elements [begin, end) out of the parameters, and into them.
void choir__flat_read(const choir_strategy_t* strategy, int64_t begin,
                      int64_t end, float* dst);
void choir__flat_write(const choir_strategy_t* strategy, int64_t begin,
                       int64_t end, const float* src);
// Averages elements [begin, end) over ranks, `chunk` of them at a time by way
// of `data`, which has room for them. `step` as in choir_collective_t, NULL: in
// none. Collective; blocks.
choir_status_t choir__flat_average(const choir_strategy_t* strategy,
                                   const choir_step_values_t* step,
                                   int64_t begin, int64_t end, int64_t chunk,
                                   float* data);

#endif  // CHOIR_DIST_STRATEGIES_FLAT_SHARED_H_
