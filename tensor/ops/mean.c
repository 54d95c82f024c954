// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/reduce.h"

static const choir_field_t fields[] = {CHOIR__REDUCE_FIELDS};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("mean", choir_reduce_attrs_t, fields, "what is reduced");

static choir_status_t mean_infer(const choir_view_t* srcs, int32_t src_count,
                                 const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  return choir__reduce_infer("mean", &srcs[0], attrs, srcs[0].dtype, false,
                             &dsts[0]);
}

static choir_status_t mean_reference(const choir_record_t* record,
                                     choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  int64_t axis = ((const choir_reduce_attrs_t*)record->attrs)->axis;
  choir__lanes_t lanes;
  choir__walk_t results;
  choir__walk_start(&results, &dst, 1);
  for (bool more = choir__lanes_start(&lanes, src, axis); more;
       more = choir__lanes_next(&lanes), choir__walk_next(&results)) {
    const choir_view_t* lane = &lanes.lane;
    double sum = 0;
    choir__walk_t walk;
    for (bool inside = choir__walk_start(&walk, &lane, 1); inside;
         inside = choir__walk_next(&walk))
      sum += choir__real_load(src_data, src->dtype, walk.offsets[0]);
    choir__real_store(dst_data, dst->dtype, results.offsets[0],
                      sum / (double)choir_view_count(lane), record->accumulate);
  }
  return NULL;
}

const choir_op_def_t choir_op_def_mean = {
    .op = CHOIR_OP_MEAN,
    .name = "mean",
    .doc = "mean over one axis or all; NaN of nothing",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = mean_infer,
    .reference = mean_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 1e-5,
    .cases = choir__reduce_cases,
};
