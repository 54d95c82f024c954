// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_H_
#define CHOIR_DIST_DIST_OPT_H_

#include "dist/comm.h"
#include "dist/plan.h"
#include "dist/strategy.h"
#include "opt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// DistOpt: any optimizer, on many workers. Each holds a replica of the model;
// after backward the gradients are averaged over ranks, weighted by sample
// count, and every rank applies the same step. That is the strategy "fp32";
// others send less (dist/strategy.h).
//
//   CHOIR_TRY(choir_dist_opt_create(sgd, comm, NULL, &dist));
//   CHOIR_TRY(choir_model_set_updater(model, choir_dist_opt_updater(dist)));
//
// At set_updater the models and settings of all ranks are compared, rank 0's
// parameters are broadcast if a hash says that they differ, and each gradient
// becomes a view into a bucket in memory that the communicator allocated:
// nothing is packed or copied around an all-reduce. Buckets follow the model's
// parameter list from the last layer to the first; a bucket's all-reduce starts
// on a background stream as soon as its last gradient is written, while
// backward goes on; that of the last bucket runs on the compute stream.
//
// param->grad is the gradient of this rank's samples until the exchange takes
// it; after the step its content is undefined.
//
// With `shard` each rank keeps the optimizer's states of its part of every
// bucket alone, 1 / ranks of the memory, and updates that part (ZeRO-1). fp32
// then sends its gradients by reduce_scatter and the parameters by all_gather,
// together the bytes of an all-reduce; the bits are those of the whole update.
// Parameters move into one range of memory for each bucket (their tensors stay;
// choir_buffer_data changes). The optimizer's states are shards
// (choir_named_tensor_t): choir_updater_gather gives whole ones,
// choir_training_save writes and choir_training_resume reads them at any number
// of ranks; all are collective. FAILED_PRECONDITION at attach: parameters have
// memory in common, or the strategy makes local steps.
//
// Where ranks see each other's memory (shm, on CPUs, f32), unless peer_memory
// is false, each updates a part for all in any case, and writes it into every
// rank's memory; fp32 averages that part in the same pass, after backward,
// without messages. States are shards then too, but choir_updater_gather reads
// them from the peers' memory, and with it choir_training_save, on any rank
// without the others. Ranks that joined (choir_comm_join) cannot take part, and
// a rank that is killed in the middle leaves the others with parts of two
// steps.
//
// With backward_passes_per_step = n, n calls of choir_model_train_one_batch
// make one step, as if their batches were one: of the first n - 1 only the
// gradients are kept, weighted by samples (f32 parameters, a copy's memory),
// the last exchanges and steps; local strategies take one local step. The step
// counts once, so a batch's first_sample and global_count are those in the
// whole step. What was kept is in no checkpoint: save and consolidate between
// steps.
//
// Batches with micro-shards (choir_model_batch_t.micro_shard) make the same
// step for any number of ranks, to the bit (docs/reproducible.md): gradients
// are sums over the micro-shards of all ranks, in one order, in the place of
// averages. So it wants a device of choir_device_options_t.reproducible;
// UNIMPLEMENTED at the step with strategies that keep something, several passes
// or parameters that are not f32, and on another device where ranks share out
// the update. Ranks whose micro-shards do not make up the step:
// INVALID_ARGUMENT on all of them, and nothing is updated.
//
// Errors: when a step fails on one rank alone, the others wait for it in the
// exchange until it ends, calls choir_comm_abort or the deadline passes; when
// it fails after its first bucket was started, or in backward before a sharded
// update, DistOpt breaks the communicator itself. A parameter that the loss
// does not reach, or that was frozen, hangs nobody.
//
// With `elastic` a rank that is lost does not end the run (docs/elastic.md).
// Those that are left agree on the next generation, whose ranks are theirs in
// their order, with a communicator of its own; the step at hand is taken back,
// and choir_model_train_one_batch returns OK with choir_model_step as it was
// before that step, or one more where another rank had made it. Newcomers
// (choir_comm_config_t.is_newcomer) are taken in likewise. With micro-shards
// the run has the bits of one in which nothing happened. Ranks update from
// messages (peer_memory counts as false). With `shard` another rank keeps a
// second copy of each shard, and where a rank is lost together with that one
// the step fails with FAILED_PRECONDITION; a rank that sets states by itself
// calls choir_model_set_step, as all do, before the next step. UNIMPLEMENTED
// at attach: another device than "cpu", several passes per step, a strategy
// that keeps more from step to step than what was not sent.
//
// keep_batch: where the number of workers changes each one's batch stays, in
// place of the global batch: of the loader that choir_training_follow names,
// from the next step on, in the middle of an epoch, too, each sample of which
// is in one step as ever. Such a run depends on who was in it when.
//
// SIGTERM then means choir_dist_opt_leave, where nothing handles it at attach
// (SIG_DFL): its handler, of the process until the last such DistOpt goes, sets
// a flag. A second SIGTERM, or that of a launcher (choir_launch_run) which ends
// all workers, ends the process as it would without.
//
// Ownership: shared; keeps optimizer and communicator.
// Threads: one thread at a time.

