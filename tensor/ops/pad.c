// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/move.h"

#define PAD_MODE_NAME(ENUM, name) #name,
static const char* const modes[] = {CHOIR_PAD_MODE_LIST(PAD_MODE_NAME) NULL};

static const choir_field_t fields[] = {
    CHOIR_FIELD_ENUM(choir_pad_attrs_t, mode, modes, CHOIR_PAD_CONSTANT,
                     "what lies around x"),
    CHOIR_FIELD_FLOAT(choir_pad_attrs_t, value, 0, -INFINITY, INFINITY,
                      "the constant"),
    CHOIR_FIELD_INTS(choir_pad_attrs_t, before, CHOIR_MAX_NDIM, 0, 0, INT64_MAX,
                     "elements in front, by dimension"),
    CHOIR_FIELD_INTS(choir_pad_attrs_t, after, CHOIR_MAX_NDIM, 0, 0, INT64_MAX,
                     "elements behind, by dimension"),
};

static choir_status_t pad_shape(const choir_view_t* x,
                                const choir_pad_attrs_t* attrs,
                                choir_view_t* out_view) {
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < x->ndim; ++k) {
    const int64_t room = INT64_MAX - x->shape[k];
    const bool is_padded = attrs->before[k] > 0 || attrs->after[k] > 0;
    char text[160];
    if (attrs->before[k] > room || attrs->after[k] > room - attrs->before[k])
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "dimension %d of %s with %lld and %lld around it "
                         "is too large; needs 63 bits",
                         (int)k, choir_view_print(x, text, sizeof text),
                         (long long)attrs->before[k],
                         (long long)attrs->after[k]);
    if (is_padded && x->shape[k] == 0 && attrs->mode != CHOIR_PAD_CONSTANT)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "dimension %d of %s has no element; needs one to "
                         "%s, or mode constant",
                         (int)k, choir_view_print(x, text, sizeof text),
                         attrs->mode == CHOIR_PAD_EDGE ? "repeat" : "reflect");
    shape[k] = attrs->before[k] + x->shape[k] + attrs->after[k];
  }
  return choir__infer_shape(x->dtype, x->ndim, shape, out_view);
}

static void pad_rules(const choir_record_t* record, choir__index_map_t* map) {
  static const choir__outside_t outside[] = {
      [CHOIR_PAD_CONSTANT] = CHOIR__OUTSIDE_NONE,
      [CHOIR_PAD_REFLECT] = CHOIR__OUTSIDE_REFLECT,
      [CHOIR_PAD_EDGE] = CHOIR__OUTSIDE_EDGE};
  const choir_pad_attrs_t* attrs = record->attrs;
  for (int32_t k = 0; k < map->places.ndim; ++k) {
    if (attrs->before[k] == 0 && attrs->after[k] == 0) continue;
    map->rules[k] = (choir__index_rule_t){.size = map->elements.shape[k],
                                          .before = attrs->before[k],
                                          .each = 1,
                                          .outside = outside[attrs->mode]};
  }
  if (map->kind == CHOIR__INDEX_PULL)
    choir_element_store(&map->other_value, map->places.dtype, attrs->value);
}

#define CASES(S)                                                     \
  {S("5", "10"), "before=2 after=3 value=1.5"},                      \
      {S("5", "11"), "before=2 after=4 mode=reflect"},               \
      {S("5", "25"), "before=11 after=9 mode=reflect"},              \
      {S("5", "10"), "before=2 after=3 mode=edge"},                  \
      {S("3,4", "4,6"),                                              \
       "before=1,0,0,0,0,0,0,0 after=0,2,0,0,0,0,0,0 value=-1"},     \
      {S("1,4", "4,9"),                                              \
       "before=1,3,0,0,0,0,0,0 after=2,2,0,0,0,0,0,0 mode=reflect"}, \
      {S("0,2", "1,3"), "before=1"},                                 \
      {S("2,3,4,2", "2,3,7,5"),                                      \
       "before=0,0,1,2,0,0,0,0 after=0,0,2,1,0,0,0,0 mode=edge"},    \
      {S("2,3,4,2", "2,4,7,5"),                                      \
       "before=0,0,1,2,0,0,0,0 after=0,1,2,1,0,0,0,0 mode=reflect"}, \
      {S("2,3", "2,3"), NULL}, {                                     \
    S("", ""), NULL                                                  \
  }
CHOIR_MOVE_OP(PAD, pad, 1, "x with more elements around it",
              .domains = {CHOIR_DOMAIN_ANY});
