// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_REDUCE_H_
#define CHOIR_TENSOR_OPS_REDUCE_H_

#include "tensor/ops/elements.h"

// Reductions take a source apart into lanes, each of which becomes one element
// of the result: all of the source (axis -1), or what lies along one axis.
// Lanes come in the row-major order of the result.
typedef struct choir__lanes_s {
  choir_view_t lane;    // the elements of the current lane
  choir_view_t starts;  // the first element of every lane
  choir__walk_t walk;
} choir__lanes_t;

// False when there is no lane.
bool choir__lanes_start(choir__lanes_t* lanes, const choir_view_t* src,
                        int64_t axis);
bool choir__lanes_next(choir__lanes_t* lanes);

// The first of the largest elements of a lane, a NaN counting as larger than
// all: its number within the lane and its offset.
void choir__lane_maximum(const choir_view_t* lane, const void* data,
                         int64_t* out_place, int64_t* out_offset);

#endif  // CHOIR_TENSOR_OPS_REDUCE_H_
