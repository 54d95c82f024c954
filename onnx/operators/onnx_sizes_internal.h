// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_SIZES_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_SIZES_INTERNAL_H_

#include "onnx/onnx_call_def.h"

// Sizes that a file says may be any: what is computed of them is looked at
// before the work on it begins. All return false where it failed.

// No sum of a few such sizes overflows, and no product of two.
enum { CHOIR__ONNX_LARGEST = 1 << 30 };

// *out = a b, both from 0 on.
bool choir__onnx_times(choir__onnx_call_t* c, int64_t a, int64_t b,
                       int64_t* out);
// The product of sizes from `first` to before `last`.
bool choir__onnx_product(choir__onnx_call_t* c, const int64_t* sizes,
                         int32_t first, int32_t last, int64_t* out);
// Whether there is memory for a tensor of this shape.
bool choir__onnx_has_room(choir__onnx_call_t* c, choir_dtype_t dtype,
                          int32_t ndim, const int64_t* shape);
// The same of a result beside which lies as much that it is made of. A size of
// 0 hides no other.
bool choir__onnx_fits(choir__onnx_call_t* c, choir_dtype_t dtype, int32_t ndim,
                      const int64_t* shape);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_SIZES_INTERNAL_H_
