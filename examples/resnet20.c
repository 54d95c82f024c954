// SPDX-License-Identifier: Apache-2.0
#include "examples/resnet20.h"

#include <stdio.h>

// Layers of the block `prefix`, "stage2.block1", are called
// "stage2.block1.conv1" and so on; the model copies names.
typedef struct layer_name_s {
  char text[64];
} layer_name_t;

static const char* name_of(layer_name_t* name, const char* prefix,
                           const char* layer) {
  snprintf(name->text, sizeof(name->text), "%s.%s", prefix, layer);
  return name->text;
}

static choir_layer_t* conv3x3(choir_model_t* model, const char* name,
                              int64_t channels, int64_t stride) {
  return choir_layer_conv2d(model, name, .out_channels = channels,
                            .kernel_size = 3, .stride = stride, .padding = 1,
                            .bias = false);
}

// The new batch has a tenth of the weight in the averages for evaluation.
static choir_layer_t* norm(choir_model_t* model, const char* name) {
  return choir_layer_batch_norm2d(model, name, .momentum = 0.1);
}

static void define_block(choir_model_t* model, const char* prefix,
                         int64_t channels, int64_t stride,
                         resnet20_block_t* block) {
  layer_name_t name;
  block->conv1 =
      conv3x3(model, name_of(&name, prefix, "conv1"), channels, stride);
  block->norm1 = norm(model, name_of(&name, prefix, "norm1"));
  block->relu1 = choir_layer_relu(model, name_of(&name, prefix, "relu1"));
  block->conv2 = conv3x3(model, name_of(&name, prefix, "conv2"), channels, 1);
  block->norm2 = norm(model, name_of(&name, prefix, "norm2"));
  block->relu2 = choir_layer_relu(model, name_of(&name, prefix, "relu2"));
  if (stride == 1) return;
  block->projection = choir_layer_conv2d(
      model, name_of(&name, prefix, "projection"), .out_channels = channels,
      .kernel_size = 1, .stride = stride, .bias = false);
  block->projection_norm =
      norm(model, name_of(&name, prefix, "projection_norm"));
}

static void define(choir_model_t* model, void* self) {
  resnet20_t* net = self;
  net->conv = conv3x3(model, "conv", 16, 1);
  net->norm = norm(model, "norm");
  net->relu = choir_layer_relu(model, "relu");
  for (int s = 0; s < RESNET20_STAGES; ++s)
    for (int b = 0; b < RESNET20_BLOCKS; ++b) {
      char prefix[48];
      snprintf(prefix, sizeof(prefix), "stage%d.block%d", s + 1, b + 1);
      define_block(model, prefix, (int64_t)16 << s, s > 0 && b == 0 ? 2 : 1,
                   &net->blocks[s][b]);
    }
  net->pool = choir_layer_avg_pool2d(model, "pool", .kernel_size = 8);
  net->flatten = choir_layer_flatten(model, "flatten");
  net->linear = choir_layer_linear(model, "linear", .out_features = 10);
}

static choir_var_t* forward_block(choir_scope_t* scope,
                                  const resnet20_block_t* block,
                                  choir_var_t* x) {
  choir_var_t* y = choir_layer_forward(scope, block->conv1, x);
  y = choir_layer_forward(scope, block->norm1, y);
  y = choir_layer_forward(scope, block->relu1, y);
  y = choir_layer_forward(scope, block->conv2, y);
  y = choir_layer_forward(scope, block->norm2, y);
  if (block->projection) {
    x = choir_layer_forward(scope, block->projection, x);
    x = choir_layer_forward(scope, block->projection_norm, x);
  }
  return choir_layer_forward(scope, block->relu2, choir_var_add(scope, y, x));
}

static choir_var_t* forward(choir_scope_t* scope, void* self, choir_var_t* x) {
  resnet20_t* net = self;
  x = choir_layer_forward(scope, net->conv, x);
  x = choir_layer_forward(scope, net->norm, x);
  x = choir_layer_forward(scope, net->relu, x);
  for (int s = 0; s < RESNET20_STAGES; ++s)
    for (int b = 0; b < RESNET20_BLOCKS; ++b)
      x = forward_block(scope, &net->blocks[s][b], x);
  x = choir_layer_forward(scope, net->pool, x);
  x = choir_layer_forward(scope, net->flatten, x);
  return choir_layer_forward(scope, net->linear, x);
}

const choir_model_def_t resnet20_def = {
    .name = "resnet20", .define = define, .forward = forward};
