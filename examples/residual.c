// SPDX-License-Identifier: Apache-2.0
#include "examples/residual.h"

choir_layer_t* residual_conv(choir_model_t* model, const char* name,
                             int64_t channels, int64_t kernel_size,
                             int64_t stride) {
  return choir_layer_conv2d(model, name, .out_channels = channels,
                            .kernel_size = kernel_size, .stride = stride,
                            .padding = kernel_size / 2, .bias = false);
}

choir_layer_t* residual_norm(choir_model_t* model, const char* name,
                             bool sync) {
  return choir_layer_batch_norm2d(model, name, .momentum = 0.1, .sync = sync);
}
