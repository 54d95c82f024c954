// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_WINDOW_H_
#define CHOIR_TENSOR_OPS_WINDOW_H_

#include "tensor/ops/elements.h"

// What convolution and pooling share: the padding of one axis.

extern const char* const choir__window_pad_names[];

// *out_before, *out_after: as choir_window_pad_t says of `size` elements and
// windows that reach over `reach` of them.
void choir__window_pad(int32_t mode, int64_t padding, int64_t padding_after,
                       int64_t size, int64_t reach, int64_t stride,
                       int64_t* out_before, int64_t* out_after);

#endif  // CHOIR_TENSOR_OPS_WINDOW_H_
