// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_SHARES_H_
#define CHOIR_IO_SHARES_H_

#include <stddef.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Shares: how many samples of each step each rank gets, for ranks that are not
// equally fast. An array of `size` numbers, or their text "96,32"; they are
// whole micro-shards (io/partition.h tells the rule) and their sum is the
// global batch, so that the samples of a step do not change with them.
//
// Ownership: plain values. Threads: pure functions.

// Reads `size` numbers from 0, with commas between. INVALID_ARGUMENT when
// there are more, fewer, or something else.
CHOIR_API choir_status_t choir_shares_parse(const char* text, int32_t size,
                                            int64_t* out_shares)
    CHOIR_NODISCARD;
// The text, cut at text_bytes; returns it. 21 bytes for each rank are enough.
CHOIR_API char* choir_shares_print(const int64_t* shares, int32_t size,
                                   char* text, size_t text_bytes);

// The shares with which a step ends first, for ranks that do `speeds[rank]`
// samples per second. Each gets a micro-shard, if there are enough; then one
// after the other goes to the rank that would be through with it first, of
// several the lowest. The same numbers give the same shares on every machine.
// Time: micro-shards times ranks. INVALID_ARGUMENT, with what is wrong, unless
// all speeds are finite and above 0 and the other numbers at least 1.
CHOIR_API choir_status_t choir_shares_from_speeds(
    const double* speeds, int32_t size, int64_t global_batch,
    int64_t micro_shard, int64_t* out_shares) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_SHARES_H_