typedef struct choir_dist_opt_s choir_dist_opt_t;

// How learning rates follow the global batch, where keep_batch changes it from
// B to b samples: as they are, times b / B (Goyal et al., "Accurate, large
// minibatch SGD: training ImageNet in 1 hour", 2017), or times the root of it
// (Krizhevsky, "One weird trick for parallelizing convolutional neural
// networks", 2014). B is that of choir_training_follow.
// X(ENUM, name)
#define CHOIR_RATE_RULE_LIST(X) \
  X(NONE, none)                 \
  X(LINEAR, linear)             \
  X(SQRT, sqrt)
typedef enum choir_rate_rule_e {
#define CHOIR_RATE_RULE_ENUM_(ENUM, name) CHOIR_RATE_RULE_##ENUM,
  CHOIR_RATE_RULE_LIST(CHOIR_RATE_RULE_ENUM_)
#undef CHOIR_RATE_RULE_ENUM_
} choir_rate_rule_t;
CHOIR_API extern const char* const choir_rate_rule_names[];

#define CHOIR_DIST_OPT_FIELDS(X, T)                                       \
  X(T, INT, bucket_bytes, 1048576, 1, 1e15,                               \
    "a bucket is closed when it has this many bytes")                     \
  X(T, INT, backward_passes_per_step, 1, 1, 1e6,                          \
    "calls of train_one_batch that make one step")                        \
  X(T, BOOL, shard, false, 0, 1,                                          \
    "each rank keeps the optimizer's states of a part of the parameters") \
  X(T, BOOL, peer_memory, true, 0, 1,                                     \
    "ranks that see each other's memory update a part each, for all")     \
  X(T, BOOL, elastic, false, 0, 1,                                        \
    "where a rank is lost the others go on; newcomers are taken in")      \
  X(T, BOOL, keep_batch, false, 0, 1,                                     \
    "elastic: each rank's batch stays, in place of the global batch")     \
  X(T, ENUM, rate_rule, 0, choir_rate_rule_names, 0,                      \
    "keep_batch: how the learning rate follows the global batch")
CHOIR_CONFIG_STRUCT(choir_dist_opt_config_t, CHOIR_DIST_OPT_FIELDS);

CHOIR_API extern const choir_struct_def_t choir_dist_opt_config_def;

// config NULL: the defaults. Local; the collective part is in attach.
CHOIR_API choir_status_t
choir_dist_opt_create(choir_optimizer_t* optimizer, choir_comm_t* comm,
                      const choir_dist_opt_config_t* config,
                      choir_dist_opt_t** out_dist_opt) CHOIR_NODISCARD;
CHOIR_API void choir_dist_opt_retain(choir_dist_opt_t* dist_opt);
CHOIR_API void choir_dist_opt_release(choir_dist_opt_t* dist_opt);
// The strategy from now on, with its config's struct (copied; NULL: defaults);
// before any call: fp32. Before attach local, later collective, between steps:
// replicas and the optimizer's states become equal, and what the strategy
// before kept is dropped. On all ranks alike, and nothing changed:
// FAILED_PRECONDITION, one has another strategy or other settings; or what is
// wrong with the call of one of them, who waits for the others. When it does
// not fit the parameters or the optimizer, or one rank has no memory for it,
// the one before is in use, as new.
CHOIR_API choir_status_t choir_dist_opt_use(choir_dist_opt_t* dist_opt,
                                            const choir_strategy_def_t* def,
                                            const void* config) CHOIR_NODISCARD;
// In the place of choir_dist_opt_use, for a rank that found something wrong
// before that call (a binding, in what it was given): where it is collective
// the other ranks get `why` from it. Takes `why` over, and returns it.
CHOIR_API choir_status_t choir_dist_opt_refuse_use(choir_dist_opt_t* dist_opt,
                                                   choir_status_t why)
    CHOIR_NODISCARD;
#define CHOIR_DIST_OPT_USE_(dist_opt, name, FIELDS, ...)       \
  CHOIR_CONFIG_CALL_(                                          \
      choir_status_t,                                          \
      choir_dist_opt_use(dist_opt, &choir_strategy_def_##name, \
                         &(choir_##name##_config_t){           \
                             CHOIR_CONFIG_DEFAULTS(FIELDS) __VA_ARGS__}))
// choir_dist_opt_use_<name>(dist_opt, .field = value, ...).
#define choir_dist_opt_use_fp32(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, fp32, CHOIR_DENSE_FIELDS, __VA_ARGS__)
#define choir_dist_opt_use_fp16(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, fp16, CHOIR_FP16_FIELDS, __VA_ARGS__)
#define choir_dist_opt_use_bf16(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, bf16, CHOIR_DENSE_FIELDS, __VA_ARGS__)
#define choir_dist_opt_use_partial_update(dist_opt, ...)                     \
  CHOIR_DIST_OPT_USE_(dist_opt, partial_update, CHOIR_PARTIAL_UPDATE_FIELDS, \
                      __VA_ARGS__)
