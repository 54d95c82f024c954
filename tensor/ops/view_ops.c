// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/view_ops.h"

choir_status_t choir__infer_from_alias(const char* op,
                                       const choir_view_t* alias,
                                       choir_view_t* dst) {
  return choir__infer_shape(op, alias->dtype, alias->ndim, alias->shape, dst);
}

// Two shapes of as many elements, one after the other.
static void copy_row_major(const choir_record_t* record) {
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  choir__walk_t from, to;
  bool more = choir__walk_start(&from, &src, 1);
  for (more = choir__walk_start(&to, &dst, 1) && more; more;
       more = choir__walk_next(&from) && choir__walk_next(&to))
    choir__element_copy(src_data, from.offsets[0], dst_data, to.offsets[0],
                        dst->dtype, record->accumulate);
}

choir_status_t choir__view_reference(const choir_record_t* record,
                                     choir_stream_t* stream,
                                     bool (*alias)(const choir_view_t* src,
                                                   const void* attrs,
                                                   choir_view_t* dst)) {
  choir_view_t operands[2];
  if (!alias(choir_record_src(record, 0), record->attrs, &operands[0])) {
    copy_row_major(record);
    return NULL;
  }
  operands[1] = *choir_record_dst(record, 0);
  choir_record_t copy = *record;
  copy.operands = operands;
  return choir_op_def_copy.reference(&copy, stream);
}
