// SPDX-License-Identifier: Apache-2.0
#include "examples/resnet20.h"

#include <stdio.h>

#include "examples/residual.h"

static void define_block(choir_model_t* model, void* self) {
  resnet20_block_t* block = self;
  const int64_t channels = block->channels;
  block->conv1 = residual_conv(model, "conv1", channels, 3, block->stride);
  block->norm1 = residual_norm(model, "norm1", block->sync_batch_norm);
  block->relu1 = choir_layer_relu(model, "relu1");
  block->conv2 = residual_conv(model, "conv2", channels, 3, 1);
  block->norm2 = residual_norm(model, "norm2", block->sync_batch_norm);
  block->relu2 = choir_layer_relu(model, "relu2");
  if (block->stride == 1) return;
  block->projection =
      residual_conv(model, "projection", channels, 1, block->stride);
  block->projection_norm =
      residual_norm(model, "projection_norm", block->sync_batch_norm);
}

static choir_var_t* forward_block(choir_scope_t* scope, void* self,
                                  choir_vars_t inputs) {
  const resnet20_block_t* block = self;
  choir_var_t* x = inputs.at[0];
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

static const choir_block_def_t block_def = {.define = define_block,
                                            .forward = forward_block};

static void define(choir_model_t* model, void* self) {
  resnet20_t* net = self;
  net->conv = residual_conv(model, "conv", 16, 3, 1);
  net->norm = residual_norm(model, "norm", net->sync_batch_norm);
  net->relu = choir_layer_relu(model, "relu");
  for (int s = 0; s < RESNET20_STAGES; ++s)
    for (int b = 0; b < RESNET20_BLOCKS; ++b) {
      char name[48];
      snprintf(name, sizeof(name), "stage%d.block%d", s + 1, b + 1);
      resnet20_block_t* block = &net->blocks[s][b];
      block->sync_batch_norm = net->sync_batch_norm;
      block->channels = (int64_t)16 << s;
      block->stride = s > 0 && b == 0 ? 2 : 1;
      block->layer = choir_layer_block(model, name, &block_def, block);
    }
  net->pool = choir_layer_avg_pool2d(model, "pool", .kernel_size = 8);
  net->flatten = choir_layer_flatten(model, "flatten");
  net->linear = choir_layer_linear(model, "linear", .out_features = 10);
}

static choir_var_t* forward(choir_scope_t* scope, void* self,
                            choir_vars_t inputs) {
  resnet20_t* net = self;
  choir_var_t* x = choir_layer_forward(scope, net->conv, inputs.at[0]);
  x = choir_layer_forward(scope, net->norm, x);
  x = choir_layer_forward(scope, net->relu, x);
  for (int s = 0; s < RESNET20_STAGES; ++s)
    for (int b = 0; b < RESNET20_BLOCKS; ++b)
      x = choir_layer_forward(scope, net->blocks[s][b].layer, x);
  x = choir_layer_forward(scope, net->pool, x);
  x = choir_layer_forward(scope, net->flatten, x);
  return choir_layer_forward(scope, net->linear, x);
}

const choir_model_def_t resnet20_def = {
    .name = "resnet20", .define = define, .forward = forward};
