// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/reduce.h"

static const choir_field_t fields[] = {CHOIR__REDUCE_FIELDS};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("argmax", choir_reduce_attrs_t, fields, "what is reduced");

static choir_status_t argmax_infer(const choir_view_t* srcs, int32_t src_count,
                                   const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  return choir__reduce_infer("argmax", &srcs[0], attrs, CHOIR_DTYPE_I64, true,
                             &dsts[0]);
}

static choir_status_t argmax_reference(const choir_record_t* record,
                                       choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  int64_t* dst_data = choir__dst_data(record, 0);
  int64_t axis = ((const choir_reduce_attrs_t*)record->attrs)->axis;
  choir__lanes_t lanes;
  choir__walk_t results;
  choir__walk_start(&results, &dst, 1);
  for (bool more =
           choir__lanes_start(&lanes, choir_record_src(record, 0), axis);
       more; more = choir__lanes_next(&lanes), choir__walk_next(&results)) {
    int64_t place, offset;
    choir__lane_maximum(&lanes.lane, src_data, &place, &offset);
    dst_data[results.offsets[0]] = place;
  }
  return NULL;
}

const choir_op_def_t choir_op_def_argmax = {
    .op = CHOIR_OP_ARGMAX,
    .name = "argmax",
    .doc = "place of the first largest element, as i64",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = argmax_infer,
    .reference = argmax_reference,
    .no_accumulate = true,
    .dtypes = CHOIR_DTYPES_ALL & ~CHOIR_DTYPE_MASK(BOOL),
    .domains = {CHOIR_DOMAIN_NO_KINK},
    .tolerance = 0,
    .cases = choir__maximum_cases,
};
