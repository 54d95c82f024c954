// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/batch_norm_shared.h"

const choir_field_t choir__batch_norm_fields[] = {
    CHOIR_FIELD_FLOAT(choir_batch_norm_attrs_t, epsilon, 1e-5, 0, 1e9,
                      "added to the variance"),
};
_Static_assert(sizeof choir__batch_norm_fields /
                       sizeof choir__batch_norm_fields[0] ==
                   CHOIR__BATCH_NORM_FIELD_COUNT,
               "CHOIR__BATCH_NORM_FIELD_COUNT counts the fields");

choir__channels_t choir__channels_of(const choir_view_t* x) {
  choir__channels_t sizes = {x->shape[0], x->shape[1], 1};
  for (int32_t axis = 2; axis < x->ndim; ++axis) sizes.image *= x->shape[axis];
  return sizes;
}

choir_status_t choir__batch_norm_check(const char* op, const choir_view_t* x,
                                       bool has_moments) {
  if (x->ndim >= 2 && (!has_moments || choir_view_count(x) > 0)) return NULL;
  char text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: x is %s; needs 2 or more dimensions%s", op,
                     choir_view_print(x, text, sizeof text),
                     has_moments ? " and an element" : "");
}

void choir__batch_norm_moments(const choir__channels_t* sizes, int64_t c,
                               const double* x, double* mean,
                               double* variance) {
  double count = (double)(sizes->batch * sizes->image);
  double sum = 0;
  for (int64_t n = 0; n < sizes->batch; ++n) {
    for (int64_t i = 0; i < sizes->image; ++i)
      sum += x[choir__channel_place(sizes, n, c, i)];
  }
  *mean = sum / count;
  double squares = 0;
  for (int64_t n = 0; n < sizes->batch; ++n) {
    for (int64_t i = 0; i < sizes->image; ++i) {
      double difference = x[choir__channel_place(sizes, n, c, i)] - *mean;
      squares += difference * difference;
    }
  }
  *variance = squares / count;
}

void choir__batch_norm_channel_grad(const choir__channels_t* sizes, int64_t c,
                                    const double* x, const double* g,
                                    double scale, double mean, double inverse,
                                    double* dx, double* dscale, double* dbias) {
  double count = (double)(sizes->batch * sizes->image);
  double along = 0;
  double across = 0;
  for (int64_t n = 0; n < sizes->batch; ++n) {
    for (int64_t i = 0; i < sizes->image; ++i) {
      int64_t place = choir__channel_place(sizes, n, c, i);
      across += g[place];
      along += g[place] * (x[place] - mean) * inverse;
    }
  }
  for (int64_t n = 0; n < sizes->batch; ++n) {
    for (int64_t i = 0; i < sizes->image; ++i) {
      int64_t place = choir__channel_place(sizes, n, c, i);
      double normal = (x[place] - mean) * inverse;
      dx[place] = scale * inverse *
                  (g[place] - across / count - normal * along / count);
    }
  }
  *dscale = along;
  *dbias = across;
}
