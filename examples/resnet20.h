// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_RESNET20_H_
#define CHOIR_EXAMPLES_RESNET20_H_

#include "choir.h"

// ResNet-20 of He et al., "Deep Residual Learning for Image Recognition"
// (2015), section 4.2: x (n, 3, 32, 32) to the scores (n, 10) of the classes. A
// 3x3 convolution, three stages of three blocks with 16, 32 and 64 channels on
// 32x32, 16x16 and 8x8 pixels, the mean over the image, and a linear layer. A
// block is two 3x3 convolutions with batch norm around which its input is
// added; where the size changes the input goes through a 1x1 convolution with
// batch norm (the paper's option B). 272,474 parameters.

enum { RESNET20_STAGES = 3, RESNET20_BLOCKS = 3 };

typedef struct resnet20_block_s {
  choir_layer_t* layer;  // the block itself
  bool sync_batch_norm;
  int64_t channels;
  int64_t stride;
  choir_layer_t* conv1;
  choir_layer_t* norm1;
  choir_layer_t* relu1;
  choir_layer_t* conv2;
  choir_layer_t* norm2;
  choir_layer_t* relu2;
  choir_layer_t* projection;  // NULL: the input as it is
  choir_layer_t* projection_norm;
} resnet20_block_t;

typedef struct resnet20_s {
  bool sync_batch_norm;  // over the samples of all workers; set before `define`
  choir_layer_t* conv;
  choir_layer_t* norm;
  choir_layer_t* relu;
  resnet20_block_t blocks[RESNET20_STAGES][RESNET20_BLOCKS];
  choir_layer_t* pool;
  choir_layer_t* flatten;
  choir_layer_t* linear;
} resnet20_t;

// For choir_model_create, with a resnet20_t as `self`.
extern const choir_model_def_t resnet20_def;

#endif  // CHOIR_EXAMPLES_RESNET20_H_
