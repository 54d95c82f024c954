// SPDX-License-Identifier: Apache-2.0
// The loops of cpu_conv2d_argmax.h for any processor.
#include "tensor/kernels/cpu/cpu_conv2d_argmax.h"
#include "tensor/kernels/cpu/cpu_vectors.h"

#define FILTERS(vectors) 1

// dy of `count` filters, zero where the activation was off (y NULL: none).
CHOIR__BODY vector_t take_some(const float* y, const float* dy, int64_t count) {
  vector_t gradients = {0};
  for (int64_t i = 0; i < count; i++)
    if (!y || y[i] > 0) gradients[i] = dy[i];
  return gradients;
}

// Where the argmax indices of a 2 x 2 window are: `first`, and what is below
// and on the right of it. Returns the gradients, none for an index that is
// none.
CHOIR__BODY vector_t place_some(const uint8_t* argmax, int64_t count,
                                int32_t first, int32_t below, int32_t right,
                                vector_t gradients, int32_t* offsets) {
  for (int64_t i = 0; i < count; i++) {
    offsets[i] =
        first + (argmax[i] & 2 ? below : 0) + (argmax[i] & 1 ? right : 0);
    if (argmax[i] >= 4) gradients[i] = 0;
  }
  return gradients;
}

#include "tensor/kernels/cpu/cpu_conv2d_argmax_loops.inc"
