// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMPRESS_CUDA_MODULES_INTERNAL_H_
#define CHOIR_DIST_COMPRESS_CUDA_MODULES_INTERNAL_H_

#include "core/cuda_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// One per .cu file of this folder. Without the toolkit they have no image. Not
// constant for the sake of tests, as those of tensor/kernels/cuda.
extern choir_cuda_module_t choir__compress_cuda_module;
extern choir_cuda_module_t choir__top_k_cuda_module;

// Launches the kernel with so many threads, or a few more; none for 0.
choir_status_t choir__gpu_launch(choir_stream_t* stream,
                                 const choir_cuda_kernel_t* kernel,
                                 uint64_t threads, const void* params)
    CHOIR_NODISCARD;
// Copies from the GPU's memory to the host's, after what was launched. Blocks.
choir_status_t choir__gpu_read(choir_stream_t* stream, const void* src,
                               void* host, size_t bytes) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_COMPRESS_CUDA_MODULES_INTERNAL_H_
