// SPDX-License-Identifier: Apache-2.0
// Windows of convolutions and poolings, and linear maps along an axis.
#include "onnx/operators/onnx_window_internal.h"

#include <string.h>

// ---- Windows ----

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

// ---- Sizes ----

bool choir__onnx_times(choir__onnx_call_t* c, int64_t a, int64_t b,
                       int64_t* out) {
  if (!__builtin_mul_overflow(a, b, out)) return true;
  FAIL(INVALID_ARGUMENT, "sizes %lld and %lld are too large", (long long)a,
       (long long)b);
  return false;
}

bool choir__onnx_product(choir__onnx_call_t* c, const int64_t* sizes,
                         int32_t first, int32_t last, int64_t* out) {
  *out = 1;
  for (int32_t i = first; i < last; ++i)
    if (!choir__onnx_times(c, *out, sizes[i], out)) return false;
  return true;
}

bool choir__onnx_fits(choir__onnx_call_t* c, choir_dtype_t dtype, int32_t ndim,
                      const int64_t* shape) {
  // Twice, as what it is made of is there as well. A size of 0 hides no other.
  int64_t bytes = 2 * (int64_t)choir_dtype_bytes(dtype);
  for (int32_t i = 0; i < ndim; ++i)
    if (shape[i] > 1 && !choir__onnx_times(c, bytes, shape[i], &bytes))
      return false;
  choir_status_t status =
      choir_device_check_memory(choir_scope_device(c->scope), (uint64_t)bytes);
  if (status) choir__onnx_fail(c, status);
  return !status;
}

bool choir__onnx_window_fits(choir__onnx_call_t* c, const choir_view_t* x,
                             int64_t channels,
                             const choir__onnx_window_t* window) {
  int64_t shape[2 + CHOIR__ONNX_SPATIAL] = {x->shape[0], channels};
  for (int32_t i = 0; i < window->count; ++i) shape[2 + i] = window->out[i];
  return choir__onnx_fits(c, x->dtype, 2 + window->count, shape);
}

// ---- Constants ----

double* choir__onnx_matrix(choir__onnx_call_t* c, int64_t rows,
                           int64_t columns) {
  uint64_t bytes;
  if (rows < 0 || columns < 0 ||
      __builtin_mul_overflow((uint64_t)rows, (uint64_t)columns, &bytes) ||
      __builtin_mul_overflow(bytes, sizeof(double), &bytes) ||
      bytes > UINT64_MAX / 4) {
    FAIL(INVALID_ARGUMENT, "a matrix of %lld x %lld is too large",
         (long long)rows, (long long)columns);
    return NULL;
  }
  // Constants are made of it, on the host and on the step's device.
  choir_status_t status =
      choir_device_check_memory(choir_scope_device(c->scope), 3 * bytes);
  if (status) {
    choir__onnx_fail(c, status);
    return NULL;
  }
  return choir_scope_alloc(c->scope, bytes + 1);
}

choir_var_t* choir__onnx_numbers(choir__onnx_call_t* c, choir_dtype_t dtype,
                                 int32_t ndim, const int64_t* shape,
                                 const double* numbers) {
  choir_view_t view;
  choir_status_t status = choir_view_make(dtype, ndim, shape, &view);
  if (status) return choir__onnx_fail(c, status);
  const int64_t count = choir_view_count(&view);
  const size_t width = choir_dtype_bytes(dtype);
  char* data = choir_scope_alloc(c->scope, (size_t)count * width + 1);
  if (!data) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; i < count; ++i)
    choir_element_store(data + (size_t)i * width, dtype, numbers[i]);
  return choir__onnx_constant(c, dtype, ndim, shape, data);
}

choir_var_t* choir__onnx_filled(choir__onnx_call_t* c, choir_dtype_t dtype,
                                int32_t ndim, const int64_t* shape,
                                double value) {
  choir_broadcast_to_attrs_t attrs = {.ndim = ndim};
  for (int32_t i = 0; i < ndim; ++i) attrs.shape[i] = shape[i];
  return DO(broadcast_to, choir__onnx_scalar(c, dtype, value), &attrs);
}

choir_var_t* choir__onnx_beside(choir__onnx_call_t* c, choir_var_t* var,
                                choir_dtype_t dtype) {
  const choir_view_t* view = choir_var_view(var);
  const bool is_narrow = dtype == CHOIR_DTYPE_F16 || dtype == CHOIR_DTYPE_BF16;
  return view && view->dtype == CHOIR_DTYPE_F32 && is_narrow
             ? var
             : choir__onnx_cast(c, var, dtype);
}

choir_var_t* choir__onnx_line(choir__onnx_call_t* c, choir_var_t* x,
                              double factor, double shift) {
  return DO(scale, x, &(choir_scale_attrs_t){.factor = factor, .shift = shift});
}

// ---- Linear maps ----

choir_var_t* choir__onnx_along(choir__onnx_call_t* c, choir_var_t* x,
                               int32_t axis, int64_t rows,
                               const double* matrix) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || !matrix) return choir_scope_fail(c->scope, NULL);
  int64_t parts[3] = {1, view->shape[axis], 1};
  int64_t shape[CHOIR_MAX_NDIM];
  const int32_t ndim = view->ndim;
  for (int32_t i = 0; i < ndim; ++i)
    shape[i] = i == axis ? rows : view->shape[i];
  if (!choir__onnx_product(c, view->shape, 0, axis, &parts[0]) ||
      !choir__onnx_product(c, view->shape, axis + 1, ndim, &parts[2]))
    return choir_scope_fail(c->scope, NULL);
  const int64_t sizes[2] = {rows, parts[1]};
  choir_var_t* factor = choir__onnx_numbers(c, view->dtype, 2, sizes, matrix);
  choir_var_t* y;
  if (parts[2] == 1) {
    const choir_matmul_attrs_t attrs = {.transpose_b = true};
    y = DO(matmul, choir__onnx_reshape(c, x, 2, parts), factor, &attrs);
  } else {
    y = DO(matmul, factor, choir__onnx_reshape(c, x, 3, parts), NULL);
  }
  return choir__onnx_reshape(c, y, ndim, shape);
}
