// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_LAYERS_POOL2D_LAYER_H_
#define CHOIR_MODEL_LAYERS_POOL2D_LAYER_H_

#include "model/layer_def.h"

// What max and average pooling share: from their (equal) configs to the op's
// attributes.
#define CHOIR_POOL2D_ATTRS(config)                                          \
  {                                                                         \
    .kernel = {(config)->kernel_size, (config)->kernel_width < 0            \
                                          ? (config)->kernel_size           \
                                          : (config)->kernel_width},        \
    .stride = {(config)->stride ? (config)->stride : (config)->kernel_size, \
               (config)->stride_width > 0   ? (config)->stride_width        \
               : (config)->stride           ? (config)->stride              \
               : (config)->kernel_width < 0 ? (config)->kernel_size         \
                                            : (config)->kernel_width},      \
    .padding = {(config)->padding, (config)->padding_width < 0              \
                                       ? (config)->padding                  \
                                       : (config)->padding_width},          \
  }

#endif  // CHOIR_MODEL_LAYERS_POOL2D_LAYER_H_
