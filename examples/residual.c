// SPDX-License-Identifier: Apache-2.0
#include "examples/residual.h"

#include <stdio.h>

// The model copies names.
typedef struct layer_name_s {
  char text[64];
} layer_name_t;

static const char* join(layer_name_t* joined, const char* block,
                        const char* name) {
  if (!block) return name;
  snprintf(joined->text, sizeof(joined->text), "%s.%s", block, name);
  return joined->text;
}

choir_layer_t* residual_conv(choir_model_t* model, const char* block,
                             const char* name, int64_t channels,
                             int64_t kernel_size, int64_t stride) {
  layer_name_t joined;
  return choir_layer_conv2d(model, join(&joined, block, name),
                            .out_channels = channels,
                            .kernel_size = kernel_size, .stride = stride,
                            .padding = kernel_size / 2, .bias = false);
}

choir_layer_t* residual_norm(choir_model_t* model, const char* block,
                             const char* name) {
  layer_name_t joined;
  return choir_layer_batch_norm2d(model, join(&joined, block, name),
                                  .momentum = 0.1);
}

choir_layer_t* residual_relu(choir_model_t* model, const char* block,
                             const char* name) {
  layer_name_t joined;
  return choir_layer_relu(model, join(&joined, block, name));
}
