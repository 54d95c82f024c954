// SPDX-License-Identifier: Apache-2.0
// Determinants of square matrices.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operators/onnx_reduce_internal.h"

// By elimination with the largest element of a column as pivot. Destroys the
// matrix.
static double determinant(double* a, int64_t n) {
  double det = 1;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i)
      if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
    const double largest = a[pivot * n + k];
    if (largest == 0) return 0;
    for (int64_t j = k; pivot != k && j < n; ++j) {
      const double kept = a[k * n + j];
      a[k * n + j] = a[pivot * n + j];
      a[pivot * n + j] = kept;
    }
    det *= pivot == k ? largest : -largest;
    for (int64_t i = k + 1; i < n; ++i) {
      const double factor = a[i * n + k] / largest;
      for (int64_t j = k + 1; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return det;
}

static choir_status_t determinants(const choir__onnx_array_t* srcs,
                                   const choir__onnx_array_t* dsts,
                                   const void* attrs) {
  (void)attrs;
  const choir_view_t* x = &srcs[0].view;
  const int64_t n = x->shape[x->ndim - 1];
  const size_t width = choir_dtype_bytes(dsts[0].view.dtype);
  if (dsts[0].count == 0) return NULL;
  double* matrix = malloc(sizeof(double) * (size_t)(n * n + 1));
  if (!matrix)
    return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a matrix of %lld rows",
                       (long long)n);
  for (int64_t k = 0; k < dsts[0].count; ++k) {
    for (int64_t i = 0; i < n * n; ++i)
      matrix[i] = choir__onnx_number_at(&srcs[0], k * n * n + i);
    choir_element_store((char*)dsts[0].data + (size_t)k * width,
                        dsts[0].view.dtype, determinant(matrix, n));
  }
  free(matrix);
  return NULL;
}

void choir__onnx_op_det(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  int64_t size = 0;
  char text[160];
  if (x->ndim < 2 || x->shape[x->ndim - 1] != x->shape[x->ndim - 2] ||
      !choir_dtype_is_float(x->dtype)) {
    FAIL(INVALID_ARGUMENT, "x is %s; needs square matrices of floats",
         choir_view_print(x, text, sizeof text));
    return;
  }
  if (!choir__onnx_size(c, x->shape + x->ndim - 2, 2, &size)) return;
  if (size > ((int64_t)1 << 40)) {
    FAIL(UNIMPLEMENTED, "matrices of %lld elements; at most 2^40 are possible",
         (long long)size);
    return;
  }
  choir_view_t dst = {.dtype = x->dtype, .ndim = x->ndim - 2};
  memcpy(dst.shape, x->shape, sizeof(int64_t) * (size_t)dst.ndim);
  choir_var_t* srcs[] = {IN(0)};
  choir_var_t* y;
  choir__onnx_host(c, "determinant", determinants, NULL, 0, srcs, 1, &dst, 1,
                   &y);
  OUT(0, y);
}