#define choir_dist_opt_use_sparse_top_k(dist_opt, ...)                   \
  CHOIR_DIST_OPT_USE_(dist_opt, sparse_top_k, CHOIR_SPARSE_TOP_K_FIELDS, \
                      __VA_ARGS__)
#define choir_dist_opt_use_sparse_threshold(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, sparse_threshold,          \
                      CHOIR_SPARSE_THRESHOLD_FIELDS, __VA_ARGS__)
#define choir_dist_opt_use_dgc(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, dgc, CHOIR_DGC_FIELDS, __VA_ARGS__)
#define choir_dist_opt_use_power_sgd(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, power_sgd, CHOIR_POWER_SGD_FIELDS, __VA_ARGS__)
#define choir_dist_opt_use_local_sgd(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, local_sgd, CHOIR_LOCAL_SGD_FIELDS, __VA_ARGS__)
#define choir_dist_opt_use_sparse_local(dist_opt, ...)                   \
  CHOIR_DIST_OPT_USE_(dist_opt, sparse_local, CHOIR_SPARSE_LOCAL_FIELDS, \
                      __VA_ARGS__)
#define choir_dist_opt_use_auto(dist_opt, ...) \
  CHOIR_DIST_OPT_USE_(dist_opt, auto, CHOIR_AUTO_FIELDS, __VA_ARGS__)
// The one in use.
CHOIR_API const choir_strategy_def_t* choir_dist_opt_strategy(
    const choir_dist_opt_t* dist_opt);
// "sparseTopK spars=0.05 ..." into `text`, cut at text_bytes; returns it.
CHOIR_API const char* choir_dist_opt_print_strategy(
    const choir_dist_opt_t* dist_opt, char* text, size_t text_bytes);

// What dist_option "auto" measured and chose (dist/plan.h); lent. NULL before.
CHOIR_API const choir_plan_t* choir_dist_opt_plan(
    const choir_dist_opt_t* dist_opt);

// Who takes part, from when on.
typedef struct choir_generation_s {
  int64_t number;      // 1: those of choir_dist_opt_create
  choir_comm_t* comm;  // lent until the next one
  int64_t step;        // of the model, when it began
  double seconds;      // from when the loss was noticed
  bool has_come;       // this rank, with it: all it has is from the others
  char text[512];      // "generation 2: rank 1 (host h, pid 7) is gone, 3
                       // workers go on"; of the first: ""
  bool has_left;       // this rank; the others go on without it
  int32_t lost;        // ranks of the one before that did not go on; of a rank
                       // that has come: 0
} choir_generation_t;
// Lent; it changes in choir_model_train_one_batch and choir_training_recover.
CHOIR_API const choir_generation_t* choir_dist_opt_generation(
    const choir_dist_opt_t* dist_opt);

// This rank leaves the run, of an elastic DistOpt, after the step at hand: the
// next choir_model_train_one_batch, or choir_training_recover, tells the
// others, who go on at once, breaks the communicator, and returns ABORTED with
// choir_generation_t.has_left set; no launcher of Choir's starts another in its
// place. Parameters and states are what they are after the last step. With
// `shard` one that holds a shard of another who leaves makes a step more for
// each of those before it. Where that call is not made any more, nothing
// happens. Not elastic: that step fails
// with FAILED_PRECONDITION. Threads: any; safe in a signal handler, as long as
// there is the DistOpt. Accepts NULL.
CHOIR_API void choir_dist_opt_leave(choir_dist_opt_t* dist_opt);

// As a model's updater; lent. Of its options (choir_model_set_update_options)
// dist_option names a strategy; where it is not the one in use it begins with
// its defaults. Then spars, where it is not 0 and the strategy has it, and
// settings are set. What is so in use already is left alone.
CHOIR_API choir_updater_t* choir_dist_opt_updater(choir_dist_opt_t* dist_opt);

// Collective: sends rank 0's parameters, model states and optimizer states to
// all, for after a checkpoint was restored by rank 0 alone.
// FAILED_PRECONDITION: it is no model's updater yet, or states are shards, of
// which rank 0 has its own: choir_training_resume reads a checkpoint for all
// ranks.
CHOIR_API choir_status_t choir_dist_opt_broadcast(choir_dist_opt_t* dist_opt)
    CHOIR_NODISCARD;

// Whether ranks may hold different things: under the strategy in use what was
// not sent yet, and, with local steps, the optimizer's states; with `shard`
// their shards. Where not, each rank can tell everybody's states.
CHOIR_API bool choir_dist_opt_ranks_differ(const choir_dist_opt_t* dist_opt);

// Collective: fails with INTERNAL on every rank, naming the first that differs
// from rank 0, unless all have the same digest.
CHOIR_API choir_status_t choir_dist_opt_check_digest(choir_dist_opt_t* dist_opt,
                                                     uint64_t digest)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_DIST_OPT_H_
