// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_MNIST_CNN_H_
#define CHOIR_EXAMPLES_MNIST_CNN_H_

#include "choir.h"

// The convolutional network of the MNIST examples: x (n, 1, 28, 28) to the
// scores (n, 10) of the digits.

typedef struct mnist_cnn_s {
  choir_layer_t* conv1;
  choir_layer_t* pool1;
  choir_layer_t* conv2;
  choir_layer_t* pool2;
  choir_layer_t* flatten;
  choir_layer_t* linear1;
  choir_layer_t* linear2;
} mnist_cnn_t;

// For choir_model_create, with a mnist_cnn_t as `self`.
extern const choir_model_def_t mnist_cnn_def;

#endif  // CHOIR_EXAMPLES_MNIST_CNN_H_
