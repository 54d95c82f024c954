// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_VIEW_OPS_H_
#define CHOIR_TENSOR_OPS_VIEW_OPS_H_

#include "tensor/ops/elements.h"

// The reference of an op whose result shows its source's elements in another
// shape: through `alias` where strides allow, else both in row-major order.
choir_status_t choir__view_reference(const choir_record_t* record,
                                     choir_stream_t* stream,
                                     bool (*alias)(const choir_view_t* src,
                                                   const void* attrs,
                                                   choir_view_t* dst));

// The shape of an alias as a destination of its own: row-major, no buffer.
choir_status_t choir__infer_from_alias(const char* op,
                                       const choir_view_t* alias,
                                       choir_view_t* dst);

#endif  // CHOIR_TENSOR_OPS_VIEW_OPS_H_
