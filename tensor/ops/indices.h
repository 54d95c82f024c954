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

// choir_op_def_t's mixes_samples of ops with such indices and an `axis`.
bool choir__element_indices_mix(const choir_record_t* record,
                                const int64_t* rows);

// OUT_OF_RANGE with its place ("gather: index 12 at element 3 of source 1;
// needs -5 .. 4") unless every element of source `source` is an index into
// `size` elements.
choir_status_t choir__check_indices(const char* op,
                                    const choir_record_t* record,
                                    int32_t source, int64_t size);

// The label of row `row`, counted in row-major order, of source 1; OUT_OF_RANGE
// with its place ("cross_entropy: label 12 at row 3; needs 0 .. 9") when it is
// no class.
choir_status_t choir__label_load(const char* op, const choir_record_t* record,
                                 int64_t row, int64_t classes,
                                 int64_t* out_label);

#endif  // CHOIR_TENSOR_OPS_INDICES_H_
