// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_CODE_CUH_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_CODE_CUH_

#include <stdint.h>

// The words that a .cu file is written in. A test that compiles one for the
// host says itself what they stand for.
//
//   CHOIR__KERNEL(choir_some_kernel, some_params_t) {
//     some_function(params, CHOIR__THREAD);
//   }
#if defined(__CUDACC__)
#define CHOIR__GPU static __device__ __forceinline__
#define CHOIR__GPU_METHOD __device__ __forceinline__
#define CHOIR__KERNEL(symbol, params_type)          \
  extern "C" __global__ void __launch_bounds__(256) \
      symbol(const __grid_constant__ params_type params)
#define CHOIR__THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_CODE_CUH_
