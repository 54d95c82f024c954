// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_WINDOW_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_WINDOW_INTERNAL_H_

#include "onnx/onnx_call_def.h"

// What convolutions and poolings share: the attributes of a window, and linear
// maps along an axis.

enum { CHOIR__ONNX_SPATIAL = 3 };
// No sum of a few such sizes overflows.
enum { CHOIR__ONNX_LARGEST = 1 << 30 };

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
// x (n, c, l) as (n, c, 1, l), and back.
choir_var_t* choir__onnx_with_rows(choir__onnx_call_t* c, choir_var_t* x);
choir_var_t* choir__onnx_without_rows(choir__onnx_call_t* c, choir_var_t* x);

// *out = a b, both from 0 on; false: it is too large.
bool choir__onnx_times(choir__onnx_call_t* c, int64_t a, int64_t b,
                       int64_t* out);
// The product of sizes from `first` to before `last`.
bool choir__onnx_product(choir__onnx_call_t* c, const int64_t* sizes,
                         int32_t first, int32_t last, int64_t* out);
// Whether there is memory for a result of this shape: sizes that a file says
// may be any.
bool choir__onnx_fits(choir__onnx_call_t* c, choir_dtype_t dtype, int32_t ndim,
                      const int64_t* shape);
// The same of a result (n, channels, windows).
bool choir__onnx_window_fits(choir__onnx_call_t* c, const choir_view_t* x,
                             int64_t channels,
                             const choir__onnx_window_t* window);
// x with its axis `axis` multiplied by a matrix: y[.., r, ..] = sum over k of
// matrix[r * size + k] x[.., k, ..]. Gradients flow to x, of a floating-point
// dtype.
choir_var_t* choir__onnx_along(choir__onnx_call_t* c, choir_var_t* x,
                               int32_t axis, int64_t rows,
                               const double* matrix);
// Cleared memory for rows * columns numbers; NULL: it failed.
double* choir__onnx_matrix(choir__onnx_call_t* c, int64_t rows,
                           int64_t columns);
// A constant of `dtype` with these numbers.
choir_var_t* choir__onnx_numbers(choir__onnx_call_t* c, choir_dtype_t dtype,
                                 int32_t ndim, const int64_t* shape,
                                 const double* numbers);
// A constant in which all elements are `value`; it takes no memory.
choir_var_t* choir__onnx_filled(choir__onnx_call_t* c, choir_dtype_t dtype,
                                int32_t ndim, const int64_t* shape,
                                double value);
// Scales and the like beside an x of this dtype: as it, but F32 stays beside
// numbers of 16 bits.
choir_var_t* choir__onnx_beside(choir__onnx_call_t* c, choir_var_t* var,
                                choir_dtype_t dtype);
// factor x + shift.
choir_var_t* choir__onnx_line(choir__onnx_call_t* c, choir_var_t* x,
                              double factor, double shift);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_WINDOW_INTERNAL_H_
