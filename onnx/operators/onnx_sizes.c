// SPDX-License-Identifier: Apache-2.0
// Products of sizes, and whether there is memory for what has them.
#include "onnx/operators/onnx_sizes_internal.h"

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

static bool check_bytes(choir__onnx_call_t* c, int64_t bytes) {
  choir_status_t status =
      choir_device_check_memory(choir_scope_device(c->scope), (uint64_t)bytes);
  if (status) choir__onnx_fail(c, status);
  return !status;
}

bool choir__onnx_has_room(choir__onnx_call_t* c, choir_dtype_t dtype,
                          int32_t ndim, const int64_t* shape) {
  if (!CALL_IS_OK) return false;
  choir_view_t view;
  choir_status_t status = choir_view_make(dtype, ndim, shape, &view);
  if (status) {
    choir__onnx_fail(c, status);
    return false;
  }
  return check_bytes(
      c, choir_view_count(&view) * (int64_t)choir_dtype_bytes(dtype));
}

bool choir__onnx_fits(choir__onnx_call_t* c, choir_dtype_t dtype, int32_t ndim,
                      const int64_t* shape) {
  int64_t bytes = 2 * (int64_t)choir_dtype_bytes(dtype);
  for (int32_t i = 0; i < ndim; ++i)
    if (shape[i] > 1 && !choir__onnx_times(c, bytes, shape[i], &bytes))
      return false;
  return check_bytes(c, bytes);
}
