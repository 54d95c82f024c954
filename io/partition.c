// SPDX-License-Identifier: Apache-2.0
#include "io/partition.h"

static int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// The micro-shards of so many samples.
static int64_t shards_in(const choir_partition_t* partition, int64_t samples) {
  return samples / partition->micro_shard +
         (samples % partition->micro_shard != 0);
}

static choir_status_t check_shares(const choir_partition_t* partition) {
  const int64_t batch = partition->global_batch;
  if (shards_in(partition, batch) > INT32_MAX) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "partition: with shares, a global batch of %lld samples "
                       "cannot have micro-shards of %lld: more than %d",
                       (long long)batch, (long long)partition->micro_shard,
                       INT32_MAX);
  }
  int64_t end = 0;
  for (int32_t rank = 0; rank < partition->size; ++rank) {
    const int64_t share = partition->shares[rank];
    if (share < 0 || share > batch - end) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "partition: the share of rank %d is %lld; the global "
                         "batch of %lld samples has 0 to %lld for it",
                         rank, (long long)share, (long long)batch,
                         (long long)(batch - end));
    }
    end += share;
    if (end % partition->micro_shard != 0 && end != batch) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "partition: the share of rank %d is %lld; it must be "
                         "a multiple of the micro-shard, %lld",
                         rank, (long long)share,
                         (long long)partition->micro_shard);
    }
  }
  if (end != batch) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "partition: the shares are %lld samples together; the "
                       "global batch is %lld",
                       (long long)end, (long long)batch);
  }
  return NULL;
}

choir_status_t choir_partition_check(const choir_partition_t* partition) {
  const struct {
    const char* name;
    int64_t value;
  } numbers[] = {
      {"sample_count", partition->sample_count},
      {"global_batch", partition->global_batch},
      {"micro_shard", partition->micro_shard},
      {"size", partition->size},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
    if (numbers[i].value < 1) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "partition: %s is %lld; it must be at least 1",
                         numbers[i].name, (long long)numbers[i].value);
    }
  }
  if (partition->rank < 0 || partition->rank >= partition->size) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "partition: rank is %d; with %d ranks it must be 0 to "
                       "%d",
                       partition->rank, partition->size, partition->size - 1);
  }
  if (partition->first_sample < 0 ||
      partition->first_sample > partition->sample_count ||
      partition->first_step < 0 ||
      partition->first_step > partition->first_sample) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "partition: step %lld cannot begin at sample %lld of "
                       "%lld",
                       (long long)partition->first_step,
                       (long long)partition->first_sample,
                       (long long)partition->sample_count);
  }
  return partition->shares ? check_shares(partition) : NULL;
}

int64_t choir_partition_steps(const choir_partition_t* partition) {
  const int64_t left = partition->sample_count - partition->first_sample;
  return partition->first_step + left / partition->global_batch +
         (left % partition->global_batch != 0);
}

// A run of micro-shards [first, end) of a step.
typedef struct shards_s {
  int64_t first;
  int64_t end;
} shards_t;

// The first `extra` ranks own one more than `base`.
static shards_t cut_evenly(const choir_partition_t* partition, int64_t shards) {
  const int64_t base = shards / partition->size;
  const int64_t extra = shards % partition->size;
  const int64_t rank = partition->rank;
  const int64_t first = rank * base + minimum(rank, extra);
  return (shards_t){first, first + base + (rank < extra ? 1 : 0)};
}

// shards * (what `rank` has of a full step's): below 2^62.
static int64_t weight_of(const choir_partition_t* partition, int64_t shards,
                         int32_t rank) {
  return shards * shards_in(partition, partition->shares[rank]);
}

// Of all ranks, how many have a larger remainder, or the same and come before.
static int64_t place_of(const choir_partition_t* partition, int64_t shards,
                        int64_t full, int32_t rank) {
  const int64_t remainder = weight_of(partition, shards, rank) % full;
  int64_t place = 0;
  for (int32_t other = 0; other < partition->size; ++other) {
    const int64_t others = weight_of(partition, shards, other) % full;
    place += others > remainder || (others == remainder && other < rank);
  }
  return place;
}

static shards_t cut_by_shares(const choir_partition_t* partition,
                              int64_t shards) {
  const int64_t full = shards_in(partition, partition->global_batch);
  int64_t left = shards;
  for (int32_t rank = 0; rank < partition->size; ++rank)
    left -= weight_of(partition, shards, rank) / full;

  shards_t own = {0, 0};
  for (int32_t rank = 0; rank <= partition->rank; ++rank) {
    own.first = own.end;
    own.end += weight_of(partition, shards, rank) / full;
    if (left > 0 && place_of(partition, shards, full, rank) < left) ++own.end;
  }
  return own;
}

choir_partition_part_t choir_partition_step(const choir_partition_t* partition,
                                            int64_t step) {
  choir_partition_part_t part = {0, 0, 0, 0};
  const int64_t begun = step - partition->first_step;
  if (begun < 0 || step >= choir_partition_steps(partition)) return part;
  part.step_first = partition->first_sample + begun * partition->global_batch;
  part.step_count = minimum(partition->global_batch,
                            partition->sample_count - part.step_first);

  const int64_t shards = shards_in(partition, part.step_count);
  const shards_t own = partition->shares ? cut_by_shares(partition, shards)
                                         : cut_evenly(partition, shards);

  // The end is compared as shards first: end * micro_shard may be larger than
  // any number when the last shard is cut short.
  const int64_t end =
      own.end == shards ? part.step_count : own.end * partition->micro_shard;
  part.first_in_step = own.first == shards ? part.step_count
                                           : own.first * partition->micro_shard;
  part.count = end - part.first_in_step;
  return part;
}

int64_t choir_partition_capacity(const choir_partition_t* partition) {
  // All steps but the last are alike, and the last one, though shorter, may
  // give a whole shard to the rank whose shard is cut short in the others.
  const int64_t first =
      choir_partition_step(partition, partition->first_step).count;
  const int64_t last =
      choir_partition_step(partition, choir_partition_steps(partition) - 1)
          .count;
  return first > last ? first : last;
}
