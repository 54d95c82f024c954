// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_WINDOW_H_
#define CHOIR_TENSOR_OPS_WINDOW_H_

#include "tensor/ops/elements.h"

// What convolution and pooling share: the padding of one axis.

extern const char* const choir__window_pad_names[];

// Large enough for every image, small enough that no sum of them overflows.
#define CHOIR__LARGEST_SIZE (1 << 30)

// Fields of `type`, height and width; step: the stride's default.
#define CHOIR__WINDOW_FIELDS(type, step)                                     \
  CHOIR_FIELD_INTS(type, stride, 2, step, 1, CHOIR__LARGEST_SIZE,            \
                   "step of the window, height and width"),                  \
      CHOIR_FIELD_INTS(type, padding, 2, 0, 0, CHOIR__LARGEST_SIZE,          \
                       "rows and columns added on each side"),               \
      CHOIR_FIELD_INTS(type, padding_after, 2, 0, 0, CHOIR__LARGEST_SIZE,    \
                       "those below and right, where pad_mode is explicit"), \
      CHOIR_FIELD_ENUM(type, pad_mode, choir__window_pad_names, 0,           \
                       "what decides on padding")

// *out_before, *out_after: as choir_window_pad_t says of `size` elements and
// windows that reach over `reach` of them.
void choir__window_pad(int32_t mode, int64_t padding, int64_t padding_after,
                       int64_t size, int64_t reach, int64_t stride,
                       int64_t* out_before, int64_t* out_after);

#endif  // CHOIR_TENSOR_OPS_WINDOW_H_
