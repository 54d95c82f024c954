// SPDX-License-Identifier: Apache-2.0
// Convolutions and pooling.
#include "onnx/onnx_put_def.h"

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
