// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_HOST_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_HOST_H_

#include "core/cuda_backend.h"
#include "tensor/kernels/cuda/cuda_nest.h"
#include "tensor/op_def.h"

// Whether these views are operands for kernels over a nest: broadcast to the
// first, few enough elements. Their buffers are not looked at.
bool choir__cuda_nest_covers(const choir_view_t* const* views, int32_t count);
// And are f32.
bool choir__cuda_nest_fits(const choir_view_t* const* views, int32_t count);

// Fills out_nest but for its masks, and says whether all operands are one row,
// in steps of one or, but for the first, of none, that groups of
// CHOIR__CUDA_GROUP elements may be read from. The views must fit.
bool choir__cuda_nest_make(const choir_view_t* const* views, int32_t count,
                           choir__cuda_nest_t* out_nest);

// Launches the kernel with a thread for each group or each element; none for a
// nest without elements. params: the kernel's struct.
choir_status_t choir__cuda_nest_launch(choir_stream_t* stream,
                                       const choir_cuda_kernel_t* kernel,
                                       const choir__cuda_nest_t* nest,
                                       bool is_dense, const void* params)
    CHOIR_NODISCARD;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_HOST_H_
