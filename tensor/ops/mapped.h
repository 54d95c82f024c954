// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_MAPPED_H_
#define CHOIR_TENSOR_OPS_MAPPED_H_

#include "tensor/ops/elements.h"

// pad, tile, repeat: every element of the result is one of the source (or of
// none), and which one is told dimension by dimension. Dimensions are counted
// from the last one, as in broadcasting: those that only the result has repeat
// the source.

// Where along dimension `axis` of the source, of `size` elements there, the
// result's element `place` comes from; -1: from nowhere.
typedef int64_t (*choir__map_t)(const void* attrs, int32_t axis, int64_t size,
                                int64_t place);

// Elements from nowhere become `value`, rounded as choir_element_store does.
choir_status_t choir__mapped_reference(const choir_record_t* record,
                                       choir__map_t map, double value);
// Sources x (its shape), dy -> dx, each element the sum of dy where it went.
choir_status_t choir__mapped_grad_reference(const choir_record_t* record,
                                            choir_stream_t* stream,
                                            choir__map_t map);

#endif  // CHOIR_TENSOR_OPS_MAPPED_H_
