// SPDX-License-Identifier: Apache-2.0
// Constants that operators make, and linear maps by them.
#include "onnx/operators/onnx_constants_internal.h"

// ---- Constants ----

double* choir__onnx_matrix(choir__onnx_call_t* c, int64_t rows,
                           int64_t columns) {
  // Constants are made of it, on the host and on the step's device.
  const int64_t shape[] = {3, rows, columns};
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_F64, 3, shape)) return NULL;
  return choir_scope_alloc(c->scope,
                           (size_t)rows * (size_t)columns * sizeof(double) + 1);
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
