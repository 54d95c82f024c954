// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_RESIDUAL_H_
#define CHOIR_EXAMPLES_RESIDUAL_H_

#include "choir.h"

// What residual networks are made of, for their `define` and their blocks'.

// Without bias, as batch norm follows; padded so that stride 1 keeps the size,
// for kernels of an odd size.
choir_layer_t* residual_conv(choir_model_t* model, const char* name,
                             int64_t channels, int64_t kernel_size,
                             int64_t stride);
// The new batch, with `sync` that of all workers, has a tenth of the weight in
// the averages for evaluation.
choir_layer_t* residual_norm(choir_model_t* model, const char* name, bool sync);

#endif  // CHOIR_EXAMPLES_RESIDUAL_H_
