// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_INDICES_H_
#define CHOIR_TENSOR_OPS_INDICES_H_

#include "tensor/ops/elements.h"

// Indices along a dimension: i32 or i64, negative ones count from its end.

#define CHOIR__DTYPES_INDEX (CHOIR_DTYPE_MASK(I32) | CHOIR_DTYPE_MASK(I64))

// Fails unless the view has dimension `axis`: "gather: axis is 2, source 0 is
// f32 (3, 4); needs an axis below its dimensions".
choir_status_t choir__need_axis(const choir_view_t* view, int64_t axis);

// Fails unless indices have as many dimensions as the view that they point
// into, and no more elements in any but `axis`.
choir_status_t choir__need_element_indices(const choir_view_t* view,
                                           const choir_view_t* indices,
                                           int64_t axis);

// OUT_OF_RANGE with its place ("gather: index 12 at element 3 of source 1;
// needs -5 .. 4") unless every element of source `source` is an index into
// `size` elements.
choir_status_t choir__check_indices(const char* op,
                                    const choir_record_t* record,
                                    int32_t source, int64_t size);

#endif  // CHOIR_TENSOR_OPS_INDICES_H_
