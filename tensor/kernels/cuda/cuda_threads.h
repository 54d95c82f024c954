// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_THREADS_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_THREADS_H_

// Threads of every block that is launched.
enum { CHOIR__CUDA_THREADS = 256 };

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_THREADS_H_
