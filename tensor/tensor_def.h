// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_TENSOR_DEF_H_
#define CHOIR_TENSOR_TENSOR_DEF_H_

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where tensors lie, for who places parameters. Not installed.

// Whether two tensors may have memory in common.
bool choir__tensors_overlap(const choir_tensor_t* a, const choir_tensor_t* b);

// `count` elements of a dense tensor, from `start`, in the order of memory: a
// tensor of one axis in its memory.
choir_status_t choir__tensor_stretch(choir_tensor_t* tensor, int64_t start,
                                     int64_t count,
                                     choir_tensor_t** out_stretch)
    CHOIR_NODISCARD;

// Copies the elements, as work of the device's stream, to `offset` elements
// into `buffer`, and the tensor is there from now on, with the same strides.
// Who holds the tensor sees that; other views of the memory where it was do
// not.
choir_status_t choir__tensor_move(choir_tensor_t* tensor,
                                  choir_buffer_t* buffer, int64_t offset)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_TENSOR_DEF_H_
