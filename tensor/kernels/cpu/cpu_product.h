// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_PRODUCT_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_PRODUCT_H_

#include "tensor/kernels/product.h"

// Matrix products inside of a kernel, as matmul has them.

#ifdef __cplusplus
extern "C" {
#endif

// c = a b or, with `adds`, c + a b, all f32, on the stream's threads. Each
// element starts at 0 or at what is there, and takes one fmaf per term, k
// ascending: the same bits for all threads, instruction sets and layouts.
choir_status_t choir__cpu_product(const choir__product_t* product,
                                  const float* a, const float* b, float* c,
                                  bool adds, choir_stream_t* stream)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_PRODUCT_H_
