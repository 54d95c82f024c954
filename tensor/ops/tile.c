// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/move.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_tile_attrs_t, ndim, 1, 0, CHOIR_MAX_NDIM,
                    "how many of repeats are meant"),
    CHOIR_FIELD_INTS(choir_tile_attrs_t, repeats, CHOIR_MAX_NDIM, 1, 0,
                     INT64_MAX,
                     "copies, by dimension, the last for the "
                     "last"),
};

static choir_status_t tile_shape(const choir_view_t* x,
                                 const choir_tile_attrs_t* attrs,
                                 choir_view_t* out_view) {
  const int32_t count = (int32_t)attrs->ndim;
  const int32_t ndim = x->ndim > count ? x->ndim : count;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 1; k <= ndim; ++k) {  // from the last
    const int64_t size = k <= x->ndim ? x->shape[x->ndim - k] : 1;
    const int64_t repeats = k <= count ? attrs->repeats[count - k] : 1;
    CHOIR_TRY(choir__repeated_size(x, size, repeats, &shape[ndim - k]));
  }
  return choir__infer_shape(x->dtype, ndim, shape, out_view);
}

static void tile_rules(const choir_record_t* record, choir__index_map_t* map) {
  (void)record;
  for (int32_t k = 0; k < map->places.ndim; ++k) {
    if (map->places.shape[k] == map->elements.shape[k]) continue;
    map->rules[k] = (choir__index_rule_t){.size = map->elements.shape[k],
                                          .each = 1,
                                          .outside = CHOIR__OUTSIDE_WRAP};
  }
}

static bool tile_mixes(const choir_record_t* record, const int64_t* rows) {
  (void)rows;
  return ((const choir_tile_attrs_t*)record->attrs)->repeats[0] != 1;
}

#define CASES(S)                                                   \
  {S("5", "5"), NULL}, {S("5", "15"), "repeats=3"},                \
      {S("3,4", "6,4"), "ndim=2 repeats=2,1,1,1,1,1,1,1"},         \
      {S("3,4", "3,12"), "repeats=3"},                             \
      {S("3", "2,2,9"), "ndim=3 repeats=2,2,3,1,1,1,1,1"},         \
      {S("2,3,4,2", "2,6,4,6"), "ndim=3 repeats=2,1,3,1,1,1,1,1"}, \
      {S("3,4", "0,4"), "ndim=2 repeats=0,1,1,1,1,1,1,1"},         \
      {S("", "2,2"), "ndim=2 repeats=2,2,1,1,1,1,1,1"}, {          \
    S("2,0", "4,0"), "ndim=2 repeats=2,2,1,1,1,1,1,1"              \
  }
CHOIR_MOVE_OP(TILE, tile, 1, "x several times in each dimension, as NumPy does",
              .mixes_samples = tile_mixes, .domains = {CHOIR_DOMAIN_ANY});
