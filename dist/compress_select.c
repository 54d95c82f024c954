// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "dist/compress_internal.h"
#include "dist/top_k_internal.h"

choir_status_t choir__select_least(float threshold, uint32_t* out_least) {
  *out_least = 0;
  if (isnan(threshold))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "select_above: the threshold is NaN; a number is "
                       "needed");
  // All are above 0 or less.
  if (threshold > 0) memcpy(out_least, &threshold, sizeof(*out_least));
  return NULL;
}

choir_status_t choir__select_above(const float* src, int64_t count,
                                   float threshold, int64_t most,
                                   int32_t* out_indices, float* out_values,
                                   int64_t* out_found) {
  *out_found = 0;
  uint32_t least;
  CHOIR_TRY(choir__select_least(threshold, &least));
  if (count < 0 || count > INT32_MAX || most < 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "select_above: %lld elements, %lld wanted at most; 0 .. "
                       "2^31 - 1 and 0 or more are allowed",
                       (long long)count, (long long)most);
  if (count == 0) return NULL;
  if (!src || !out_indices || !out_values)
    return CHOIR_ERROR(INVALID_ARGUMENT, "select_above: %s is NULL",
                       !src           ? "src"
                       : !out_indices ? "out_indices"
                                      : "out_values");
  // The bits of an element are the element.
  uint32_t* bits = (uint32_t*)(void*)out_values;
  *out_found =
      choir__top_k_collect_best()(src, count, least, most, out_indices, bits);
  return NULL;
}
