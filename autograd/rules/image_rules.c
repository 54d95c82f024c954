// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "autograd/grad_rule.h"

// Gradients of convolution, pooling and batch normalisation.

choir_status_t choir__grad_conv2d(choir_grad_t* grad) {
  const choir_conv2d_attrs_t* attrs = grad->attrs;
  choir_tensor_t* x = grad->srcs[0];
  choir_tensor_t* w = grad->srcs[1];
  choir_tensor_t* dy = grad->dy;
  if (attrs->activation == CHOIR_ACTIVATION_RELU && !grad->dy_is_masked) {
    choir_tensor_t* masked[] = {grad->dsts[0], dy};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RELU_GRAD, masked, 2, NULL, &dy));
  }
  choir_tensor_t* for_weight[] = {x, w, dy};
  const int32_t sources[] = {1, 2};
  CHOIR_TRY(choir_grad_emit_rows(grad, sources, 2, CHOIR_OP_CONV2D_GRAD_WEIGHT,
                                 for_weight, 3, 1 | 4, attrs));
  choir_tensor_t* for_data[] = {x, w, dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_CONV2D_GRAD_DATA, for_data, 3,
                         attrs);
}

choir_status_t choir__grad_conv_transpose2d(choir_grad_t* grad) {
  const choir_conv_transpose2d_attrs_t* own = grad->attrs;
  choir_conv2d_attrs_t attrs = {.groups = own->groups};
  memcpy(attrs.stride, own->stride, sizeof attrs.stride);
  memcpy(attrs.padding, own->padding, sizeof attrs.padding);
  memcpy(attrs.dilation, own->dilation, sizeof attrs.dilation);
  choir_tensor_t* w = grad->srcs[1];
  choir_tensor_t* for_weight[] = {grad->dy, w, grad->srcs[0]};
  const int32_t sources[] = {1, -1};
  CHOIR_TRY(choir_grad_emit_many(grad, sources, 2, CHOIR_OP_CONV2D_GRAD_WEIGHT,
                                 for_weight, 3, &attrs));
  if (!choir_grad_wants(grad, 0)) return NULL;
  // A bias of zeros for each channel of x.
  choir_view_t channels = *choir_tensor_view(w);
  channels.ndim = 1;
  choir_tensor_t* shape = NULL;
  CHOIR_TRY(choir_tensor_from_view(&channels, &shape));
  const choir_fill_attrs_t zero = {.value = 0};
  choir_tensor_t* bias = NULL;
  choir_status_t status =
      choir_grad_temp(grad, CHOIR_OP_FILL, &shape, 1, &zero, &bias);
  choir_tensor_release(shape);
  CHOIR_TRY(status);
  choir_tensor_t* for_data[] = {grad->dy, w, bias};
  return choir_grad_emit(grad, 0, CHOIR_OP_CONV2D, for_data, 3, &attrs);
}

static bool lie_alike(const choir_tensor_t* a, const choir_tensor_t* b) {
  const size_t bytes = (size_t)choir_tensor_ndim(a) * sizeof(int64_t);
  return memcmp(choir_tensor_strides(a), choir_tensor_strides(b), bytes) == 0;
}

// A gradient goes to the largest of a window, which is above 0 just where the
// pooled image is. So a ReLU in front of the pooling is undone here, on the
// pooled image, which is the smaller one; the bits are the same. Not where the
// gradient lies otherwise than the image (after a flatten): walking two orders
// at once costs more than is won.
choir_status_t choir__grad_max_pool2d(choir_grad_t* grad) {
  choir_tensor_t* dy = grad->dy;
  if (choir_grad_wants(grad, 0) && choir_grad_is_rectified(grad, 0) &&
      lie_alike(dy, grad->dsts[0])) {
    choir_tensor_t* masked[] = {grad->dsts[0], dy};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RELU_GRAD, masked, 2, NULL, &dy));
    choir_grad_note_masked(grad, 0);
  }
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->dsts[1], dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_MAX_POOL2D_GRAD, srcs, 3,
                         grad->attrs);
}

