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

void choir__pad_rules(const choir_pad_attrs_t* attrs, choir__index_map_t* map) {
  static const choir__outside_t outside[] = {
      [CHOIR_PAD_CONSTANT] = CHOIR__OUTSIDE_NONE,
      [CHOIR_PAD_REFLECT] = CHOIR__OUTSIDE_REFLECT,
      [CHOIR_PAD_EDGE] = CHOIR__OUTSIDE_EDGE};
  for (int32_t k = 0; k < map->places.ndim; ++k) {
    if (attrs->before[k] == 0 && attrs->after[k] == 0) continue;
    map->rules[k] = (choir__index_rule_t){.size = map->elements.shape[k],
                                          .before = attrs->before[k],
                                          .each = 1,
                                          .outside = outside[attrs->mode]};
  }
}
