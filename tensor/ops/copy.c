// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elements.h"

// Moves bits, so that a NaN keeps its payload.
static choir_status_t copy_reference(const choir_record_t* record,
                                     choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const choir_view_t* views[] = {src, dst};
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk))
    choir__element_copy(choir__src_data(record, 0), walk.offsets[0],
                        choir__dst_data(record, 0), walk.offsets[1], dst->dtype,
                        record->accumulate);
  return NULL;
}

CHOIR_OP_DEFINE_BY(COPY, copy, 1, 1, 1, choir__infer_as_source, copy_reference,
                   "x, element by element", .elementwise = true,
                   .dtypes = CHOIR_DTYPES_ALL, .tolerance = 2e-7,
                   .cases = choir__cases_1);
