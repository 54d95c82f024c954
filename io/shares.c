// SPDX-License-Identifier: Apache-2.0
#include "io/shares.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

choir_status_t choir_shares_parse(const char* text, int32_t size,
                                  int64_t* out_shares) {
  const char* at = text;
  for (int32_t rank = 0; rank < size; ++rank) {
    // strtoll would take blanks and signs too.
    char* end = NULL;
    errno = 0;
    const bool is_number = *at >= '0' && *at <= '9';
    if (is_number) out_shares[rank] = strtoll(at, &end, 10);
    if (!is_number || errno || *end != (rank + 1 < size ? ',' : 0)) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "shares are '%s'; %d ranks need %d whole numbers from "
                         "0, with commas between: samples of a step for each",
                         text, size, size);
    }
    at = end + 1;
  }
  return NULL;
}

char* choir_shares_print(const int64_t* shares, int32_t size, char* text,
                         size_t text_bytes) {
  size_t length = 0;
  if (text_bytes > 0) text[0] = 0;
  for (int32_t rank = 0; rank < size && length < text_bytes; ++rank) {
    length += (size_t)snprintf(text + length, text_bytes - length, "%s%" PRId64,
                               rank ? "," : "", shares[rank]);
  }
  return text;
}

choir_status_t choir_shares_from_speeds(const double* speeds, int32_t size,
                                        int64_t global_batch,
                                        int64_t micro_shard,
                                        int64_t* out_shares) {
  if (size < 1 || global_batch < 1 || micro_shard < 1) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "shares: %d ranks, a global batch of %" PRId64
                       ", micro-shards of %" PRId64 "; all must be at least 1",
                       size, global_batch, micro_shard);
  }
  for (int32_t rank = 0; rank < size; ++rank) {
    if (!isfinite(speeds[rank]) || speeds[rank] <= 0) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "shares: rank %d does %g samples per second; it must "
                         "be above 0 and finite",
                         rank, speeds[rank]);
    }
  }

  // In micro-shards first. The step's last may be short: the last rank's.
  const int64_t shards = (global_batch - 1) / micro_shard + 1;
  const int64_t missing = micro_shard - 1 - (global_batch - 1) % micro_shard;
  const int64_t least = shards >= size ? 1 : 0;
  for (int32_t rank = 0; rank < size; ++rank) out_shares[rank] = least;
  for (int64_t shard = least * size; shard < shards; ++shard) {
    int32_t first = 0;
    double first_end = INFINITY;
    for (int32_t rank = 0; rank < size; ++rank) {
      double samples = (double)(out_shares[rank] + 1) * (double)micro_shard;
      if (rank == size - 1) samples -= (double)missing;
      const double end = samples / speeds[rank];
      if (end < first_end) {
        first = rank;
        first_end = end;
      }
    }
    ++out_shares[first];
  }

  int64_t left = global_batch;
  for (int32_t rank = 0; rank < size; ++rank) {
    const bool is_all = out_shares[rank] > left / micro_shard;
    out_shares[rank] = is_all ? left : out_shares[rank] * micro_shard;
    left -= out_shares[rank];
  }
  return NULL;
}
