// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/index_map.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_fill_attrs_t, value, 0, -INFINITY, INFINITY,
                      "what every element becomes"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "fill", choir_fill_attrs_t, fields, "one value everywhere");

static choir_status_t fill_infer(const choir_view_t* srcs, int32_t src_count,
                                 const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  return choir__infer_like("fill", &srcs[0], &dsts[0]);
}

// No element, but the value for all places.
static void fill_map(const choir_record_t* record, int32_t part,
                     choir__index_map_t* map) {
  (void)part;
  const choir_view_t* dst = choir_record_dst(record, 0);
  const choir_view_t none = {.ndim = 0, .dtype = dst->dtype};
  choir__index_map_start(map, CHOIR__INDEX_PULL, dst, &none);
  choir_element_store(&map->other_value, dst->dtype,
                      ((const choir_fill_attrs_t*)record->attrs)->value);
}
CHOIR__INDEX_MAP_REFERENCE(fill)

static const choir_op_case_t cases[] = {
    CHOIR__CASES(CHOIR__ONCE, "value=3", "value=-0.5", NULL, "value=1",
                 "value=0.1", "value=255", "value=-7"),
    {NULL, NULL}};

CHOIR_OP_DEFINE(FILL, fill, 1, 1,
                "one value in the shape of x, whose elements are not read",
                .attrs = &attrs_def, .index_map = fill_map, .elementwise = true,
                .shapes_only = 1u << 0, .dtypes = CHOIR_DTYPES_ALL,
                .tolerance = 2e-7, .cases = cases);
