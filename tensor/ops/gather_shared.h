// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_GATHER_SHARED_H_
#define CHOIR_TENSOR_OPS_GATHER_SHARED_H_

#include "tensor/ops/indices.h"

// What gather, scatter_elements and their gradients share.

// `attrs_def` of choir_<op>_attrs_t, whose one field is the axis.
#define CHOIR__AXIS_ATTRS(op, doc)                                 \
  static const choir_field_t fields[] = {CHOIR_FIELD_INT(          \
      choir_##op##_attrs_t, axis, 0, 0, CHOIR_MAX_NDIM - 1, doc)}; \
  static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(    \
      #op, choir_##op##_attrs_t, fields, "along which dimension")

// The shape of x with dimension `axis` replaced by the shape of the indices.
choir_status_t choir__gather_shape(const char* op, const choir_view_t* x,
                                   const choir_view_t* indices, int64_t axis,
                                   choir_view_t* out_view);

// Where the element of x (source 0, or one of its shape) lies that the result
// has at walk->index. Source 1 are the indices, checked.
int64_t choir__gathered_offset(const choir_record_t* record,
                               const choir_view_t* x, int64_t axis,
                               const choir__walk_t* walk);

// For each element of a row-major tensor of `view`'s shape, the place of the
// last element of source 1, the checked indices, that points to it; -1: none.
// The caller gives the memory back: choir_view_count(view) elements.
choir_status_t choir__scatter_winners(const choir_record_t* record,
                                      choir_stream_t* stream,
                                      const choir_view_t* view, int64_t axis,
                                      int64_t** out_winners);

#endif  // CHOIR_TENSOR_OPS_GATHER_SHARED_H_
