// SPDX-License-Identifier: Apache-2.0
// Products, convolutions, pooling and norms.
#include "onnx/onnx_put_def.h"

// x with its last two dimensions in the other order.
static const char* turned(choir__onnx_put_t* p, const char* x, int32_t ndim) {
  int64_t axes[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < ndim; ++i) axes[i] = i;
  axes[ndim - 1] = ndim - 2;
  axes[ndim - 2] = ndim - 1;
  const char* y = NODE("Transpose", x);
  choir__onnx_put_ints(p, "perm", ndim, axes);
  return y;
}

void choir__onnx_put_matmul(choir__onnx_put_t* p) {
  const char *a = SRC(0), *b = SRC(1);
  if (ATTRS(matmul)->transpose_a) a = turned(p, a, SRC_VIEW(0)->ndim);
  if (ATTRS(matmul)->transpose_b) b = turned(p, b, SRC_VIEW(1)->ndim);
  DST(0, NODE("MatMul", a, b));
}

void choir__onnx_put_linear(choir__onnx_put_t* p) {
  DST(0, SRC_VIEW(0)->ndim == 2
             ? NODE("Gemm", SRC(0), SRC(1), SRC(2))
             : NODE("Add", NODE("MatMul", SRC(0), SRC(1)), SRC(2)));
}

// ---- Windows ----

// What lies around the image, also where the op names a rule for it: runtimes
// do not know each rule beside dilation.
static void put_pads(choir__onnx_put_t* p, int32_t mode, const int64_t* padding,
                     const int64_t* after, const int64_t* stride,
                     const int64_t* window) {
  int64_t pads[4] = {0};  // above, left, below, right
  for (int32_t k = 0; k < 2; ++k) {
    if (mode == CHOIR_WINDOW_PAD_NOTSET || mode == CHOIR_WINDOW_PAD_EXPLICIT) {
      pads[k] = padding[k];
      pads[2 + k] = mode == CHOIR_WINDOW_PAD_EXPLICIT ? after[k] : padding[k];
    } else if (mode != CHOIR_WINDOW_PAD_VALID) {
      const int64_t size = SRC_VIEW(0)->shape[2 + k];
      const int64_t results = (size + stride[k] - 1) / stride[k];
      const int64_t all = (results - 1) * stride[k] + window[k] - size;
      const int64_t less = all > 0 ? all / 2 : 0;
      const int64_t more = all > 0 ? all - less : 0;
      pads[k] = mode == CHOIR_WINDOW_PAD_SAME_UPPER ? less : more;
      pads[2 + k] = mode == CHOIR_WINDOW_PAD_SAME_UPPER ? more : less;
    }
  }
  choir__onnx_put_ints(p, "pads", 4, pads);
}

void choir__onnx_put_conv2d(choir__onnx_put_t* p) {
  const choir_conv2d_attrs_t* a = ATTRS(conv2d);
  const char* y = NODE("Conv", SRC(0), SRC(1), SRC(2));
  choir__onnx_put_ints(p, "strides", 2, a->stride);
  choir__onnx_put_ints(p, "dilations", 2, a->dilation);
  choir__onnx_put_int(p, "group", a->groups);
  int64_t window[2];
  for (int32_t k = 0; k < 2; ++k)
    window[k] = (SRC_VIEW(1)->shape[2 + k] - 1) * a->dilation[k] + 1;
  put_pads(p, a->pad_mode, a->padding, a->padding_after, a->stride, window);
  if (a->activation == CHOIR_ACTIVATION_RELU) y = NODE("Relu", y);
  DST(0, y);
}

void choir__onnx_put_conv_transpose2d(choir__onnx_put_t* p) {
  const choir_conv_transpose2d_attrs_t* a = ATTRS(conv_transpose2d);
  const char* y = NODE("ConvTranspose", SRC(0), SRC(1));
  choir__onnx_put_ints(p, "strides", 2, a->stride);
  choir__onnx_put_ints(p, "dilations", 2, a->dilation);
  choir__onnx_put_ints(p, "output_padding", 2, a->output_padding);
  choir__onnx_put_int(p, "group", a->groups);
  put_pads(p, CHOIR_WINDOW_PAD_NOTSET, a->padding, a->padding, a->stride, NULL);
  DST(0, y);
}

void choir__onnx_put_pool2d(choir__onnx_put_t* p) {
  const choir_pool2d_attrs_t* a = ATTRS(max_pool2d);
  const char* y = NODE(p->type, SRC(0));
  choir__onnx_put_ints(p, "kernel_shape", 2, a->kernel);
  choir__onnx_put_ints(p, "strides", 2, a->stride);
  put_pads(p, a->pad_mode, a->padding, a->padding_after, a->stride, a->kernel);
  if (p->entry->op == CHOIR_OP_AVG_POOL2D)
    choir__onnx_put_int(p, "count_include_pad", 1);
  DST(0, y);
}

// ---- Norms ----

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
