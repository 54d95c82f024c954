// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elements.h"

static choir_status_t where_infer(const choir_record_t* record,
                                  choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  choir_view_t condition = srcs[0];
  condition.dtype = srcs[1].dtype;
  const choir_view_t views[] = {srcs[1], srcs[2], condition};
  return choir__broadcast_infer(views, 3, &dsts[0]);
}

static choir_status_t where_reference(const choir_record_t* record,
                                      choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* condition = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const choir_view_t* views[] = {condition, choir_record_src(record, 1),
                                 choir_record_src(record, 2), dst};
  const bool is_real = choir_dtype_is_float(condition->dtype);
  const void* data = choir__src_data(record, 0);
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, views, 4); more;
       more = choir__walk_next(&walk)) {
    const bool is_true =
        is_real
            ? choir__real_load(data, condition->dtype, walk.offsets[0]) != 0
            : choir__integer_load(data, condition->dtype, walk.offsets[0]) != 0;
    const int32_t chosen = is_true ? 1 : 2;
    choir__element_copy(choir__src_data(record, chosen), walk.offsets[chosen],
                        choir__dst_data(record, 0), walk.offsets[3], dst->dtype,
                        record->accumulate);
  }
  return NULL;
}

CHOIR_OP_DEFINE(WHERE, where, 3, 1,
                "condition, x, y -> x where condition is not 0, else y",
                .elementwise = true, .dtypes = CHOIR_DTYPES_ALL,
                .second_dtypes = CHOIR_DTYPES_ALL, .rest_as_second = true,
                .domains = {CHOIR_DOMAIN_CONDITION}, .tolerance = 2e-7,
                .cases = choir__cases_3);
