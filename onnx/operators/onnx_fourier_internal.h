// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_FOURIER_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_FOURIER_INTERNAL_H_

#include "onnx/onnx_call_def.h"

typedef struct choir__onnx_fourier_s {
  int64_t length;  // of the transform; places beyond it do not count
  int64_t results;
  int64_t result_parts;  // 1: real numbers
  bool inverse;
  bool onesided;  // inverse: the mirrored half is not given; else not wanted
} choir__onnx_fourier_t;

// The transform of x (..., places, 1 or 2), F32 or F64, as a loop of the
// host's: (..., results, result_parts). It has no gradient.
choir_var_t* choir__onnx_fourier(choir__onnx_call_t* c, choir_var_t* x,
                                 const choir__onnx_fourier_t* f);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_FOURIER_INTERNAL_H_
