// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/move.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_repeat_attrs_t, repeats, 1, 0, INT64_MAX,
                    "how often each element comes"),
    CHOIR_FIELD_INT(choir_repeat_attrs_t, axis, 0, 0, CHOIR_MAX_NDIM - 1,
                    "dimension that gets longer"),
};

static choir_status_t repeat_shape(const choir_view_t* x,
                                   const choir_repeat_attrs_t* attrs,
                                   choir_view_t* out_view) {
  CHOIR_TRY(choir__need_axis(x, attrs->axis));
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < x->ndim; ++k) shape[k] = x->shape[k];
  CHOIR_TRY(choir__repeated_size(x, shape[attrs->axis], attrs->repeats,
                                 &shape[attrs->axis]));
  return choir__infer_shape(x->dtype, x->ndim, shape, out_view);
}

static void repeat_rules(const choir_record_t* record,
                         choir__index_map_t* map) {
  const choir_repeat_attrs_t* attrs = record->attrs;
  const int64_t size = map->elements.shape[attrs->axis];
  // Without places there is nothing to repeat.
  map->rules[attrs->axis] = (choir__index_rule_t){
      .size = size, .each = attrs->repeats > 0 ? attrs->repeats : 1};
}

#define CASES(S)                                                              \
  {S("5", "5"), NULL}, {S("5", "15"), "repeats=3"},                           \
      {S("3,4", "6,4"), "repeats=2"}, {S("3,4", "3,12"), "repeats=3 axis=1"}, \
      {S("2,3,4,2", "2,3,8,2"), "repeats=2 axis=2"},                          \
      {S("3,4", "3,0"), "repeats=0 axis=1"}, {                                \
    S("0,2", "0,4"), "repeats=2 axis=1"                                       \
  }
CHOIR_MOVE_OP(REPEAT, repeat, 1,
              "every element several times along an axis, as NumPy does",
              .domains = {CHOIR_DOMAIN_ANY});
