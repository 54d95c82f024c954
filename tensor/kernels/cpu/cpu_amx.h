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
  const void* bias;  // as the factors; NULL: none
  choir_dtype_t bias_dtype;
} choir__amx_product_t;

// `count` products of the same sizes, which product_at(context, i) describes,
// on the stream's threads.
choir_status_t choir__amx_run(int64_t count,
                              choir__amx_product_t (*product_at)(const void*,
                                                                 int64_t),
                              const void* context, choir_stream_t* stream)
    CHOIR_NODISCARD;

// ---- Parts, for kernels that multiply inside of a loop ----
//
// Factors are copied to panels: 32 rows of a, or columns of b, in steps of 32
// elements of k. What is missing of a panel or a step becomes zeros.

enum {
  CHOIR__AMX_PANEL = 32,
  CHOIR__AMX_STEP = 32,
  CHOIR__AMX_STEP_BYTES = 2048,  // of a panel
};

// Rows of a or columns of b, first .. end - 1, and `steps` steps of k from
// `from` on, of which there are `k` elements.
typedef struct choir__amx_range_s {
  int64_t first, end;
  int64_t from, steps, k;
} choir__amx_range_t;

// Of the calling thread: the tile registers are for the functions below.
void choir__amx_begin(void);
void choir__amx_end(void);
// `out`: panels one behind the other, at a multiple of 64 bytes.
void choir__amx_copy(const choir__amx_factor_t* factor, bool is_b,
                     const choir__amx_range_t* range, char* out);
// sums (32 rows of 32, `ld` apart) = a panel of a times one of b, or what is
// there and that.
void choir__amx_multiply(const char* a, const char* b, int64_t steps,
                         float* sums, int64_t ld, bool adds);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_AMX_H_
