// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/optimizer_factors.h"

choir_status_t choir__infer_update(const char* op, const char* const* names,
                                   const choir_view_t* srcs, int32_t src_count,
                                   choir_view_t* dsts) {
  for (int32_t i = 1; i < src_count; ++i)
    CHOIR_TRY(
        choir__need_same_shape(op, names[i], &srcs[i], names[0], &srcs[0]));
  CHOIR_TRY(choir__infer_like(op, &srcs[0], &dsts[0]));
  for (int32_t i = 2; i < src_count; ++i)
    CHOIR_TRY(choir__infer_like(op, &srcs[i], &dsts[i - 1]));
  return NULL;
}
