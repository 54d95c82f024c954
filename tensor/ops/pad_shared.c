// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pad_shared.h"

#define PAD_MODE_NAME(ENUM, name) #name,
const char* const choir__pad_modes[] = {CHOIR_PAD_MODE_LIST(PAD_MODE_NAME)
                                            NULL};

choir_status_t choir__pad_shape(const char* op, const choir_view_t* x,
                                const choir_pad_attrs_t* attrs,
                                choir_view_t* out_view) {
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < x->ndim; ++k) {
    const int64_t room = INT64_MAX - x->shape[k];
    const bool is_padded = attrs->before[k] > 0 || attrs->after[k] > 0;
    char text[160];
    if (attrs->before[k] > room || attrs->after[k] > room - attrs->before[k])
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: dimension %d of %s with %lld and %lld around it "
                         "is too large; needs 63 bits",
                         op, (int)k, choir_view_print(x, text, sizeof text),
                         (long long)attrs->before[k],
                         (long long)attrs->after[k]);
    if (is_padded && x->shape[k] == 0 && attrs->mode != CHOIR_PAD_CONSTANT)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: dimension %d of %s has no element; needs one to "
                         "%s, or mode constant",
                         op, (int)k, choir_view_print(x, text, sizeof text),
                         attrs->mode == CHOIR_PAD_EDGE ? "repeat" : "reflect");
    shape[k] = attrs->before[k] + x->shape[k] + attrs->after[k];
  }
  return choir__infer_shape(op, x->dtype, x->ndim, shape, out_view);
}

int64_t choir__pad_map(const void* attrs, int32_t axis, int64_t size,
                       int64_t place) {
  const choir_pad_attrs_t* pad = attrs;
  place -= pad->before[axis];
  if (place >= 0 && place < size) return place;
  if (pad->mode == CHOIR_PAD_CONSTANT) return -1;
  if (pad->mode == CHOIR_PAD_EDGE) return place < 0 ? 0 : size - 1;
  // Back and forth, the ends once each.
  if (size == 1) return 0;
  const int64_t period = 2 * (size - 1);
  place %= period;
  if (place < 0) place += period;
  return place < size ? place : period - place;
}
