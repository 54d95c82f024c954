// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_STRATEGIES_STRATEGY_INTERNAL_H_
#define CHOIR_DIST_STRATEGIES_STRATEGY_INTERNAL_H_

#include "dist/comm.h"
#include "dist/plan.h"
#include "dist/strategy.h"
#include "opt/optimizer.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// For writers of a strategy (dist/strategies/<name>_strategy.c). There are two
// kinds.
//
// One combines gradients: `exchange` is called for each bucket, in the same
// order on every rank, when the bucket's gradients are about to be written; it
// submits records (encode, a collective, decode) that leave the combined
// gradient in the bucket. The optimizer runs after all buckets.
//
// One combines parameters (`combine`): each rank's optimizer runs on its own
// gradients, and `combine` after it in every step, on the thread that computes.
//
// A strategy that keeps something from step to step lists it in `states`; a
// checkpoint holds each rank's.

typedef struct choir_strategy_s choir_strategy_t;

// Where one parameter lies.
typedef struct choir_strategy_piece_s {
  void* value;  // the parameter's elements, in the order of the bucket's
  int64_t offset;
  int64_t count;
  int64_t rows;  // of the matrix that it is in memory: of the outermost axis
} choir_strategy_piece_t;

typedef struct choir_strategy_bucket_s {
  const char* name;  // "gradient bucket 0"
  choir_dtype_t dtype;
  // Elements; those between parameters, to the next cache line, are 0.
  int64_t count;
  void* grads;  // in the communicator's memory, of the strategy's device
  const choir_strategy_piece_t* pieces;
  int32_t piece_count;
} choir_strategy_bucket_t;

// What an exchange costs.
typedef struct choir_strategy_cost_s {
  double reduced;      // bytes that are all-reduced
  double gathered;     // bytes that a rank gives to an all-gather
  int32_t operations;  // collectives
  int64_t period;      // steps between two exchanges
  int64_t delay;       // steps that an exchange may take
  bool overlaps;       // with backward
  double passes;  // over the parameters in each step, beside the optimizer's
  // Samples that it takes to learn as much as fp32 from one: measured, see
  // docs/strategies.md.
  double effort;
} choir_strategy_cost_t;

struct choir_strategy_def_s {
  const char* alias;                 // another dist_option; NULL: none
  const choir_struct_def_t* config;  // its name is the dist_option
  size_t bytes;  // of the struct that begins with choir_strategy_s
  // Settings that are in range but do not fit together; NULL: none.
  choir_status_t (*check)(const void* config);
  // Makes states and buffers. Collective: all ranks are here. NULL: nothing.
  choir_status_t (*attach)(choir_strategy_t* strategy);
  // Frees them, also after a part of attach or a second time. NULL: nothing.
  void (*detach)(choir_strategy_t* strategy);
  // exchange leaves the average of the gradients in f32, weighted by samples,
  // and no more than that: DistOpt may take it in another way.
  bool is_average;
  // exchange leaves that average, rounded to the 16 bits with which gradients
  // travel: elements of a bucket to those and back, for DistOpt's sums over
  // micro-shards. NULL: it does something else.
  void (*encode)(choir_strategy_t* strategy, int32_t bucket,
                 const choir_step_values_t* values, const float* src,
                 int64_t count, uint16_t* dst);
  void (*decode)(const choir_strategy_t* strategy, const uint16_t* src,
                 int64_t count, float* dst);
  // Either of the two, see above.
  choir_status_t (*exchange)(choir_strategy_t* strategy, int32_t bucket,
                             choir_stream_t* stream);
  choir_status_t (*combine)(choir_strategy_t* strategy,
                            const choir_step_values_t* values);
  // With combine: parameters were set from outside, equal on all ranks (after
  // attach, after a checkpoint was read). NULL: nothing to do.
  void (*take_params)(choir_strategy_t* strategy);
  // With combine: makes the replicas equal. Collective, between steps.
  choir_status_t (*consolidate)(choir_strategy_t* strategy);
  // Its states are of each rank alone: what it has not sent yet.
  bool has_own_states;
  // As choir_updater_vtable_t's. NULL: none.
  size_t (*states)(const choir_strategy_t* strategy,
                   choir_named_tensor_t* out_states);
  // For dist_option auto; false: what is known of the workload does not tell.
  // NULL: nothing would.
  bool (*cost)(const void* config, const choir_workload_t* workload,
               choir_strategy_cost_t* out_cost);
  // With exchange: whether `grads` may be memory of this device, which the host
  // cannot see; asked before attach. NULL: never. A strategy that does not work
  // there gets copies on the host.
  bool (*works_on)(const choir_strategy_t* strategy,
                   const choir_device_t* device);
  // With combine: it looks at `grads` too.
  bool reads_grads;
  // Asked before each step, on all ranks. *out_done: the link and a step are
  // measured, the same on all ranks, and the strategy that suits them goes on.
  // NULL: never.
  choir_status_t (*measure)(choir_strategy_t* strategy, choir_link_t* out_link,
                            choir_workload_t* out_workload, bool* out_done);
};

