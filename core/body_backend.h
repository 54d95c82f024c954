// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_BODY_BACKEND_H_
#define CHOIR_CORE_BODY_BACKEND_H_

// A function that becomes part of the loop around it: of a loop over elements
// for some instruction set of the CPU, or of a thread of a GPU.
#if defined(__CUDACC__)
#define CHOIR__BODY static __device__ __forceinline__
#else
#define CHOIR__BODY static inline __attribute__((always_inline))
#endif

#endif  // CHOIR_CORE_BODY_BACKEND_H_
