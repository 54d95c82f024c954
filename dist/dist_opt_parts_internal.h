// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_PARTS_INTERNAL_H_
#define CHOIR_DIST_DIST_OPT_PARTS_INTERNAL_H_

#include "core/profile.h"
#include "core/trace.h"
#include "dist/dist_opt_internal.h"
#include "dist/elastic/membership_def.h"
#include "model/updater_backend.h"

// DistOpt itself, for the files that it consists of: dist_opt.c (attach, the
// strategy, what users call) and those below.

#ifdef __cplusplus
extern "C" {
#endif

typedef struct choir__bucket_s {
  choir_buffer_t* buffer;  // gradients
  choir_buffer_t* values;  // parameters, in the same places; NULL: elsewhere
  // Gradients of this rank's second node of a sum over micro-shards, which
  // others see; NULL: they do not.
  choir_buffer_t* second;
  choir_dtype_t dtype;
  int64_t count;  // elements
  int64_t part;   // of a rank: count / ranks, rounded up to cache lines; both
                  // buffers have room for one of each
  int32_t param_count;
  int32_t missing;          // gradients not yet written in this step
  choir_event_t* ready;     // all gradients written
  choir__passes_t* passes;  // NULL: a step has one
  char name[32];
} choir__bucket_t;

// Where a parameter is among the buckets.
typedef struct choir__place_s {
  int32_t bucket;  // -1: in none
  int64_t offset;  // elements
} choir__place_t;

typedef struct choir__shards_s choir__shards_t;
typedef struct choir__holders_s choir__holders_t;
typedef struct choir__giver_s choir__giver_t;
typedef struct choir__clip_s choir__clip_t;
typedef struct choir__sums_s choir__sums_t;

// Which samples a step of the model takes, the same on all ranks of a
// generation: integers of 64 bits alone, which go between ranks.
typedef struct choir__course_s {
  int64_t first_size;  // ranks that the run began with
  // Of a run in which one has a loader; samples 0: none has said so.
  int64_t samples;      // of an epoch
  int64_t first_batch;  // the global batch that the run began with
  int64_t global_batch;
  // Step `step` is this one of an epoch, and begins there.
  int64_t step;
  choir_loader_position_t place;
} choir__course_t;

// What the strategy of an elastic run keeps on this rank alone: its tensors,
// and what was in them before a step.
typedef struct choir__kept_s {
  choir_tensor_t** before;  // [count]; NULL: of no step yet
  choir_tensor_t** now;     // [count]
  size_t count;
  size_t bytes;  // of this memory
  int64_t step;
} choir__kept_t;

struct choir_dist_opt_s {
  choir_updater_t updater;  // first
  choir_optimizer_t* optimizer;
  choir_comm_t* comm;
  choir_dist_opt_config_t config;
  choir_allocator_t allocator;
  choir_device_t* device;
  choir_device_t* host;  // `device` where the host sees its memory
  choir_stream_t* background;
  choir_event_t* exchanged;
  choir_param_set_t* params;
  choir__place_t* places;  // for each parameter of the list
  choir__bucket_t* buckets;
  int32_t bucket_count;
  int32_t next_bucket;  // the first that was not started in this step
  // The buckets and where their parameters lie, for the strategy.
  choir_strategy_bucket_t* strategy_buckets;
  choir_strategy_piece_t* pieces;
  choir_tensor_t** values;  // of the pieces
  int32_t value_count;
  choir_trace_value_t* traced;  // [params] what the exchange at hand writes
  choir__mirror_t* mirror;  // NULL: the strategy works where the gradients are
  choir__shards_t* shards;  // NULL: each rank updates everything
  choir__holders_t* holders;  // of them, in an elastic run; NULL: none
  choir__giver_t* givers;     // of the state, each to a newcomer
  double step_began;          // the last one, and how long the one before took
  double step_seconds;
  double asked_at;       // when the first asked to be taken in; 0: nobody has
  choir__clip_t* clip;   // NULL: gradients have no limits
  choir__sums_t* sums;   // over micro-shards; NULL: no step had any
  bool has_sums;         // this one has
  bool has_states;       // of the optimizer
  bool uses_shards;      // those states are shards
  bool has_lost_states;  // on their way from shards to wholes, or back
  // Of layers that compute over all ranks, beside buckets that are on their
  // way; NULL: none do, so far. Then memory: of one rank, and of all.
  choir_comm_t* layers_comm;
  choir_buffer_t* gathered;
  size_t gathered_start;  // bytes, of what came from all
  choir_strategy_t* strategy;
  int64_t variant;   // strategies so far
  uint64_t* hashes;  // of a tensor, [ranks]
  choir_plan_t plan;
  choir_stream_t* compute;
  const choir_step_t* scope_step;  // of the scope whose step it is
  bool is_partial;                 // of the passes of a step not the last
  bool attached;
  choir_comm_t* attached_comm;  // what it is attached with, until it is no more
  choir_span_t span;            // of the wait
  choir_generation_t generation;
  choir__kept_t kept;
  choir__membership_t* membership;  // NULL: not elastic, or not attached yet
  bool has_come;                    // to a run under way, as a newcomer
  atomic_bool is_leaving;           // choir_dist_opt_leave was called
  bool watches_terminate;           // SIGTERM means the same
  choir_loader_t* loader;           // see choir_training_follow; NULL: none
  choir__course_t course;
};

static inline choir_dist_opt_t* choir__dist_opt_of(choir_updater_t* updater) {
  return (choir_dist_opt_t*)updater;
}

// dist_opt_elastic.c
// In attach, of a strategy too; `mine` is what newcomers must have the same of.
// Collective the first time.
choir_status_t choir__elastic_open(choir_dist_opt_t* dist,
                                   const choir__common_t* mine);
void choir__elastic_close(choir_dist_opt_t* dist);
// Before a step: fails where this rank leaves, or where it has to be a change,
// as somebody has come.
choir_status_t choir__elastic_begin_step(choir_dist_opt_t* dist, int64_t step);
void choir__elastic_drop_kept(const choir_dist_opt_t* dist,
                              choir__kept_t* kept);
choir_status_t choir__dist_opt_take_back(choir_updater_t* updater,
                                         choir_status_t status, int64_t* step);

// dist_opt_leave.c
// From now on SIGTERM asks this rank to leave, where nothing handles it.
void choir__leave_watch(choir_dist_opt_t* dist);
void choir__leave_forget(choir_dist_opt_t* dist);
bool choir__leave_is_asked(const choir_dist_opt_t* dist);

// dist_opt_equal.c
// Where the elements of a dense tensor lie in its device's memory.
void* choir__tensor_bytes(choir_tensor_t* tensor, size_t* out_bytes);
// Rank 0's parameters on all ranks, and the optimizer's whole states.
choir_status_t choir__dist_opt_broadcast_params(choir_dist_opt_t* dist);
choir_status_t choir__dist_opt_broadcast_states(choir_dist_opt_t* dist);
// Averages a tensor of floats over ranks where they differ.
choir_status_t choir__dist_opt_average_tensor(choir_dist_opt_t* dist,
                                              const char* name,
                                              choir_tensor_t* tensor);
// All whole states of the optimizer.
choir_status_t choir__dist_opt_average_states(choir_dist_opt_t* dist);

// dist_opt_buckets.c
// Of dist->params. Collective. Drop them also after a failure.
choir_status_t choir__buckets_lay_out(choir_dist_opt_t* dist);
// When nothing uses them any more.
void choir__buckets_drop(choir_dist_opt_t* dist);
// Which parameters are in which, for `size` ranks; returns how many there are.
// Both lists have room for one of each parameter; buckets[] is zeroed.
int32_t choir__buckets_assign(const choir_param_set_t* params,
                              int64_t bucket_bytes, int32_t size,
                              choir__bucket_t* buckets, choir__place_t* places);

// Elements of a parameter of `count`, from *out_start, that are of the rank's
// part of the bucket that it lies in at `offset`.
int64_t choir__bucket_part_of(const choir__bucket_t* bucket, int32_t rank,
                              int64_t offset, int64_t count,
                              int64_t* out_start);

// dist_opt_clip.c
// After the buckets. NULL: the optimizer has no limits.
choir_status_t choir__clip_create(const choir_dist_opt_t* dist,
                                  choir__clip_t** out_clip);
void choir__clip_destroy(choir__clip_t* clip);
// After gradients were combined: limits those in the buckets; is_owned: this
// rank's parts alone, which are all that was combined. Where there is a norm,
// it is a collective.
choir_status_t choir__clip_submit(choir__clip_t* clip, bool is_owned,
                                  choir_stream_t* stream);

// dist_opt_sums.c
// Before backward of each step: places for gradients where it has micro-shards.
choir_status_t choir__sums_prepare(choir_dist_opt_t* dist,
                                   const choir_step_t* step);
// Of such a step whose gradients travel with 16 bits: rounds a node, see
// choir_backward_options_t.
bool choir__sums_are_rounded(const choir_dist_opt_t* dist);
choir_status_t choir__sums_round(choir__sums_t* sums, choir_param_t* param,
                                 choir_tensor_t* node, choir_stream_t* stream);
// Of such a step, in place of the strategy's exchange: the sum over all ranks',
// of their parts of the bucket alone where those are all that is updated.
choir_status_t choir__sums_submit(choir__sums_t* sums, const choir_step_t* step,
                                  int32_t bucket, choir_stream_t* stream);
void choir__sums_destroy(choir__sums_t* sums);
// Whether all ranks' nodes of this step are in memory that others see, who add
// them up there: those records do nothing.
void choir__sums_set_seen(choir__sums_t* sums, bool are_seen);

// dist_opt_states.c
// Attaches the optimizer, with states as the strategy of dist needs them, or
// takes those that there are to where it needs them. Collective.
choir_status_t choir__dist_opt_place_states(choir_dist_opt_t* dist);

// dist_opt_shards.c
// Collective, after the buckets: parameters move, so that those of a bucket are
// one range of memory, and each rank gets memory for the states of its part.
// NULL, and nothing moved: every rank updates everything.
choir_status_t choir__shards_create(const choir_dist_opt_t* dist,
                                    choir__shards_t** out_shards);
// Before the buckets go. Parameters stay where they are. NULL: nothing.
void choir__shards_destroy(choir__shards_t* shards);
// The optimizer's states are shards from its next attach on.
void choir__shards_use(choir__shards_t* shards);
// What a step does with the strategy that dist has now, after that attach. Drop
// it before the next attach.
choir_status_t choir__shards_plan(choir__shards_t* shards);
void choir__shards_drop_plan(choir__shards_t* shards);
// Whether gradients are combined by choir__shards_update; else by
// choir__shards_reduce of each bucket, in place of the strategy's exchange.
bool choir__shards_reduce_late(const choir__shards_t* shards);
choir_status_t choir__shards_reduce(const choir__shards_t* shards,
                                    int32_t index, choir_stream_t* stream);
// After the gradients: updates, and gives ranks what others have updated.
choir_status_t choir__shards_update(choir__shards_t* shards,
                                    const choir_step_values_t* values,
                                    choir_stream_t* stream);
// The states of this rank's part of each bucket, one behind the other.
const void* choir__shards_states(const choir__shards_t* shards);
// See choir_updater_gather; collective where ranks do not see each other's
// memory.
choir_status_t choir__shards_gather(const choir__shards_t* shards,
                                    const choir_named_tensor_t* state,
                                    int32_t root, choir_tensor_t** out_whole);

// dist_opt_holders.c
// `states`: of this rank's part of each bucket, one behind the other; lent.
choir_status_t choir__holders_create(const choir_dist_opt_t* dist,
                                     const void* states,
                                     choir__holders_t** out_holders);
void choir__holders_destroy(choir__holders_t* holders);
// Whether this rank's part as it was after `step` steps has its second holder;
// the same on all ranks between steps.
bool choir__holders_have(const choir__holders_t* holders, int64_t step);
// Whether this rank, which was asked to leave, loses nothing by it that another
// needs who leaves now, too; at the latest after a step for each rank.
bool choir__holders_may_leave(const choir__holders_t* holders);
// Collective: gives it that part as it is now. As a record, of the step that is
// being made, after the update.
choir_status_t choir__holders_give(choir__holders_t* holders, int64_t step);
choir_status_t choir__holders_submit(choir__holders_t* holders, int64_t step,
                                     choir_stream_t* stream);

// How far a rank is, and what it has, for all of the next generation: integers
// of 64 bits alone.
typedef struct choir__progress_s {
  int64_t step;  // -1: it has nothing of the run
  choir__course_t course;
  int64_t is_whole;  // it has all parameters and states
  // Of shards: its own part of so many ranks', and the one that it holds for
  // another, after either number of steps.
  int64_t size;
  struct {
    int64_t rank;
    int64_t steps[2];
  } parts[2];
} choir__progress_t;

void choir__holders_describe(const choir__holders_t* holders,
                             choir__progress_t* progress);

// What becomes whole on all ranks of a generation.
typedef struct choir__whole_s {
  choir_comm_t* comm;
  const choir_param_set_t* params;
  choir_tensor_t** tensors;         // the parameters', then their whole states
  const choir__holders_t* holders;  // this rank's, of before; may be NULL
  const choir__progress_t* progress;  // of each rank of the generation
  int32_t root;                       // one that has made `step` steps
  int64_t step;
} choir__whole_t;
// Collective: from the parts that ranks have. FAILED_PRECONDITION: one has no
// holder any more.
choir_status_t choir__holders_collect(const choir_dist_opt_t* dist,
                                      const choir__whole_t* whole);

// dist_opt_course.c
// Each rank's batch stays, not the global batch: of as many ranks as there are
// now, from step `step` on. Where the global batch stays: nothing to do.
void choir__course_change(choir_dist_opt_t* dist, int64_t step);
// The loader, if any, goes to that step, for the rank that this is now.
choir_status_t choir__course_follow(const choir_dist_opt_t* dist, int64_t step);

// dist_opt_feed.c
// Before a step of an elastic run: begins to give newcomers the state that this
// rank was named for. Whether one that is given it has not asked to be taken in
// yet.
bool choir__feed_begin_step(choir_dist_opt_t* dist, int64_t step);
// A record behind the gradients of the step, before the update.
choir_status_t choir__feed_submit(choir_dist_opt_t* dist, int64_t step,
                                  choir_stream_t* stream);
// The communicator broke, and this rank has made so many steps: newcomers make
// as many.
void choir__feed_end(choir_dist_opt_t* dist, int64_t step);
void choir__feed_close(choir_dist_opt_t* dist);
// On a newcomer, before it is taken in: *step is how many steps its parameters
// and states are those of, or what it was, where it gets them later.
void choir__feed_take(choir_dist_opt_t* dist, int64_t* step);

// dist_opt_layers.c: see model/updater_backend.h.
choir_status_t choir__layers_open_all_gather(choir_updater_t* updater,
                                             size_t most_bytes);
choir_status_t choir__layers_all_gather(choir_updater_t* updater,
                                        const choir_step_values_t* values,
                                        choir_tensor_t* own, int64_t rows,
                                        int64_t total, const char* name,
                                        choir_tensor_t** out_all);

// dist_opt_trace.c
// In a traced run records without operands that follow on the stream write the
// gradients, or the parameters, of this bucket (-1: of all); or nothing.
void choir__dist_opt_trace_grads(const choir_dist_opt_t* dist, int32_t bucket,
                                 choir_stream_t* stream);
void choir__dist_opt_trace_values(const choir_dist_opt_t* dist, int32_t bucket,
                                  choir_stream_t* stream);
void choir__dist_opt_trace_nothing(choir_stream_t* stream);

// dist_opt_step.c
void choir__dist_opt_backward_and_update(choir_updater_t* updater,
                                         choir_scope_t* scope,
                                         choir_var_t* loss);
choir_status_t choir__dist_opt_replay_failed(choir_updater_t* updater,
                                             choir_status_t status);
// Breaks the communicator with `status` as the reason, unless all ranks have
// the failure.
void choir__dist_opt_step_failed(choir_updater_t* updater,
                                 choir_status_t status);
// Waits for all work of the last step, and tells what went wrong in it.
choir_status_t choir__dist_opt_end_work(choir_dist_opt_t* dist);
// FAILED_PRECONDITION without a model, or a strategy: `what` was asked for.
choir_status_t choir__dist_opt_need_model(const choir_dist_opt_t* dist_opt,
                                          const char* what);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_DIST_OPT_PARTS_INTERNAL_H_
