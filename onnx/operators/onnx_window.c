// SPDX-License-Identifier: Apache-2.0
// Windows of convolutions and poolings.
#include "onnx/operators/onnx_window_internal.h"

#include <string.h>

bool choir__onnx_window_ints(choir__onnx_call_t* c, const char* name,
                             int32_t count, int64_t least, int64_t value,
                             int64_t* out) {
  int32_t given;
  const int64_t* ints = choir__onnx_ints(c, name, &given);
  if (given != 0 && given != count) {
    FAIL(INVALID_ARGUMENT, "attribute %s has %d numbers; needs %d", name, given,
         count);
    return false;
  }
  for (int32_t i = 0; i < count; ++i) {
    out[i] = given ? ints[i] : value;
    if (out[i] >= least && out[i] <= CHOIR__ONNX_LARGEST) continue;
    FAIL(INVALID_ARGUMENT, "attribute %s has %lld; needs %lld to %d", name,
         (long long)out[i], (long long)least, CHOIR__ONNX_LARGEST);
    return false;
  }
  return true;
}

static bool read_kernel(choir__onnx_call_t* c, const int64_t* kernel,
                        choir__onnx_window_t* window) {
  int32_t given;
  (void)choir__onnx_ints(c, "kernel_shape", &given);
  if (given == 0 && !kernel) {
    FAIL(INVALID_ARGUMENT, "attribute kernel_shape is missing");
    return false;
  }
  if (!choir__onnx_window_ints(c, "kernel_shape", window->count, 1, 1,
                               window->kernel))
    return false;
  for (int32_t i = 0; kernel && i < window->count; ++i) {
    if (given > 0 && kernel[i] != window->kernel[i]) {
      FAIL(INVALID_ARGUMENT,
           "kernel_shape has %lld where the weights have %lld",
           (long long)window->kernel[i], (long long)kernel[i]);
      return false;
    }
    if (kernel[i] < 1 || kernel[i] > CHOIR__ONNX_LARGEST) {
      FAIL(INVALID_ARGUMENT, "the kernel has size %lld; needs 1 to %d",
           (long long)kernel[i], CHOIR__ONNX_LARGEST);
      return false;
    }
    window->kernel[i] = kernel[i];
  }
  return true;
}

// So much padding that each `stride` elements have a window.
static void pad_same(choir__onnx_window_t* window, bool is_upper) {
  for (int32_t i = 0; i < window->count; ++i) {
    const int64_t size = window->size[i], stride = window->stride[i];
    const int64_t windows = size / stride + (size % stride != 0);
    int64_t total = (windows - 1) * stride + window->reach[i] - size;
    if (total < 0) total = 0;
    window->before[i] = is_upper ? total / 2 : total - total / 2;
    window->after[i] = total - window->before[i];
  }
}

static bool read_auto_pad(choir__onnx_call_t* c,
                          choir__onnx_auto_pad_t* out_mode) {
  static const char* const names[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER",
                                      "VALID"};
  const char* mode = choir__onnx_string(c, "auto_pad", "NOTSET");
  for (int32_t i = 0; i < 4; ++i)
    if (strcmp(mode, names[i]) == 0 || (i == 0 && !*mode)) {
      *out_mode = (choir__onnx_auto_pad_t)i;
      return true;
    }
  FAIL(INVALID_ARGUMENT,
       "auto_pad is '%.32s'; needs NOTSET, SAME_UPPER, SAME_LOWER or VALID",
       mode);
  return false;
}

static bool read_pads(choir__onnx_call_t* c, choir__onnx_window_t* window) {
  if (!read_auto_pad(c, &window->auto_pad)) return false;
  if (window->auto_pad == CHOIR__ONNX_PAD_VALID) return true;
  if (window->auto_pad != CHOIR__ONNX_PAD_NOTSET) {
    pad_same(window, window->auto_pad == CHOIR__ONNX_PAD_SAME_UPPER);
    return true;
  }
  int64_t pads[2 * CHOIR__ONNX_SPATIAL] = {0};
  if (!choir__onnx_window_ints(c, "pads", 2 * window->count, 0, 0, pads))
    return false;
  for (int32_t i = 0; i < window->count; ++i) {
    window->before[i] = pads[i];
    window->after[i] = pads[window->count + i];
  }
  return true;
}

bool choir__onnx_window_read(choir__onnx_call_t* c, const choir_view_t* x,
                             const int64_t* kernel,
                             choir__onnx_window_t* out_window) {
  *out_window = (choir__onnx_window_t){.count = x->ndim - 2};
  const int32_t count = out_window->count;
  if (count < 1 || count > CHOIR__ONNX_SPATIAL) {
    FAIL(UNIMPLEMENTED, "x has %d dimensions; needs 3 to %d", x->ndim,
         2 + CHOIR__ONNX_SPATIAL);
    return false;
  }
  for (int32_t i = 0; i < count; ++i) {
    out_window->size[i] = x->shape[2 + i];
    if (x->shape[2 + i] <= CHOIR__ONNX_LARGEST) continue;
    FAIL(INVALID_ARGUMENT, "the image has size %lld; at most %d is possible",
         (long long)x->shape[2 + i], CHOIR__ONNX_LARGEST);
    return false;
  }
  if (!read_kernel(c, kernel, out_window) ||
      !choir__onnx_window_ints(c, "strides", count, 1, 1, out_window->stride) ||
      !choir__onnx_window_ints(c, "dilations", count, 1, 1,
                               out_window->dilation))
    return false;
  for (int32_t i = 0; i < count; ++i)
    out_window->reach[i] =
        (out_window->kernel[i] - 1) * out_window->dilation[i] + 1;
  return read_pads(c, out_window);
}

bool choir__onnx_window_count(choir__onnx_call_t* c, bool ceil,
                              choir__onnx_window_t* window) {
  for (int32_t i = 0; i < window->count; ++i) {
    const int64_t padded =
        window->size[i] + window->before[i] + window->after[i];
    const int64_t stride = window->stride[i];
    int64_t room = padded - window->reach[i];
    if (ceil) room += stride - 1;
    if (room < 0) {
      FAIL(INVALID_ARGUMENT,
           "the kernel covers %lld; needs to fit the padded image of %lld",
           (long long)window->reach[i], (long long)padded);
      return false;
    }
    int64_t out = room / stride + 1;
    if (ceil && out > 1 &&
        (out - 1) * stride >= window->size[i] + window->before[i])
      --out;
    window->out[i] = out;
  }
  return true;
}

bool choir__onnx_window_fits(choir__onnx_call_t* c, const choir_view_t* x,
                             int64_t channels,
                             const choir__onnx_window_t* window) {
  int64_t shape[2 + CHOIR__ONNX_SPATIAL] = {x->shape[0], channels};
  for (int32_t i = 0; i < window->count; ++i) shape[2 + i] = window->out[i];
  return choir__onnx_fits(c, x->dtype, 2 + window->count, shape);
}

choir_var_t* choir__onnx_with_rows(choir__onnx_call_t* c, choir_var_t* x) {
  const int64_t axis = 2;
  return choir__onnx_unsqueeze(c, x, &axis, 1);
}

choir_var_t* choir__onnx_without_rows(choir__onnx_call_t* c, choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  const int64_t shape[] = {view->shape[0], view->shape[1], view->shape[3]};
  return choir__onnx_reshape(c, x, 3, shape);
}
