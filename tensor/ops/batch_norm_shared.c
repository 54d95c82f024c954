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

choir_status_t choir__batch_norm_check(const char* op, const choir_view_t* x) {
  if (x->ndim >= 2 && choir_view_count(x) > 0) return NULL;
  char text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: x is %s; needs 2 or more dimensions and an element",
                     op, choir_view_print(x, text, sizeof text));
}
