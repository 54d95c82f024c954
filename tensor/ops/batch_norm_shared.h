// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_BATCH_NORM_SHARED_H_
#define CHOIR_TENSOR_OPS_BATCH_NORM_SHARED_H_

#include "tensor/ops/elements.h"

// What the batch norm ops share.

// x (batch, channels, ...) as batch * channels images of so many elements.
typedef struct choir__channels_s {
  int64_t batch;
  int64_t channels;
  int64_t image;
} choir__channels_t;

choir__channels_t choir__channels_of(const choir_view_t* x);

// Row-major place of element i of channel c of sample n.
static inline int64_t choir__channel_place(const choir__channels_t* sizes,
                                           int64_t n, int64_t c, int64_t i) {
  return (n * sizes->channels + c) * sizes->image + i;
}

// Fails unless x has 2 or more dimensions and, where moments are taken of them,
// an element in each channel.
choir_status_t choir__batch_norm_check(const char* op, const choir_view_t* x,
                                       bool has_moments);

// Mean and biased variance of channel c of row-major x.
void choir__batch_norm_moments(const choir__channels_t* sizes, int64_t c,
                               const double* x, double* mean, double* variance);

// Channel c's part of the gradient, from row-major x and g (the gradient of the
// normalised x): dx, and the sums dscale and dbias. Mean and variance are those
// of x, so dx goes through them too:
//   dx = scale / sigma * (g - mean(g) - xhat * mean(g * xhat))
void choir__batch_norm_channel_grad(const choir__channels_t* sizes, int64_t c,
                                    const double* x, const double* g,
                                    double scale, double mean, double inverse,
                                    double* dx, double* dscale, double* dbias);

extern const choir_field_t choir__batch_norm_fields[];
#define CHOIR__BATCH_NORM_FIELD_COUNT 1
#define CHOIR__BATCH_NORM_STRUCT_DEF(name)                      \
  {                                                             \
    name, "normalisation", sizeof(choir_batch_norm_attrs_t),    \
        choir__batch_norm_fields, CHOIR__BATCH_NORM_FIELD_COUNT \
  }

#endif  // CHOIR_TENSOR_OPS_BATCH_NORM_SHARED_H_
