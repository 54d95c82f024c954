// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/gather_shared.h"

CHOIR__AXIS_ATTRS(gather_elements, "dimension that indices count along");

static choir_status_t gather_elements_infer(const choir_view_t* srcs,
                                            int32_t src_count,
                                            const void* attrs,
                                            choir_view_t* dsts) {
  (void)src_count;
  CHOIR_TRY(choir__need_element_indices(
      "gather_elements", &srcs[0], &srcs[1],
      ((const choir_gather_elements_attrs_t*)attrs)->axis));
  return choir__infer_shape("gather_elements", srcs[0].dtype, srcs[1].ndim,
                            srcs[1].shape, &dsts[0]);
}

static choir_status_t gather_elements_reference(const choir_record_t* record,
                                                choir_stream_t* stream) {
  (void)stream;
  int64_t axis = ((const choir_gather_elements_attrs_t*)record->attrs)->axis;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const int64_t size = src->shape[axis];
  CHOIR_TRY(choir__check_indices("gather_elements", record, 1, size));
  choir__walk_t walk;
  const choir_view_t* views[] = {choir_record_src(record, 1), dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk)) {
    int64_t index = choir__index_at(record, 1, walk.offsets[0], size);
    choir__element_copy(choir__src_data(record, 0),
                        choir__indexed_offset(src, &walk, axis, index),
                        choir__dst_data(record, 0), walk.offsets[1], dst->dtype,
                        record->accumulate);
  }
  return NULL;
}

static const choir_op_case_t cases[] = {{"5;7", NULL},
                                        {"5,3;4,3", NULL},
                                        {"5,3;2,6", "axis=1"},
                                        {"2,3,4;2,2,4", "axis=1"},
                                        {"4,3,7,5;2,3,9,4", "axis=2"},
                                        {"5,3;0,3", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_gather_elements = {
    .op = CHOIR_OP_GATHER_ELEMENTS,
    .name = "gather_elements",
    .doc = "x, indices -> at each place x there, but for one dimension",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = gather_elements_infer,
    .reference = gather_elements_reference,
    .dtypes = CHOIR_DTYPES_ALL,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-7,
    .cases = cases,
};
