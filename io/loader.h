// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_LOADER_H_
#define CHOIR_IO_LOADER_H_

#include "core/config.h"
#include "io/dataset.h"
#include "io/partition.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// A loader hands one rank its batches of a data set, epoch after epoch. The
// order of an epoch is a permutation keyed by (seed, epoch) over the whole
// set, the same on every rank and for every number of ranks; io/partition.h
// tells which of it a rank gets. A thread of the loader fills the next batches
// while the caller computes.
//
//   choir_loader_config_t config = {
//       CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
//   config.batch = 64;
//   CHOIR_TRY(choir_loader_create(train, device, rank, size, &config,
//                                 &loader));
//   const choir_batch_t* batch;
//   for (;;) {
//     CHOIR_TRY(choir_loader_next(loader, &batch));
//     if (!batch) break;  // the epoch is over; next() starts the following one
//     ... batch->x, batch->y ...
//   }
//   choir_loader_destroy(loader);
//
// Ownership: unique; keeps the data set and the device alive. A batch is lent
// until the following choir_loader_next or _destroy, also to those who retain
// its tensors: their elements change then. (Work already given to the device's
// compute stream is safe: the memory is refilled only after it.)
// Threads: one thread at a time, the one that uses the device's compute
// stream. In a process forked after the loader was made every call returns
// FAILED_PRECONDITION, and _destroy lets the memory be.

typedef struct choir_loader_s choir_loader_t;

// batch: load is even when it is a multiple of micro_shard; otherwise ranks get
// as many whole micro-shards as io/partition.h says, and the log says so.
// global_batch: when not 0, batch is ignored; the same number gives the same
// steps for any number of ranks. shares: the same global batch, dealt out by
// io/shares.h; all ranks must have the same, which no loader can see
// (choir_comm_check_same). prefetch: one batch in the caller's hands, the
// others filled ahead. deadline: longest wait of choir_loader_next.
#define CHOIR_LOADER_FIELDS(X, T)                                              \
  X(T, INT, batch, 64, 1, 2147483647.0, "samples of a step for each rank")     \
  X(T, INT, global_batch, 0, 0, 1099511627776.0,                               \
    "samples of a step over all ranks; 0: batch for each")                     \
  X(T, INT, micro_shard, 16, 1, 1048576.0,                                     \
    "samples that stay on one rank together")                                  \
  X(T, STRING, shares, NULL, 0, 0,                                             \
    "samples of a step for each rank: 96,32; not given: all alike")            \
  X(T, BOOL, shuffle, true, 0, 1, "a new order in every epoch, or the file's") \
  X(T, INT, seed, 0, 0, 9007199254740992.0, "of the order of samples")         \
  X(T, INT, prefetch, 3, 2, 64, "batches in memory, the one in use included")  \
  X(T, FLOAT, deadline, 600, 0.001, 1e9, "longest wait for a batch, seconds")
CHOIR_CONFIG_STRUCT(choir_loader_config_t, CHOIR_LOADER_FIELDS);
CHOIR_API extern const choir_struct_def_t choir_loader_config_def;

// One step's samples of this rank.
typedef struct choir_batch_s {
  choir_tensor_t* x;      // (sample_count, ...), by choir_dataset_x
  choir_tensor_t* y;      // (sample_count, ...), by choir_dataset_y
  int64_t sample_count;   // of this rank; may be 0 in the last step
  int64_t global_count;   // of all ranks; the weight of this rank in averages
                          // is sample_count / global_count
  int64_t micro_shard;    // micro-shard k of this rank is its samples
                          // [k * micro_shard, (k + 1) * micro_shard)
  int64_t first_in_step;  // of all ranks' samples of the step, the first here
  int64_t first_sample;   // of all ranks' samples of the epoch, the first here:
                          // the `sample` of random numbers (core/random.h)
  int64_t epoch;          // from 0
  int64_t step;           // within the epoch, from 0
  const int64_t* samples;  // indices in the data set (sample_count)
} choir_batch_t;

// The place of the batch that choir_loader_next hands out next. step may be
// choir_loader_steps(): the epoch's batches are through, but its end was not
// yet told. sample: of the epoch, the batch's first over all ranks, or how many
// there are; 0 in a position that is given: what follows from the step. Needed
// to go on after a checkpoint.
typedef struct choir_loader_position_s {
  int64_t epoch;
  int64_t step;
  int64_t sample;
} choir_loader_position_t;

// Starts the loader's thread for rank `rank` of `size` at epoch 0, step 0.
// config and its text are copied. Batches live in buffers of `device`. Fails
// with INVALID_ARGUMENT when the config is out of range, when shares are not as
// io/partition.h wants them or, with shuffle, when a global batch has more
// samples than the data set (batch, workers and samples are named); with
// FAILED_PRECONDITION in a forked child.
CHOIR_API choir_status_t choir_loader_create(
    choir_dataset_t* dataset, choir_device_t* device, int32_t rank,
    int32_t size, const choir_loader_config_t* config,
    choir_loader_t** out_loader) CHOIR_NODISCARD;
// Stops the thread at once, wherever it is, and joins it. Accepts NULL.
CHOIR_API void choir_loader_destroy(choir_loader_t* loader);

// Takes back the batch handed out before and hands out the next one, or NULL
// once at the end of each epoch. Waits when the thread is behind: TIMEOUT
// after the deadline, which means that the compute stream holds all batches.
// A failure of the thread is returned by every call until
// choir_loader_seek.
CHOIR_API choir_status_t choir_loader_next(choir_loader_t* loader,
                                           const choir_batch_t** out_batch)
    CHOIR_NODISCARD;

CHOIR_API choir_loader_position_t
choir_loader_position(const choir_loader_t* loader);
// Goes on at `position`: batches are the same as if the loader had run up to
// there. epoch is 0 .. 2^32 - 2, step 0 .. steps of that epoch, else
// OUT_OF_RANGE. A sample that does not follow from the step: the epoch's steps
// before it had another global batch, and the loader knows them no more. The
// batch in the caller's hands stays lent.
CHOIR_API choir_status_t choir_loader_seek(choir_loader_t* loader,
                                           choir_loader_position_t position)
    CHOIR_NODISCARD;

// Goes on at `position` for another rank, of another number of ranks: as a new
// loader whose config names this global batch (0: the one it has), with the
// shares of ranks that are alike. The batch in the caller's hands stays lent.
// Waits for the device's compute stream. After a failure the loader can only be
// destroyed.
CHOIR_API choir_status_t choir_loader_follow(choir_loader_t* loader,
                                             int32_t rank, int32_t size,
                                             int64_t global_batch,
                                             choir_loader_position_t position)
    CHOIR_NODISCARD;

// Steps of the epoch where it is, the same for every rank: of all epochs, but
// for one that was begun with another global batch.
CHOIR_API int64_t choir_loader_steps(const choir_loader_t* loader);
// What it makes the batches of a whole epoch of: samples, global batch, shares.
// Lent.
CHOIR_API const choir_partition_t* choir_loader_partition(
    const choir_loader_t* loader);
// Of the order of samples.
CHOIR_API int64_t choir_loader_seed(const choir_loader_t* loader);
CHOIR_API choir_dataset_t* choir_loader_dataset(const choir_loader_t* loader);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_LOADER_H_
