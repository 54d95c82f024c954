// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_AMX_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_AMX_H_

#include "tensor/kernels/product.h"

// Products of bf16 by AMX: tiles of 16 rows of 64 bytes, and one instruction
// that multiplies two of them. Sums are f32, in ascending order of k within
// blocks that follow from the sizes alone; the bits are those of one thread.

#ifdef __cplusplus
extern "C" {
#endif

// Whether the processor has AMX and AVX512-BF16, the system lends the tiles,
// and ONEDNN_MAX_CPU_ISA allows it.
bool choir__has_amx(void);

// A factor as it lies: bf16, or f32, which is rounded as it is read.
typedef struct choir__amx_factor_s {
  const void* data;
  choir_dtype_t dtype;
  choir__matrix_t layout;
} choir__amx_factor_t;

// c (m, n) = a (m, k) b (k, n), + bias (n), + c where it `adds`.
typedef struct choir__amx_product_s {
  int64_t m, n, k;  // at least 1
  choir__amx_factor_t a, b;
  void* c;  // rows of `ldc` elements
  int64_t ldc;
  choir_dtype_t result;  // bf16 or f32
  bool adds;
  const void* bias;  // NULL: none
  choir_dtype_t bias_dtype;
} choir__amx_product_t;

// `count` products of the same sizes, which product_at(context, i) describes,
// on the stream's threads.
choir_status_t choir__amx_run(int64_t count,
                              choir__amx_product_t (*product_at)(const void*,
                                                                 int64_t),
                              const void* context, choir_stream_t* stream)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_AMX_H_
