// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_RANDOMS_H_
#define CHOIR_TENSOR_OPS_RANDOMS_H_

#include "core/config.h"

// Which random numbers an op draws: fields of its attributes, an element of the
// list's.
#define CHOIR__KEY_FIELDS(type)                                                \
  CHOIR_FIELD_INT(type, seed, 0, -9223372036854775808.0,                       \
                  9223372036854774784.0, "the run's"),                         \
      CHOIR_FIELD_INT(type, stream, 0, 0, UINT32_MAX, "the purpose's"),        \
      CHOIR_FIELD_INT(type, step, 0, 0, UINT32_MAX, "training step or epoch"), \
      CHOIR_FIELD_INT(type, first_sample, 0, 0, 9223372036854774784.0,         \
                      "global number of the first sample")

#endif  // CHOIR_TENSOR_OPS_RANDOMS_H_