// Sums over all dimensions but 1, one by one from the last.
static choir_status_t sum_per_channel(choir_grad_t* grad,
                                      choir_tensor_t* tensor,
                                      choir_tensor_t** out_sum) {
  for (int32_t k = choir_tensor_ndim(tensor) - 1; k >= 0; --k) {
    if (k == 1) continue;
    choir_sum_attrs_t over = {.axis = k, .keep_dims = false};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SUM, &tensor, 1, &over, &tensor));
  }
  *out_sum = tensor;
  return NULL;
}

// y = scale (x - mean) / d + bias with d = sqrt(var + eps): an affine map of x
// for each channel, written with broadcasting ops. With the sums over a channel
// of dy and of n dy, n = (x - mean) / d:
//   dx = scale / d dy     dscale = sum n dy     dbias = sum dy
//   dmean = -scale / d sum dy     dvar = -scale / (2 d^2) sum n dy
choir_status_t choir__grad_batch_norm_infer(choir_grad_t* grad) {
  const choir_batch_norm_attrs_t* attrs = grad->attrs;
  const int32_t ndim = choir_tensor_ndim(grad->srcs[0]);
  choir_reshape_attrs_t per_channel = {.ndim = ndim};
  for (int32_t k = 0; k < ndim; ++k) per_channel.shape[k] = k == 1 ? -1 : 1;
  choir_scale_attrs_t add_epsilon = {.factor = 1, .shift = attrs->epsilon};
  choir_tensor_t* deviation = NULL;  // (c)
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SCALE, &grad->srcs[4], 1,
                            &add_epsilon, &deviation));
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_SQRT, &deviation, 1, NULL, &deviation));
  choir_tensor_t* ratio[] = {grad->srcs[1], deviation};
  choir_tensor_t* slope = NULL;  // (c)
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_DIV, ratio, 2, NULL, &slope));
  if (choir_grad_wants(grad, 0)) {
    choir_tensor_t* spread = NULL;
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RESHAPE, &slope, 1, &per_channel,
                              &spread));
    CHOIR_TRY(choir_grad_emit2(grad, 0, CHOIR_OP_MUL, grad->dy, spread, NULL));
  }
  if (choir_grad_wants(grad, 2) || choir_grad_wants(grad, 3)) {
    choir_tensor_t* sum = NULL;
    CHOIR_TRY(sum_per_channel(grad, grad->dy, &sum));
    CHOIR_TRY(choir_grad_pass(grad, 2, sum));
    choir_tensor_t* product = NULL;
    choir_tensor_t* factors[] = {slope, sum};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MUL, factors, 2, NULL, &product));
    CHOIR_TRY(choir_grad_emit1(grad, 3, CHOIR_OP_NEG, product, NULL));
  }
  if (choir_grad_wants(grad, 1) || choir_grad_wants(grad, 4)) {
    choir_tensor_t* mean = NULL;
    choir_tensor_t* spread = NULL;
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RESHAPE, &grad->srcs[3], 1,
                              &per_channel, &mean));
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RESHAPE, &deviation, 1,
                              &per_channel, &spread));
    choir_tensor_t* centred[] = {grad->srcs[0], mean};
    choir_tensor_t* product = NULL;
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SUB, centred, 2, NULL, &product));
    choir_tensor_t* normal[] = {product, spread};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_DIV, normal, 2, NULL, &product));
    choir_tensor_t* weighted[] = {product, grad->dy};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MUL, weighted, 2, NULL, &product));
    choir_tensor_t* sum = NULL;
    CHOIR_TRY(sum_per_channel(grad, product, &sum));
    CHOIR_TRY(choir_grad_pass(grad, 1, sum));
    choir_tensor_t* quotient[] = {slope, deviation};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_DIV, quotient, 2, NULL, &product));
    choir_tensor_t* factors[] = {product, sum};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MUL, factors, 2, NULL, &product));
    choir_scale_attrs_t minus_half = {.factor = -0.5, .shift = 0};
    CHOIR_TRY(choir_grad_emit1(grad, 4, CHOIR_OP_SCALE, product, &minus_half));
  }
  return NULL;
}
