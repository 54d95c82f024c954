// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_RESNET50_H_
#define CHOIR_EXAMPLES_RESNET50_H_

#include "choir.h"

#ifdef __cplusplus
extern "C" {
#endif

// ResNet-50 of He et al., "Deep Residual Learning for Image Recognition"
// (CVPR 2016), table 1: x (n, 3, h, w), as a rule (n, 3, 224, 224), to the
// scores (n, 1000) of ImageNet's classes. A 7x7 convolution and a max pooling
// that each halve the size, four stages of 3, 4, 6 and 3 blocks, the mean over
// what is left of the image, whatever its size, and a linear layer. A block is
// a bottleneck: convolutions of 1x1 to 64 << stage channels, of 3x3, and of
// 1x1 to four times as many, each with batch norm, around which the input is
// added; through a 1x1 convolution with batch norm where its shape is another.
// Stages but the first begin by halving the size, here in the 3x3 convolution;
// the paper has it in the 1x1 before, but this is what others measure too
// ("v1.5"). 25,557,032 parameters.

enum { RESNET50_STAGES = 4, RESNET50_MAX_BLOCKS = 6 };

typedef struct resnet50_block_s {
  choir_layer_t* layer;  // the block itself
  int64_t channels;
  int64_t stride;
  bool is_first;  // of its stage
  choir_layer_t* conv1;
  choir_layer_t* norm1;
  choir_layer_t* relu1;
  choir_layer_t* conv2;
  choir_layer_t* norm2;
  choir_layer_t* relu2;
  choir_layer_t* conv3;
  choir_layer_t* norm3;
  choir_layer_t* relu3;
  choir_layer_t* projection;  // NULL: the input as it is
  choir_layer_t* projection_norm;
} resnet50_block_t;

typedef struct resnet50_s {
  choir_layer_t* conv;
  choir_layer_t* norm;
  choir_layer_t* relu;
  choir_layer_t* pool;
  resnet50_block_t blocks[RESNET50_STAGES][RESNET50_MAX_BLOCKS];
  choir_layer_t* flatten;
  choir_layer_t* linear;
} resnet50_t;

// For choir_model_create, with a resnet50_t as `self`.
extern const choir_model_def_t resnet50_def;

// After choir_model_compile: draws the weights of the convolutions as the
// paper does, N(0, sqrt(2 / inputs of a filter)). The layers' own values also
// count the filters, which makes those of 1x1 convolutions to many channels
// too small.
choir_status_t resnet50_initialize(choir_model_t* model, int64_t seed)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_EXAMPLES_RESNET50_H_
