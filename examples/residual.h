// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_RESIDUAL_H_
#define CHOIR_EXAMPLES_RESIDUAL_H_

#include "choir.h"

// What residual networks are made of, for their `define`. A layer belongs to a
// block, "stage2.block1", and is called "stage2.block1.conv1"; block NULL: it
// stands alone, as "conv1".

// Without bias, as batch norm follows; padded so that stride 1 keeps the size,
// for kernels of an odd size.
choir_layer_t* residual_conv(choir_model_t* model, const char* block,
                             const char* name, int64_t channels,
                             int64_t kernel_size, int64_t stride);
// The new batch has a tenth of the weight in the averages for evaluation.
choir_layer_t* residual_norm(choir_model_t* model, const char* block,
                             const char* name);
choir_layer_t* residual_relu(choir_model_t* model, const char* block,
                             const char* name);

#endif  // CHOIR_EXAMPLES_RESIDUAL_H_
