// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_CODE_CUH_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_CODE_CUH_

#include <stdint.h>

#include "tensor/kernels/cuda/cuda_threads.h"

// The words that a .cu file is written in. A test that compiles one for the
// host says itself what they stand for.
//
// Threads that do not meet:
//
//   CHOIR__KERNEL(choir_some_kernel, some_params_t) {
//     some_function(params, CHOIR__THREAD);
//   }
//
// A block of CHOIR__CUDA_THREADS threads that work together, in phases: a phase
// begins when all threads are done with the one before. What is in shared
// arrays goes from phase to phase, what is in variables does not. Between
// phases stands only what is the same for all threads; a phase is not left by
// break or return.
//
//   CHOIR__BLOCK_KERNEL(choir_some_kernel, some_params_t) {
//     CHOIR__SHARED float parts[CHOIR__CUDA_THREADS];
//     CHOIR__EACH_THREAD(i) { parts[i] = part(params, CHOIR__BLOCK, i); }
//     CHOIR__EACH_THREAD(i) {
//       if (i == 0) params.y[CHOIR__BLOCK] = sum_of(parts);
//     }
//   }
//
// CHOIR__OWN(type, name) is a variable of each thread that goes from phase to
// phase, in a register where its places are known: CHOIR__MINE(name, thread).
// Functions take it as a `type*`. CHOIR__UNROLLED stands before a loop that
// goes through such places.
//
// CHOIR__COUNT(place, n) adds n to the uint32_t there, for any threads at a
// time: of whole numbers, the sum has no order.
//
// CHOIR__FAIL() is for what the host would answer with a status: the launch
// fails, as on a bad address. The thread need not end there, on the host it
// does not.
#if defined(__CUDACC__)
#define CHOIR__GPU static __device__ __forceinline__
#define CHOIR__GPU_METHOD __device__ __forceinline__
#define CHOIR__KERNEL(symbol, params_type)                          \
  extern "C" __global__ void __launch_bounds__(CHOIR__CUDA_THREADS) \
      symbol(const __grid_constant__ params_type params)
#define CHOIR__BLOCK_KERNEL(symbol, params_type) \
  CHOIR__KERNEL(symbol, params_type)
#define CHOIR__THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define CHOIR__BLOCK (blockIdx.x)
#define CHOIR__SHARED __shared__
#define CHOIR__EACH_THREAD(thread)                                       \
  for (uint32_t thread = threadIdx.x, choir_phase = 0; choir_phase == 0; \
       __syncthreads(), choir_phase = 1)
#define CHOIR__UNROLLED _Pragma("unroll")
#define CHOIR__OWN(type, name) type name[1]
#define CHOIR__MINE(name, thread) name[0 * (thread)]
#define CHOIR__COUNT(place, n) static_cast<void>(atomicAdd(place, n))
#define CHOIR__FAIL() __trap()
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_CODE_CUH_
