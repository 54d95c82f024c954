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

// The result's shape: the axis gone, or 1 with keep_dims. `needs_element`:
// the op has no value for a lane of nothing.
choir_status_t choir__reduce_infer(const char* op, const choir_view_t* src,
                                   const choir_reduce_attrs_t* attrs,
                                   choir_dtype_t dtype, bool needs_element,
                                   choir_view_t* dst);

// The attributes' fields, under the op's own name.
#define CHOIR__REDUCE_FIELDS                                              \
  CHOIR_FIELD_INT(choir_reduce_attrs_t, axis, -1, -1, CHOIR_MAX_NDIM - 1, \
                  "dimension that is reduced; -1: all"),                  \
      CHOIR_FIELD_BOOL(choir_reduce_attrs_t, keep_dims, false,            \
                       "leave it as a size of 1")

extern const choir_op_case_t choir__reduce_cases[];
extern const choir_op_case_t choir__maximum_cases[];

#endif  // CHOIR_TENSOR_OPS_REDUCE_H_
