// SPDX-License-Identifier: Apache-2.0
// Norms.
#include "onnx/onnx_put_def.h"

void choir__onnx_put_batch_norm_infer(choir__onnx_put_t* p) {
  const char* y =
      NODE("BatchNormalization", SRC(0), SRC(1), SRC(2), SRC(3), SRC(4));
  choir__onnx_put_float(p, "epsilon", ATTRS(batch_norm_infer)->epsilon);
  DST(0, y);
}

static const char* mean_over(choir__onnx_put_t* p, const char* x,
                             const char* axes) {
  const char* y = NODE("ReduceMean", x, axes);
  choir__onnx_put_int(p, "keepdims", 1);
  return y;
}

// x / sqrt(moment + epsilon)
static const char* over_root(choir__onnx_put_t* p, const char* x,
                             const char* moment, double epsilon) {
  const char* sum = NODE("Add", moment, NUMBER(SRC_VIEW(0)->dtype, epsilon));
  return NODE("Div", x, NODE("Sqrt", sum));
}

// By the moments of the batch.
void choir__onnx_put_batch_norm(choir__onnx_put_t* p) {
  const int32_t ndim = SRC_VIEW(0)->ndim;
  int64_t others[CHOIR_MAX_NDIM], behind[CHOIR_MAX_NDIM];
  for (int32_t i = 1; i < ndim; ++i) others[i - 1] = i == 1 ? 0 : i;
  for (int32_t i = 2; i < ndim; ++i) behind[i - 2] = i - 1;
  const char* axes = choir__onnx_put_numbers(p, ndim - 1, others);
  const char *scale = SRC(1), *bias = SRC(2);
  if (ndim > 2) {
    const char* places = choir__onnx_put_numbers(p, ndim - 2, behind);
    scale = NODE("Unsqueeze", scale, places);
    bias = NODE("Unsqueeze", bias, places);
  }
  const char* mean = mean_over(p, SRC(0), axes);
  const char* x = NODE("Sub", SRC(0), mean);
  const char* variance = mean_over(p, NODE("Mul", x, x), axes);
  x = over_root(p, x, variance, ATTRS(batch_norm)->epsilon);
  if (WANTS(1)) DST(1, NODE("Reshape", mean, NUMBERS(-1)));
  if (WANTS(2)) DST(2, NODE("Reshape", variance, NUMBERS(-1)));
  DST(0, NODE("Add", NODE("Mul", x, scale), bias));
}

void choir__onnx_put_layer_norm(choir__onnx_put_t* p) {
  const char* y = NODE("LayerNormalization", SRC(0), SRC(1), SRC(2));
  choir__onnx_put_int(p, "axis", -1);
  choir__onnx_put_float(p, "epsilon", ATTRS(layer_norm)->epsilon);
  DST(0, y);
}

void choir__onnx_put_rms_norm(choir__onnx_put_t* p) {
  const char* square = NODE("Mul", SRC(0), SRC(0));
  const char* moment = mean_over(p, square, NUMBERS(-1));
  DST(0, NODE("Mul", over_root(p, SRC(0), moment, ATTRS(rms_norm)->epsilon),
              SRC(1)));
}
