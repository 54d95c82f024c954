// SPDX-License-Identifier: Apache-2.0
#include "io/partition.h"

static int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

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
  return NULL;
}

int64_t choir_partition_steps(const choir_partition_t* partition) {
  return (partition->sample_count - 1) / partition->global_batch + 1;
}

choir_partition_part_t choir_partition_step(const choir_partition_t* partition,
                                            int64_t step) {
  choir_partition_part_t part = {0, 0, 0, 0};
  if (step < 0 || step >= choir_partition_steps(partition)) return part;
  part.step_first = step * partition->global_batch;
  part.step_count = minimum(partition->global_batch,
                            partition->sample_count - part.step_first);

  // In micro-shards: the first `extra` ranks own one more than `base`.
  const int64_t shards = (part.step_count - 1) / partition->micro_shard + 1;
  const int64_t base = shards / partition->size;
  const int64_t extra = shards % partition->size;
  const int64_t rank = partition->rank;
  const int64_t first_shard = rank * base + minimum(rank, extra);
  const int64_t end_shard = first_shard + base + (rank < extra ? 1 : 0);

  // The end is compared as shards first: end_shard * micro_shard may be larger
  // than any number when the last shard is cut short.
  const int64_t end = end_shard == shards ? part.step_count
                                          : end_shard * partition->micro_shard;
  part.first_in_step = first_shard == shards
                           ? part.step_count
                           : first_shard * partition->micro_shard;
  part.count = end - part.first_in_step;
  return part;
}

int64_t choir_partition_capacity(const choir_partition_t* partition) {
  // All steps but the last are alike, and the last one, though shorter, may
  // give a whole shard to the rank whose shard is cut short in the others.
  const int64_t first = choir_partition_step(partition, 0).count;
  const int64_t last =
      choir_partition_step(partition, choir_partition_steps(partition) - 1)
          .count;
  return first > last ? first : last;
}
