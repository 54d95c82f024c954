// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_DNNL_PRODUCT_H_
#define CHOIR_TENSOR_KERNELS_CPU_DNNL_PRODUCT_H_

#include "tensor/kernels/product.h"

// Matrix products inside of a kernel, as matmul has them.

#ifdef __cplusplus
extern "C" {
#endif

// c = a b or, with `adds`, c + a b, all f32, on the stream's threads. Where m
// or n is at most 256, the bits are those of one thread.
choir_status_t choir__dnnl_product(const choir__product_t* product,
                                   const float* a, const float* b, float* c,
                                   bool adds, choir_stream_t* stream)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_DNNL_PRODUCT_H_
