// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/window.h"

const char* const choir__window_pad_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_WINDOW_PAD_LIST(NAME)
#undef NAME
        NULL};

void choir__window_pad(int32_t mode, int64_t padding, int64_t padding_after,
                       int64_t size, int64_t reach, int64_t stride,
                       int64_t* out_before, int64_t* out_after) {
  if (mode == CHOIR_WINDOW_PAD_NOTSET || mode == CHOIR_WINDOW_PAD_EXPLICIT) {
    *out_before = padding;
    *out_after = mode == CHOIR_WINDOW_PAD_NOTSET ? padding : padding_after;
    return;
  }
  const int64_t windows = size / stride + (size % stride != 0);
  const int64_t lacking = (windows - 1) * stride + reach - size;
  const int64_t total =
      mode == CHOIR_WINDOW_PAD_VALID || lacking < 0 ? 0 : lacking;
  *out_before =
      mode == CHOIR_WINDOW_PAD_SAME_LOWER ? total - total / 2 : total / 2;
  *out_after = total - *out_before;
}
