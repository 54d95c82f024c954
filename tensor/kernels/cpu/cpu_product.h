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

// A left factor that is made block by block.
typedef struct choir__made_s {
  // Rows row .. row + rows - 1 of terms first .. first + k - 1: element (r, i)
  // to to[r * k + i], or where it is turned to to[i * rows + r].
  void (*make)(const void* self, int64_t row, int64_t rows, int64_t first,
               int64_t k, float* to);
  const void* self;
  bool is_turned;
} choir__made_t;

// c (m, n) = from + a b, as above; rows of c are ldc apart, those of `from`,
// which may be c, from_row. b is in panels of k rows (cpu_panels.h) where it
// is_packed, else its rows are b_row apart.
typedef struct choir__made_product_s {
  int64_t m, n, k;
  choir__made_t a;
  const float* b;
  bool is_packed;
  int64_t b_row;
  float* c;
  int64_t ldc;
  const float* from;  // NULL: zeros
  int64_t from_row;
} choir__made_product_t;
choir_status_t choir__cpu_made_product(const choir__made_product_t* product,
                                       choir_stream_t* stream) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_PRODUCT_H_
