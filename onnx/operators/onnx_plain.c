// SPDX-License-Identifier: Apache-2.0
#include "onnx/onnx_call_def.h"

void choir__onnx_op_identity(choir__onnx_call_t* c) {
  if (c->in_count > 0 && c->out_count > 0) c->outputs[0] = *c->inputs[0];
}

void choir__onnx_op_relu(choir__onnx_call_t* c) { OUT(0, DO(relu, IN(0))); }

void choir__onnx_op_shape(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  int64_t start = choir__onnx_int(c, "start", 0);
  int64_t end = choir__onnx_int(c, "end", x->ndim);
  if (start < 0) start += x->ndim;
  if (end < 0) end += x->ndim;
  if (start < 0) start = 0;
  if (end > x->ndim) end = x->ndim;
  const int64_t count = end > start ? end - start : 0;
  OUT_AS(0,
         choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count,
                              x->shape + (count ? start : 0)),
         INT64);
}

void choir__onnx_op_reshape(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t shape[CHOIR_MAX_NDIM];
  const int32_t ndim =
      choir__onnx_ints_of(c, 1, "shape", shape, CHOIR_MAX_NDIM);
  if (!x || ndim < 0) return;
  const bool keeps_zero = choir__onnx_int(c, "allowzero", 0) != 0;
  for (int32_t i = 0; i < ndim; ++i)
    if (shape[i] == 0 && !keeps_zero) {
      if (i >= x->ndim) {
        FAIL(INVALID_ARGUMENT,
             "dimension %d of the shape is 0, and the input "
             "has %d dimensions",
             i, x->ndim);
        return;
      }
      shape[i] = x->shape[i];
    }
  OUT(0, choir__onnx_reshape(c, IN(0), ndim, shape));
}

void choir__onnx_op_constant(choir__onnx_call_t* c) {
  int32_t type, count;
  choir_var_t* var = choir__onnx_tensor(c, "value", &type);
  if (!var) var = choir__onnx_tensor(c, "sparse_value", &type);
  if (var) {
    choir__onnx_out_as(c, 0, var, type);
    return;
  }
  if (choir__onnx_has_attr(c, "value_ints")) {
    const int64_t* ints = choir__onnx_ints(c, "value_ints", &count);
    const int64_t shape = count;
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &shape,
                                ints ? ints : &shape));
  } else if (choir__onnx_has_attr(c, "value_floats")) {
    const float* floats = choir__onnx_floats(c, "value_floats", &count);
    const int64_t shape = count;
    const float none = 0;
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_F32, 1, &shape,
                                floats ? floats : &none));
  } else if (choir__onnx_has_attr(c, "value_int")) {
    const int64_t value = choir__onnx_int(c, "value_int", 0);
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &value));
  } else if (choir__onnx_has_attr(c, "value_float")) {
    const float value = (float)choir__onnx_float(c, "value_float", 0);
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_F32, 0, NULL, &value));
  } else {
    FAIL(UNIMPLEMENTED,
         "the constant is no number; Choir has no tensors of "
         "strings");
  }
}
