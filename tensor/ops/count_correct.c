// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/labels.h"
#include "tensor/ops/reduce.h"

static choir_status_t count_correct_infer(const choir_view_t* srcs,
                                          int32_t src_count, const void* attrs,
                                          choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  CHOIR_TRY(choir__need_labels("count_correct", &srcs[0], &srcs[1]));
  if (srcs[0].shape[1] == 0 && srcs[0].shape[0] > 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "count_correct: x has 0 classes; needs at least 1");
  int64_t one = 1;
  return choir__infer_shape("count_correct", CHOIR_DTYPE_I64, 1, &one,
                            &dsts[0]);
}

static choir_status_t count_correct_reference(const choir_record_t* record,
                                              choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  int64_t correct = 0;
  int64_t row = 0;
  choir__lanes_t lanes;
  for (bool more = choir__lanes_start(&lanes, x, 1); more;
       more = choir__lanes_next(&lanes), ++row) {
    int64_t label, place, offset;
    CHOIR_TRY(
        choir__label_load("count_correct", record, row, x->shape[1], &label));
    choir__lane_maximum(&lanes.lane, choir__src_data(record, 0), &place,
                        &offset);
    if (place == label) ++correct;
  }
  choir__integer_store(choir__dst_data(record, 0), dst->dtype, dst->offset,
                       correct, record->accumulate);
  return NULL;
}

const choir_op_def_t choir_op_def_count_correct = {
    .op = CHOIR_OP_COUNT_CORRECT,
    .name = "count_correct",
    .doc = "x, labels -> rows whose first maximum is the label, as i64",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .infer = count_correct_infer,
    .reference = count_correct_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR__DTYPES_LABEL,
    .domains = {CHOIR_DOMAIN_NO_KINK, CHOIR_DOMAIN_LABELS},
    .tolerance = 0,
    .cases = choir__labels_cases,
};
