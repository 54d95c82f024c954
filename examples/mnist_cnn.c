// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist_cnn.h"

static void define(choir_model_t* model, void* self) {
  mnist_cnn_t* net = self;
  net->conv1 =
      choir_layer_conv2d(model, "conv1", .out_channels = 20, .kernel_size = 5,
                         .activation = CHOIR_ACTIVATION_RELU);
  net->pool1 = choir_layer_max_pool2d(model, "pool1", .kernel_size = 2);
  net->conv2 =
      choir_layer_conv2d(model, "conv2", .out_channels = 50, .kernel_size = 5,
                         .activation = CHOIR_ACTIVATION_RELU);
  net->pool2 = choir_layer_max_pool2d(model, "pool2", .kernel_size = 2);
  net->flatten = choir_layer_flatten(model, "flatten");
  net->linear1 = choir_layer_linear(model, "linear1", .out_features = 500,
                                    .activation = CHOIR_ACTIVATION_RELU);
  net->linear2 = choir_layer_linear(model, "linear2", .out_features = 10);
}

static choir_var_t* forward(choir_scope_t* scope, void* self,
                            choir_vars_t inputs) {
  mnist_cnn_t* net = self;
  choir_var_t* x = choir_layer_forward(scope, net->conv1, inputs.at[0]);
  x = choir_layer_forward(scope, net->pool1, x);
  x = choir_layer_forward(scope, net->conv2, x);
  x = choir_layer_forward(scope, net->pool2, x);
  x = choir_layer_forward(scope, net->flatten, x);
  x = choir_layer_forward(scope, net->linear1, x);
  return choir_layer_forward(scope, net->linear2, x);
}

const choir_model_def_t mnist_cnn_def = {
    .name = "mnist_cnn", .define = define, .forward = forward};
