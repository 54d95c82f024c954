// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/repeat_shared.h"

// size * repeats, if 63 bits hold it.
static choir_status_t multiplied(const char* op, const choir_view_t* x,
                                 int64_t size, int64_t repeats,
                                 int64_t* out_size) {
  *out_size = 0;
  if (size == 0 || repeats <= INT64_MAX / size) {
    *out_size = size * repeats;
    return NULL;
  }
  char text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: %lld times a dimension of %s is too large; needs 63 "
                     "bits",
                     op, (long long)repeats,
                     choir_view_print(x, text, sizeof text));
}

choir_status_t choir__tile_shape(const char* op, const choir_view_t* x,
                                 const choir_tile_attrs_t* attrs,
                                 choir_view_t* out_view) {
  const int32_t count = (int32_t)attrs->ndim;
  const int32_t ndim = x->ndim > count ? x->ndim : count;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 1; k <= ndim; ++k) {  // from the last
    const int64_t size = k <= x->ndim ? x->shape[x->ndim - k] : 1;
    const int64_t repeats = k <= count ? attrs->repeats[count - k] : 1;
    CHOIR_TRY(multiplied(op, x, size, repeats, &shape[ndim - k]));
  }
  return choir__infer_shape(op, x->dtype, ndim, shape, out_view);
}

choir_status_t choir__repeat_shape(const char* op, const choir_view_t* x,
                                   const choir_repeat_attrs_t* attrs,
                                   choir_view_t* out_view) {
  CHOIR_TRY(choir__need_axis(op, x, attrs->axis));
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < x->ndim; ++k) shape[k] = x->shape[k];
  CHOIR_TRY(multiplied(op, x, shape[attrs->axis], attrs->repeats,
                       &shape[attrs->axis]));
  return choir__infer_shape(op, x->dtype, x->ndim, shape, out_view);
}

void choir__tile_rules(const choir_tile_attrs_t* attrs,
                       choir__index_map_t* map) {
  (void)attrs;
  for (int32_t k = 0; k < map->places.ndim; ++k) {
    if (map->places.shape[k] == map->elements.shape[k]) continue;
    map->rules[k] = (choir__index_rule_t){.size = map->elements.shape[k],
                                          .each = 1,
                                          .outside = CHOIR__OUTSIDE_WRAP};
  }
}

void choir__repeat_rules(const choir_repeat_attrs_t* attrs,
                         choir__index_map_t* map) {
  const int64_t size = map->elements.shape[attrs->axis];
  // Without places there is nothing to repeat.
  map->rules[attrs->axis] = (choir__index_rule_t){
      .size = size, .each = attrs->repeats > 0 ? attrs->repeats : 1};
}
