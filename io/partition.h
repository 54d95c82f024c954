// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_PARTITION_H_
#define CHOIR_IO_PARTITION_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Who gets which samples: pure arithmetic, the same on every rank.
//
// An epoch is the positions 0 .. sample_count - 1 (of a shuffled order or
// not). Step t takes positions [t * G, min((t + 1) * G, sample_count)), where
// G is the global batch. A step's positions are cut into micro-shards of
// micro_shard samples, the last one possibly shorter, and the ranks own
// consecutive micro-shards, as even as can be: with S shards for R ranks each
// gets S / R, and the first S % R ranks one more. Where ranks are not equally
// fast, shares say how many samples each gets; of a step that is shorter each
// gets in proportion, in whole micro-shards (those that do not divide go to the
// largest remainders, of equal ones to the lowest ranks).
//
// So, whatever the numbers: every rank makes the same number of steps; each
// position belongs to exactly one rank; the cuts do not depend on the number
// of ranks (for one G), nor does the order of samples. In a step with few
// samples the last ranks may get none, but they still take part in it. Load
// is even when G / size is a multiple of micro_shard.
//
//   samples 60000, G = 256 (4 ranks of 64), micro-shards of 16: 235 steps; in
//   the last one 96 samples are left, 6 shards: 32, 32, 16 and 16 samples.
//   With shares 128, 64, 48 and 16: 48, 32, 16 and 0 of these 96.
//
// Ownership: plain values. Threads: pure functions.

typedef struct choir_partition_s {
  int64_t sample_count;
  int64_t global_batch;  // samples of a step, all ranks together
  int64_t micro_shard;
  int32_t rank;
  int32_t size;           // ranks
  const int64_t* shares;  // of each rank (size), lent; NULL: even
  // Of an epoch that was begun with another global batch, else 0: step
  // first_step takes the positions from first_sample on, those after it follow.
  int64_t first_step;
  int64_t first_sample;
} choir_partition_t;

// One rank's part of one step; all counts and positions are samples.
typedef struct choir_partition_part_s {
  int64_t step_first;     // the step's first position in the epoch
  int64_t step_count;     // samples of the step, all ranks together
  int64_t first_in_step;  // where this rank's samples start in the step
  int64_t count;          // this rank's samples; may be 0
} choir_partition_part_t;

// INVALID_ARGUMENT, with the number that is wrong, unless sample_count,
// global_batch, micro_shard and size are at least 1, rank is one of
// 0 .. size - 1, first_sample of 0 .. sample_count, first_step of
// 0 .. first_sample, and shares, if any, are at least 0, end on micro-shards
// (or with the step) and make up the global batch, of less than 2^31
// micro-shards.
CHOIR_API choir_status_t
choir_partition_check(const choir_partition_t* partition) CHOIR_NODISCARD;

// The following three want a partition that passed the check.

// Steps of an epoch, the same for every rank: sample_count / global_batch,
// rounded up; of one that was begun with another global batch the steps so far
// and those to come.
CHOIR_API int64_t choir_partition_steps(const choir_partition_t* partition);
// This rank's part of step `step`; counts are 0 when there is no such step, or
// it was of another global batch.
CHOIR_API choir_partition_part_t
choir_partition_step(const choir_partition_t* partition, int64_t step);
// The most samples that this rank gets in any step.
CHOIR_API int64_t choir_partition_capacity(const choir_partition_t* partition);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_PARTITION_H_
