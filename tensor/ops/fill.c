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

static const choir_op_case_t cases[] = {{"", "value=3"},
                                        {"1", "value=-0.5"},
                                        {"7", NULL},
                                        {"15", "value=1"},
                                        {"16", "value=0.1"},
                                        {"17", "value=255"},
                                        {"64", "value=3"},
                                        {"257", "value=-0.5"},
                                        {"1025", NULL},
                                        {"0", "value=1"},
                                        {"3,5", "value=0.1"},
                                        {"1,9", "value=255"},
                                        {"9,1", "value=3"},
                                        {"33,17", "value=-0.5"},
                                        {"2,0,3", NULL},
                                        {"5,1,7", "value=1"},
                                        {"4,3,7,5", "value=0.1"},
                                        {"2,16,5,5", "value=255"},
                                        {"2,20,12,12", "value=3"},
                                        {"5,4,3,2,3", "value=-0.5"},
                                        {"2,1,3,1,2,1,2,2", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_fill = {
    .op = CHOIR_OP_FILL,
    .name = "fill",
    .doc = "one value in the shape of x, whose elements are not read",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = fill_infer,
    .reference = fill_reference,
    .index_map = fill_map,
    .elementwise = true,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
