// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/reduce.h"

static const choir_field_t fields[] = {CHOIR__REDUCE_FIELDS};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("sum", choir_reduce_attrs_t, fields, "what is reduced");

static choir_status_t sum_infer(const choir_view_t* srcs, int32_t src_count,
                                const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  return choir__reduce_infer("sum", &srcs[0], attrs, srcs[0].dtype, false,
                             &dsts[0]);
}

static double lane_sum(const choir_view_t* lane, const void* data) {
  double sum = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &lane, 1); more;
       more = choir__walk_next(&walk))
    sum += choir__real_load(data, lane->dtype, walk.offsets[0]);
  return sum;
}

// Exact, wrapping around.
static int64_t integer_lane_sum(const choir_view_t* lane, const void* data) {
  uint64_t sum = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &lane, 1); more;
       more = choir__walk_next(&walk))
    sum += (uint64_t)choir__integer_load(data, lane->dtype, walk.offsets[0]);
  return (int64_t)sum;
}

static choir_status_t sum_reference(const choir_record_t* record,
                                    choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  int64_t axis = ((const choir_reduce_attrs_t*)record->attrs)->axis;
  bool is_real = choir_dtype_is_float(src->dtype);
  choir__lanes_t lanes;
  choir__walk_t results;
  choir__walk_start(&results, &dst, 1);
  for (bool more = choir__lanes_start(&lanes, src, axis); more;
       more = choir__lanes_next(&lanes), choir__walk_next(&results)) {
    if (is_real)
      choir__real_store(dst_data, dst->dtype, results.offsets[0],
                        lane_sum(&lanes.lane, src_data), record->accumulate);
    else
      choir__integer_store(dst_data, dst->dtype, results.offsets[0],
                           integer_lane_sum(&lanes.lane, src_data),
                           record->accumulate);
  }
  return NULL;
}

const choir_op_def_t choir_op_def_sum = {
    .op = CHOIR_OP_SUM,
    .name = "sum",
    .doc = "sum over one axis or all",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = sum_infer,
    .reference = sum_reference,
    .dtypes =
        CHOIR_DTYPES_FLOAT | CHOIR_DTYPE_MASK(I32) | CHOIR_DTYPE_MASK(I64),
    .tolerance = 1e-5,
    .cases = choir__reduce_cases,
};
