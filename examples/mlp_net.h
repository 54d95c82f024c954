// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_MLP_NET_H_
#define CHOIR_EXAMPLES_MLP_NET_H_

#include "choir.h"

// Two hidden layers of 4096: x (n, ...), 784 pixels of an MNIST image, to the
// scores (n, 10) of the digits. 20 million parameters, all in matrices.

typedef struct mlp_net_s {
  choir_layer_t* flatten;
  choir_layer_t* linear1;
  choir_layer_t* linear2;
  choir_layer_t* linear3;
} mlp_net_t;

// For choir_model_create, with an mlp_net_t as `self`.
extern const choir_model_def_t mlp_net_def;

#endif  // CHOIR_EXAMPLES_MLP_NET_H_
