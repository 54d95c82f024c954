// SPDX-License-Identifier: Apache-2.0
#include "examples/mlp_net.h"

static void define(choir_model_t* model, void* self) {
  mlp_net_t* net = self;
  net->flatten = choir_layer_flatten(model, "flatten");
  net->linear1 = choir_layer_linear(model, "linear1", .out_features = 4096,
                                    .activation = CHOIR_ACTIVATION_RELU);
  net->linear2 = choir_layer_linear(model, "linear2", .out_features = 4096,
                                    .activation = CHOIR_ACTIVATION_RELU);
  net->linear3 = choir_layer_linear(model, "linear3", .out_features = 10);
}

static choir_var_t* forward(choir_scope_t* scope, void* self,
                            choir_vars_t inputs) {
  mlp_net_t* net = self;
  choir_var_t* x = choir_layer_forward(scope, net->flatten, inputs.at[0]);
  x = choir_layer_forward(scope, net->linear1, x);
  x = choir_layer_forward(scope, net->linear2, x);
  return choir_layer_forward(scope, net->linear3, x);
}

const choir_model_def_t mlp_net_def = {
    .name = "mlp", .define = define, .forward = forward};