struct choir_strategy_s {
  const choir_strategy_def_t* def;
  choir_strategy_config_t config;
  choir_allocator_t allocator;
  choir_comm_t* comm;
  choir_device_t* device;  // of gradients, parameters and states
  // Of memory that the host sees: `device`, unless the strategy works on one
  // where it does not.
  choir_device_t* host;
  choir_optimizer_t* optimizer;
  const choir_strategy_bucket_t* buckets;
  int32_t bucket_count;
  bool overlaps;  // exchange may run beside backward; true unless set
  // Of the step that is being submitted.
  choir_step_values_t values;
};

// ---- For strategies ----

// Submits a call of `run` as a record with a name of its own, to be seen in
// profiles and run again by graphs. `work` tells which: "encode", "decode". On
// a GPU `run` may launch and copy as a record's run may.
typedef enum choir_strategy_work_e {
  CHOIR_STRATEGY_ENCODE,
  CHOIR_STRATEGY_DECODE,
  CHOIR_STRATEGY_COMBINE,
  CHOIR_STRATEGY_WORK_COUNT,
} choir_strategy_work_t;
typedef choir_status_t (*choir_strategy_run_t)(
    choir_strategy_t* strategy, int32_t bucket,
    const choir_step_values_t* values, choir_stream_t* stream);
choir_status_t choir__strategy_submit(choir_strategy_t* strategy,
                                      choir_strategy_work_t work,
                                      choir_strategy_run_t run, int32_t bucket,
                                      choir_stream_t* stream);

// Submits a collective of the step on memory of `device`: of the strategy's, or
// its host's.
choir_status_t choir__strategy_submit_collective(
    const choir_strategy_t* strategy, const choir_device_t* device,
    choir_stream_t* stream, const choir_collective_t* collective);

// A dense tensor of zeros on the strategy's device, and where its elements are:
// zeros for what is submitted to the device's streams, on a host at once.
choir_status_t choir__strategy_make_state(choir_strategy_t* strategy,
                                          choir_dtype_t dtype, int64_t count,
                                          choir_tensor_t** out_tensor,
                                          void** out_data);

// Fails with a sentence that names a bucket whose elements are not f32.
choir_status_t choir__strategy_need_f32(const choir_strategy_t* strategy);

// ---- For DistOpt ----

// Settings that are in range and fit together.
choir_status_t choir__strategy_check(const choir_strategy_def_t* def,
                                     const void* config);
// Sets `spars`, unless that is 0, then what `settings` says (NULL: nothing), in
// a config of the strategy, and checks all of it.
choir_status_t choir__strategy_config_set(const choir_strategy_def_t* def,
                                          double spars, const char* settings,
                                          void* config);
choir_status_t choir__strategy_create(const choir_strategy_def_t* def,
                                      const void* config,
                                      choir_strategy_t** out_strategy);
void choir__strategy_destroy(choir_strategy_t* strategy);
choir_status_t choir__strategy_attach(
    choir_strategy_t* strategy, choir_comm_t* comm, choir_device_t* device,
    choir_device_t* host, choir_optimizer_t* optimizer,
    const choir_strategy_bucket_t* buckets, int32_t bucket_count);
void choir__strategy_detach(choir_strategy_t* strategy);
// Equal for those that do the same. "sparseTopK spars=0.05 ..." into `text`.
uint64_t choir__strategy_hash(const choir_strategy_t* strategy);
const char* choir__strategy_print(const choir_strategy_t* strategy, char* text,
                                  size_t text_bytes);
size_t choir__strategy_states(const choir_strategy_t* strategy,
                              choir_named_tensor_t* out_states);

// In dist/strategies/<name>_strategy.c: dist_option and table of settings.
#define CHOIR_STRATEGY_CONFIG(name, option, FIELDS, doc)    \
  static const choir_field_t fields[] = {                   \
      CHOIR_CONFIG_TABLE(choir_##name##_config_t, FIELDS)}; \
  static const choir_struct_def_t config_def =              \
      CHOIR_STRUCT_DEF(option, choir_##name##_config_t, fields, doc)

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_STRATEGIES_STRATEGY_INTERNAL_H_
