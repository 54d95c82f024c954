// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_WINDOW_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_WINDOW_INTERNAL_H_

#include "onnx/operators/onnx_sizes_internal.h"

// What convolutions and poolings share: the attributes of a window.

enum { CHOIR__ONNX_SPATIAL = 3 };

typedef enum choir__onnx_auto_pad_e {
  CHOIR__ONNX_PAD_NOTSET,
  CHOIR__ONNX_PAD_SAME_UPPER,
  CHOIR__ONNX_PAD_SAME_LOWER,
  CHOIR__ONNX_PAD_VALID,
} choir__onnx_auto_pad_t;

// A window that moves over an image of `count` dimensions.
typedef struct choir__onnx_window_s {
  int32_t count;
  choir__onnx_auto_pad_t auto_pad;
  int64_t size[CHOIR__ONNX_SPATIAL];  // of the image
  int64_t kernel[CHOIR__ONNX_SPATIAL];
  int64_t stride[CHOIR__ONNX_SPATIAL];
  int64_t dilation[CHOIR__ONNX_SPATIAL];
  int64_t reach[CHOIR__ONNX_SPATIAL];  // elements from its first to its last
  int64_t before[CHOIR__ONNX_SPATIAL], after[CHOIR__ONNX_SPATIAL];  // padding
  int64_t out[CHOIR__ONNX_SPATIAL];                                 // windows
} choir__onnx_window_t;

// `count` numbers of an attribute from `least` to CHOIR__ONNX_LARGEST; absent
// ones are `value`. False: it failed.
bool choir__onnx_window_ints(choir__onnx_call_t* c, const char* name,
                             int32_t count, int64_t least, int64_t value,
                             int64_t* out);
// Reads kernel_shape (absent: `kernel`, if not NULL), strides, dilations, pads
// and auto_pad for an image of x (n, c, ...). Not yet `out`. False: it failed.
bool choir__onnx_window_read(choir__onnx_call_t* c, const choir_view_t* x,
                             const int64_t* kernel,
                             choir__onnx_window_t* out_window);
// Counts the windows; `ceil`: the last one may lie over the padding's end, but
// begins before it.
bool choir__onnx_window_count(choir__onnx_call_t* c, bool ceil,
                              choir__onnx_window_t* window);
// Whether there is memory for a result (n, channels, windows).
bool choir__onnx_window_fits(choir__onnx_call_t* c, const choir_view_t* x,
                             int64_t channels,
                             const choir__onnx_window_t* window);
// x (n, c, l) as (n, c, 1, l), and back.
choir_var_t* choir__onnx_with_rows(choir__onnx_call_t* c, choir_var_t* x);
choir_var_t* choir__onnx_without_rows(choir__onnx_call_t* c, choir_var_t* x);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_WINDOW_INTERNAL_H_
