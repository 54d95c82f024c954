// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_THREADS_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_THREADS_H_

// Threads of every block that is launched.
enum { CHOIR__CUDA_THREADS = 256 };

// Elements that a thread moves by one access, where they lie densely and the
// first is aligned to that many.
enum { CHOIR__CUDA_GROUP = 4 };

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_THREADS_H_
