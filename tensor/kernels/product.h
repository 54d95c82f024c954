// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_PRODUCT_H_
#define CHOIR_TENSOR_KERNELS_PRODUCT_H_

#include "tensor/op_def.h"

// Products of matrices as the libraries take them, which is with any leading
// dimension: operands that are transposed by strides or flags cost nothing.

// Rows of `ld` elements, or, transposed, columns of them.
typedef struct choir__matrix_s {
  int64_t ld;
  bool transposed;
} choir__matrix_t;

// c (m, n) = a (m, k) b (k, n); of batches, the last two dimensions.
typedef struct choir__product_s {
  choir__matrix_t a, b, c;
  int64_t m, n, k;
  bool is_whole;  // one product is the whole batch: all rows of a times one b
} choir__product_t;

// What a record of the op is. False when there is nothing to sum up, or when
// neither rows nor columns of an operand are dense. Dtypes are not looked at.
bool choir__matmul_product(const choir_record_t* record,
                           choir__product_t* out_product);
// linear: all rows of x and of y are one matrix, as they must lie equally far
// apart; here y must have dense rows, and so must the bias.
bool choir__linear_product(const choir_record_t* record,
                           choir__product_t* out_product);

// How many elements the matrix at `index` (row-major over the leading sizes of
// the result) lies behind the operand's first one; missing and single sizes
// repeat.
int64_t choir__matrix_offset(const choir_view_t* view, const choir_view_t* dst,
                             int64_t index);

#endif  // CHOIR_TENSOR_KERNELS_PRODUCT_H_
