// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_LAYERS_WINDOW_FIELDS_H_
#define CHOIR_MODEL_LAYERS_WINDOW_FIELDS_H_

#include "model/layer_def.h"

// What layers with CHOIR_WINDOW_FIELDS share.

// A _width, which is the height's where it is -1.
static inline int64_t choir__width(int64_t own, int64_t height) {
  return own < 0 ? height : own;
}
// A field and its _width, as attributes have them.
#define CHOIR__PAIR(config, field) \
  { (config)->field, choir__width((config)->field##_width, (config)->field) }

#endif  // CHOIR_MODEL_LAYERS_WINDOW_FIELDS_H_
