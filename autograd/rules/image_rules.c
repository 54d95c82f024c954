// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// Gradients of convolution, pooling and batch normalisation.

choir_status_t choir__grad_conv2d(choir_grad_t* grad) {
  const choir_conv2d_attrs_t* attrs = grad->attrs;
  choir_tensor_t* x = grad->srcs[0];
  choir_tensor_t* w = grad->srcs[1];
  choir_tensor_t* dy = grad->dy;
  if (attrs->activation == CHOIR_ACTIVATION_RELU) {
    choir_tensor_t* masked[] = {grad->dsts[0], dy};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RELU_GRAD, masked, 2, NULL, &dy));
  }
  choir_tensor_t* for_weight[] = {x, w, dy};
  const int32_t sources[] = {1, 2};
  CHOIR_TRY(choir_grad_emit_many(grad, sources, 2, CHOIR_OP_CONV2D_GRAD_WEIGHT,
                                 for_weight, 3, attrs));
  choir_tensor_t* for_data[] = {x, w, dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_CONV2D_GRAD_DATA, for_data, 3,
                         attrs);
}

choir_status_t choir__grad_max_pool2d(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->dsts[1], grad->dy};
  return choir_grad_emit(grad, 0, CHOIR_OP_MAX_POOL2D_GRAD, srcs, 3,
                         grad->attrs);
}

choir_status_t choir__grad_avg_pool2d(choir_grad_t* grad) {
  return choir_grad_emit2(grad, 0, CHOIR_OP_AVG_POOL2D_GRAD, grad->srcs[0],
                          grad->dy, grad->attrs);
}

choir_status_t choir__grad_batch_norm(choir_grad_t* grad) {
  choir_tensor_t* srcs[] = {grad->srcs[0], grad->srcs[1], grad->dsts[1],
                            grad->dsts[2], grad->dy};
  const int32_t sources[] = {0, 1, 2};
  return choir_grad_emit_many(grad, sources, 3, CHOIR_OP_BATCH_NORM_GRAD, srcs,
                              5, grad->attrs);
}

// y = scale (x - mean) / sqrt(var + eps) + bias with constant mean and var:
// an affine map of x for each channel, written with broadcasting ops.
choir_status_t choir__grad_batch_norm_infer(choir_grad_t* grad) {
  const choir_batch_norm_attrs_t* attrs = grad->attrs;
  const int32_t ndim = choir_tensor_ndim(grad->srcs[0]);
  choir_reshape_attrs_t per_channel = {.ndim = ndim};
  for (int32_t k = 0; k < ndim; ++k) per_channel.shape[k] = k == 1 ? -1 : 1;
  choir_scale_attrs_t add_epsilon = {.factor = 1, .shift = attrs->epsilon};
  choir_tensor_t* deviation = NULL;
  CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SCALE, &grad->srcs[4], 1,
                            &add_epsilon, &deviation));
  CHOIR_TRY(
      choir_grad_temp(grad, CHOIR_OP_SQRT, &deviation, 1, NULL, &deviation));
  if (choir_grad_wants(grad, 0)) {
    choir_tensor_t* ratio[] = {grad->srcs[1], deviation};
    choir_tensor_t* slope = NULL;
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_DIV, ratio, 2, NULL, &slope));
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RESHAPE, &slope, 1, &per_channel,
                              &slope));
    CHOIR_TRY(choir_grad_emit2(grad, 0, CHOIR_OP_MUL, grad->dy, slope, NULL));
  }
  if (choir_grad_wants(grad, 1) || choir_grad_wants(grad, 2)) {
    choir_tensor_t* mean = NULL;
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RESHAPE, &grad->srcs[3], 1,
                              &per_channel, &mean));
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_RESHAPE, &deviation, 1,
                              &per_channel, &deviation));
    // Sums over all dimensions but 1, one by one from the last.
    choir_tensor_t* centred[] = {grad->srcs[0], mean};
    choir_tensor_t* product = NULL;
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_SUB, centred, 2, NULL, &product));
    choir_tensor_t* normal[] = {product, deviation};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_DIV, normal, 2, NULL, &product));
    choir_tensor_t* weighted[] = {product, grad->dy};
    CHOIR_TRY(choir_grad_temp(grad, CHOIR_OP_MUL, weighted, 2, NULL, &product));
    choir_tensor_t* sums[] = {product, grad->dy};
    for (int32_t i = 0; i < 2; ++i) {
      for (int32_t k = ndim - 1; k >= 0; --k) {
        if (k == 1) continue;
        choir_sum_attrs_t over = {.axis = k, .keep_dims = false};
        CHOIR_TRY(
            choir_grad_temp(grad, CHOIR_OP_SUM, &sums[i], 1, &over, &sums[i]));
      }
      CHOIR_TRY(choir_grad_pass(grad, 1 + i, sums[i]));
    }
  }
  return NULL;
}
