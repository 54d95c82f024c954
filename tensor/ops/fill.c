// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/index_map.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_fill_attrs_t, value, 0, -INFINITY, INFINITY,
                      "what every element becomes"),
};
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

CHOIR_OP_DEFINE_BY(FILL, fill, 1, 1, 1, choir__infer_as_source, fill_reference,
                   "one value in the shape of x, whose elements are not read",
                   CHOIR_OP_ATTRS(fill, fields, "one value everywhere"),
                   .index_map = fill_map, .elementwise = true,
                   .shapes_only = 1u << 0, .dtypes = CHOIR_DTYPES_ALL,
                   .tolerance = 2e-7, .cases = cases);
