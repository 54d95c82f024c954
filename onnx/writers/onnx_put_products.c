// SPDX-License-Identifier: Apache-2.0
// Products.
#include "onnx/onnx_put_def.h"

// x with its last two dimensions in the other order.
static const char* turned(choir__onnx_put_t* p, const char* x, int32_t ndim) {
  int64_t axes[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < ndim; ++i) axes[i] = i;
  axes[ndim - 1] = ndim - 2;
  axes[ndim - 2] = ndim - 1;
  const char* y = NODE("Transpose", x);
  choir__onnx_put_ints(p, "perm", ndim, axes);
  return y;
}

void choir__onnx_put_matmul(choir__onnx_put_t* p) {
  const char *a = SRC(0), *b = SRC(1);
  if (ATTRS(matmul)->transpose_a) a = turned(p, a, SRC_VIEW(0)->ndim);
  if (ATTRS(matmul)->transpose_b) b = turned(p, b, SRC_VIEW(1)->ndim);
  DST(0, NODE("MatMul", a, b));
}

void choir__onnx_put_linear(choir__onnx_put_t* p) {
  DST(0, SRC_VIEW(0)->ndim == 2
             ? NODE("Gemm", SRC(0), SRC(1), SRC(2))
             : NODE("Add", NODE("MatMul", SRC(0), SRC(1)), SRC(2)));
}
