// SPDX-License-Identifier: Apache-2.0
#include "examples/resnet50.h"

#include <stdio.h>

#include "examples/residual.h"

static const int block_counts[RESNET50_STAGES] = {3, 4, 6, 3};

static void define_block(choir_model_t* model, void* self) {
  resnet50_block_t* block = self;
  const int64_t channels = block->channels;
  block->conv1 = residual_conv(model, "conv1", channels, 1, 1);
  block->norm1 = residual_norm(model, "norm1", false);
  block->relu1 = choir_layer_relu(model, "relu1");
  block->conv2 = residual_conv(model, "conv2", channels, 3, block->stride);
  block->norm2 = residual_norm(model, "norm2", false);
  block->relu2 = choir_layer_relu(model, "relu2");
  block->conv3 = residual_conv(model, "conv3", 4 * channels, 1, 1);
  block->norm3 = residual_norm(model, "norm3", false);
  block->relu3 = choir_layer_relu(model, "relu3");
  if (!block->is_first) return;
  block->projection =
      residual_conv(model, "projection", 4 * channels, 1, block->stride);
  block->projection_norm = residual_norm(model, "projection_norm", false);
}

static choir_var_t* forward_block(choir_scope_t* scope, void* self,
                                  choir_vars_t inputs) {
  const resnet50_block_t* block = self;
  choir_var_t* x = inputs.at[0];
  choir_var_t* y = choir_layer_forward(scope, block->conv1, x);
  y = choir_layer_forward(scope, block->norm1, y);
  y = choir_layer_forward(scope, block->relu1, y);
  y = choir_layer_forward(scope, block->conv2, y);
  y = choir_layer_forward(scope, block->norm2, y);
  y = choir_layer_forward(scope, block->relu2, y);
  y = choir_layer_forward(scope, block->conv3, y);
  y = choir_layer_forward(scope, block->norm3, y);
  if (block->projection) {
    x = choir_layer_forward(scope, block->projection, x);
    x = choir_layer_forward(scope, block->projection_norm, x);
  }
  return choir_layer_forward(scope, block->relu3, choir_var_add(scope, y, x));
}

static const choir_block_def_t block_def = {.define = define_block,
                                            .forward = forward_block};

static void define(choir_model_t* model, void* self) {
  resnet50_t* net = self;
  net->conv = residual_conv(model, "conv", 64, 7, 2);
  net->norm = residual_norm(model, "norm", false);
  net->relu = choir_layer_relu(model, "relu");
  net->pool = choir_layer_max_pool2d(model, "pool", .kernel_size = 3,
                                     .stride = 2, .padding = 1);
  for (int s = 0; s < RESNET50_STAGES; ++s)
    for (int b = 0; b < block_counts[s]; ++b) {
      char name[48];
      snprintf(name, sizeof(name), "stage%d.block%d", s + 1, b + 1);
      resnet50_block_t* block = &net->blocks[s][b];
      block->channels = (int64_t)64 << s;
      block->stride = s > 0 && b == 0 ? 2 : 1;
      block->is_first = b == 0;
      block->layer = choir_layer_block(model, name, &block_def, block);
    }
  net->flatten = choir_layer_flatten(model, "flatten");
  net->linear = choir_layer_linear(model, "linear", .out_features = 1000);
}

// (n, c, h, w) to (n, c, 1, 1). Not a layer: a layer's window is of one size.
static choir_var_t* mean_of_image(choir_scope_t* scope, choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;  // something failed before
  const choir_avg_pool2d_attrs_t attrs = {
      .kernel = {view->shape[2], view->shape[3]}, .stride = {1, 1}};
  choir_scope_set_label(scope, "mean");
  choir_var_t* y = choir_var_avg_pool2d(scope, x, &attrs);
  choir_scope_set_label(scope, NULL);
  return y;
}

static choir_var_t* forward(choir_scope_t* scope, void* self,
                            choir_vars_t inputs) {
  resnet50_t* net = self;
  choir_var_t* x = choir_layer_forward(scope, net->conv, inputs.at[0]);
  x = choir_layer_forward(scope, net->norm, x);
  x = choir_layer_forward(scope, net->relu, x);
  x = choir_layer_forward(scope, net->pool, x);
  for (int s = 0; s < RESNET50_STAGES; ++s)
    for (int b = 0; b < block_counts[s]; ++b)
      x = choir_layer_forward(scope, net->blocks[s][b].layer, x);
  x = mean_of_image(scope, x);
  x = choir_layer_forward(scope, net->flatten, x);
  return choir_layer_forward(scope, net->linear, x);
}

const choir_model_def_t resnet50_def = {
    .name = "resnet50", .define = define, .forward = forward};

choir_status_t resnet50_initialize(choir_model_t* model, int64_t seed) {
  const choir_param_set_t* set = choir_model_params(model);
  for (size_t i = 0; i < set->count; ++i) {
    const choir_param_t* param = set->params[i];
    // Weights of convolutions alone have four dimensions.
    if (choir_tensor_ndim(param->value) != 4) continue;
    const int64_t* shape = choir_tensor_shape(param->value);
    const choir_initializer_t normal = {
        .kind = CHOIR_INITIALIZER_HE_NORMAL,
        .fan_in = (double)(shape[1] * shape[2] * shape[3])};
    const choir_random_key_t key = {.seed = (uint64_t)seed,
                                    .stream = (uint32_t)i};
    CHOIR_TRY_NOTE(choir_initialize(param->value, &normal, key), "%s",
                   param->name);
  }
  return NULL;
}
