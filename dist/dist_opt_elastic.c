// SPDX-License-Identifier: Apache-2.0
// A rank was lost: those that are left go on with the same parameters and
// states, as a generation of their own.
//
// A rank updates its parameters when all gradients of the step are combined
// here, by itself. So each has what is after the step at hand or before it,
// whole; who is behind gets it from one that is not. Of shards it comes from
// their holders (dist_opt_holders.c).
#include <signal.h>
#include <string.h>

#include "core/clock.h"
#include "dist/comm_shared_def.h"
#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"
#include "tensor/op_def.h"
#include "tensor/ops.h"

// Newcomers that come at the same time are taken in together.
static const double together_seconds = 1;

// What goes from one generation to the next.
typedef struct handed_s {
  choir_device_t* device;
  choir_param_set_t* params;
  choir_tensor_t** tensors;  // [count] the parameters', then the states
  size_t count;
  size_t bytes;   // of this memory
  bool is_whole;  // states are there; else they are shards, and these memory
  choir__holders_t* holders;
  int32_t lost;        // ranks, since the generation that handed it on
  choir__kept_t kept;  // of the strategy
} handed_t;

// ---- Whether it can be ----

static choir_status_t refuse(const char* what) {
  return CHOIR_ERROR(UNIMPLEMENTED, "dist_opt: elastic %s", what);
}

static choir_status_t check(const choir_dist_opt_t* dist) {
  const choir_strategy_def_t* def = dist->strategy->def;
  if (strcmp(choir_device_name(dist->device), "cpu") != 0)
    return refuse("needs the device cpu");
  if (dist->config.backward_passes_per_step > 1)
    return refuse("needs one pass per step");
  const bool keeps_more = def->states && !def->has_own_states;
  if (!def->combine && !keeps_more && !def->measure) return NULL;
  return CHOIR_ERROR(UNIMPLEMENTED,
                     "dist_opt: elastic with %s, which keeps more from step to "
                     "step than what was not sent; use fp32, fp16, bf16, "
                     "sparseTopK, sparseThreshold or dgc",
                     choir_strategy_def_option(def));
}

// ---- Its life ----

choir_status_t choir__elastic_open(choir_dist_opt_t* dist,
                                   const choir__common_t* mine) {
  if (!dist->config.elastic) return NULL;
  choir__elastic_drop_kept(dist, &dist->kept);
  CHOIR_TRY(check(dist));
  if (dist->membership) return NULL;
  CHOIR_TRY(choir__membership_create(dist->comm, choir__agree_hash(mine),
                                     &dist->membership));
  dist->course.first_size = choir_comm_size(dist->comm);
  if (!dist->updater.is_newcomer) choir__leave_watch(dist);
  return NULL;
}

void choir__elastic_close(choir_dist_opt_t* dist) {
  choir__elastic_drop_kept(dist, &dist->kept);
  choir__feed_close(dist);
  choir__leave_forget(dist);
  choir__membership_destroy(dist->membership);
}

// ---- Breaking off ----

static bool is_broken(choir_comm_t* comm) {
  choir_status_t fault = comm ? choir_comm_poll_error(comm) : NULL;
  const bool has_fault = fault != NULL;
  choir_status_free(fault);
  return has_fault;
}

static void break_off(choir_dist_opt_t* dist, const char* why) {
  choir_comm_abort(dist->comm, why);
  if (dist->layers_comm) choir_comm_abort(dist->layers_comm, why);
  if (dist->background)
    choir_status_free(choir_stream_synchronize(dist->background));
}

static choir_status_t leave(choir_dist_opt_t* dist) {
  const bool by_itself = atomic_load(&dist->is_leaving);
  if (!dist->generation.has_left) {
    choir__membership_leave(dist->membership, by_itself ? 0 : SIGTERM);
    break_off(dist, "it leaves the run");
    choir__membership_see_off(dist->membership, dist->comm);
    dist->generation.has_left = true;
  }
  return CHOIR_ERROR(ABORTED, "rank %d has left the run: %s",
                     choir_comm_rank(dist->comm),
                     by_itself ? "choir_dist_opt_leave" : "SIGTERM");
}

// ---- What the strategy keeps ----

void choir__elastic_drop_kept(const choir_dist_opt_t* dist,
                              choir__kept_t* kept) {
  for (size_t i = 0; i < 2 * kept->count; ++i)
    choir_tensor_release(kept->before[i]);
  choir_deallocate(dist->allocator, kept->before, kept->bytes);
  *kept = (choir__kept_t){0};
}

// From now on the tensors of the strategy that there is.
static choir_status_t list_kept(choir_dist_opt_t* dist, size_t count) {
  choir__kept_t* kept = &dist->kept;
  const size_t bytes =
      count * (2 * sizeof(choir_tensor_t*) + sizeof(choir_named_tensor_t));
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(dist->allocator, bytes, "states of a strategy", &memory));
  memset(memory, 0, bytes);
  *kept = (choir__kept_t){
      .count = count, .bytes = bytes, .before = memory, .step = -1};
  kept->now = kept->before + count;
  choir_named_tensor_t* named =
      (choir_named_tensor_t*)(void*)(kept->now + count);
  choir__strategy_states(dist->strategy, named);
  for (size_t i = 0; i < count; ++i) {
    kept->now[i] = named[i].tensor;
    choir_tensor_retain(kept->now[i]);
  }
  return NULL;
}

static choir_status_t copy_states(const choir_dist_opt_t* dist, size_t count,
                                  choir_tensor_t** from, choir_tensor_t** to) {
  choir_stream_t* stream = choir_device_stream(dist->device);
  for (size_t i = 0; i < count; ++i)
    CHOIR_TRY(
        choir_op_run(stream, CHOIR_OP_COPY, &from[i], 1, NULL, false, &to[i]));
  return NULL;
}

// What it has before step `step`, which may be taken back.
static choir_status_t keep_states(choir_dist_opt_t* dist, int64_t step) {
  const size_t count = choir__strategy_states(dist->strategy, NULL);
  if (count == 0) return NULL;
  if (dist->kept.count == 0) CHOIR_TRY(list_kept(dist, count));
  dist->kept.step = step;
  return copy_states(dist, count, dist->kept.now, dist->kept.before);
}

// What this rank has not sent yet, after `step` steps. One who was behind has
// sent all of the step that the others have made.
static choir_status_t hand_on_kept(choir_dist_opt_t* dist,
                                   const choir__kept_t* kept, int64_t step) {
  const size_t count = kept->count;
  if (count == 0) return NULL;
  if (choir__strategy_states(dist->strategy, NULL) != count)
    return CHOIR_ERROR(INTERNAL,
                       "dist_opt: the strategy has %zu states, not "
                       "%zu",
                       choir__strategy_states(dist->strategy, NULL), count);
  CHOIR_TRY(list_kept(dist, count));
  return copy_states(dist, count, step == kept->step ? kept->before : kept->now,
                     dist->kept.now);
}

// Whether those that have asked are taken in now. They wait for a moment for
// others that are about to ask, so that it is one change.
static bool takes_in(choir_dist_opt_t* dist, int64_t step) {
  const bool more_come = choir__feed_begin_step(dist, step);
  if (choir_comm_rank(dist->comm) != 0 ||
      choir__membership_newcomers(dist->membership) == 0) {
    dist->asked_at = 0;
    return false;
  }
  if (dist->asked_at == 0) dist->asked_at = choir_clock_seconds();
  return !more_come ||
         choir_clock_seconds() - dist->asked_at > together_seconds;
}

// One rank breaks the communicator for all; the step is taken back like one in
// which somebody was lost.
choir_status_t choir__elastic_begin_step(choir_dist_opt_t* dist, int64_t step) {
  if (choir__leave_is_asked(dist) &&
      (!dist->holders || choir__holders_may_leave(dist->holders)))
    return dist->membership
               ? leave(dist)
               : CHOIR_ERROR(FAILED_PRECONDITION,
                             "dist_opt: leave needs elastic; the others would "
                             "not go on");
  if (!dist->membership) return NULL;
  if (takes_in(dist, step)) {
    choir_comm_abort(dist->comm, "a worker has come, and is taken in");
    return choir_comm_poll_error(dist->comm);
  }
  // Else the last step has.
  if (dist->holders &&
      (dist->updater.was_set || !choir__holders_have(dist->holders, step)))
    CHOIR_TRY(choir__holders_give(dist->holders, step));
  dist->updater.was_set = false;
  return keep_states(dist, step);
}

// ---- What is handed on ----

static void drop_handed(const choir_dist_opt_t* dist, handed_t* handed) {
  choir__elastic_drop_kept(dist, &handed->kept);
  choir__holders_destroy(handed->holders);
  for (size_t i = 0; i < handed->count; ++i)
    choir_tensor_release(handed->tensors[i]);
  choir_deallocate(dist->allocator, handed->tensors, handed->bytes);
  choir_param_set_release(handed->params);
  choir_device_release(handed->device);
}

static choir_status_t list_handed(const choir_dist_opt_t* dist,
                                  handed_t* handed) {
  const size_t params = dist->params->count;
  choir_named_tensor_t* named =
      (choir_named_tensor_t*)(void*)(handed->tensors + handed->count);
  choir_optimizer_states(dist->optimizer, named);
  for (size_t i = 0; i < params; ++i) {
    handed->tensors[i] = dist->params->params[i]->value;
    choir_tensor_retain(handed->tensors[i]);
  }
  for (size_t i = params; i < handed->count; ++i)
    CHOIR_TRY(
        choir_named_tensor_make_whole(&named[i - params], &handed->tensors[i]));
  return NULL;
}

static choir_status_t take_handed(choir_dist_opt_t* dist, handed_t* handed) {
  const size_t count =
      dist->params->count + choir_optimizer_states(dist->optimizer, NULL);
  const size_t bytes =
      count * (sizeof(choir_tensor_t*) + sizeof(choir_named_tensor_t));
  *handed = (handed_t){.count = count, .bytes = bytes};
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, bytes, "states of a generation",
                           &memory));
  memset(memory, 0, bytes);
  handed->tensors = memory;
  handed->params = dist->params;
  choir_param_set_retain(handed->params);
  handed->device = dist->device;
  choir_device_retain(handed->device);
  handed->is_whole = !dist->uses_shards;
  handed->kept = dist->kept;
  dist->kept = (choir__kept_t){0};
  handed->holders = dist->holders;
  dist->holders = NULL;
  choir_status_t status = list_handed(dist, handed);
  if (status) drop_handed(dist, handed);
  return status;
}

// Who has made the most steps, the lowest rank; of several a whole one.
static int32_t find_latest(const choir__progress_t* progress, int32_t size) {
  int32_t latest = 0;
  for (int32_t r = 1; r < size; ++r)
    if (progress[r].step > progress[latest].step ||
        (progress[r].step == progress[latest].step &&
         progress[r].is_whole > progress[latest].is_whole))
      latest = r;
  return latest;
}

static size_t bytes_of(const handed_t* handed) {
  size_t all = 0;
  for (size_t i = 0; i < handed->count; ++i) {
    size_t bytes;
    choir__tensor_bytes(handed->tensors[i], &bytes);
    all += bytes;
  }
  return all;
}

// From rank `root`, which may be lost before all of it came: it replaces what
// this rank has when it is whole.
static choir_status_t receive_into(choir_comm_t* comm, const handed_t* handed,
                                   int32_t root, bool is_behind,
                                   unsigned char* staged) {
  const char* name = "states of a generation";
  unsigned char* at = staged;
  for (size_t i = 0; i < handed->count; ++i) {
    size_t bytes;
    void* own = choir__tensor_bytes(handed->tensors[i], &bytes);
    const bool gives = choir_comm_rank(comm) == root;
    if (gives) memcpy(at, own, bytes);
    CHOIR_TRY(choir_comm_broadcast(comm, at, (int64_t)bytes, CHOIR_DTYPE_U8,
                                   root, name));
    at += bytes;
  }
  for (size_t i = 0; is_behind && i < handed->count; ++i) {
    size_t bytes;
    void* own = choir__tensor_bytes(handed->tensors[i], &bytes);
    memcpy(own, staged, bytes);
    staged += bytes;
  }
  return NULL;
}

static choir_status_t receive_all(const choir_dist_opt_t* dist,
                                  const handed_t* handed, int32_t root,
                                  bool is_behind) {
  const size_t bytes = bytes_of(handed);
  void* staged = NULL;
  choir_status_t status =
      choir_allocate(dist->allocator, bytes, "states of a generation", &staged);
  status = choir__agree_on_outcome(dist->comm, "states", status);
  if (!status)
    status = receive_into(dist->comm, handed, root, is_behind, staged);
  choir_deallocate(dist->allocator, staged, bytes);
  return status;
}

// Between ranks of which `all` says how far they are.
static choir_status_t make_whole(const choir_dist_opt_t* dist,
                                 const handed_t* handed,
                                 const choir__progress_t* all) {
  const int32_t size = choir_comm_size(dist->comm);
  const int32_t root = find_latest(all, size);
  const choir__progress_t* own = &all[choir_comm_rank(dist->comm)];
  const choir__progress_t* latest = &all[root];
  if (latest->step < 0)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "dist_opt: elastic: nobody is left who has the run's "
                       "parameters; the workers here have only just come");
  if (!latest->is_whole) {
    const choir__whole_t whole = {.comm = dist->comm,
                                  .params = handed->params,
                                  .tensors = handed->tensors,
                                  .holders = handed->holders,
                                  .progress = all,
                                  .root = root,
                                  .step = latest->step};
    return choir__holders_collect(dist, &whole);
  }
  for (int32_t r = 0; r < size; ++r)
    if (all[r].step != latest->step || !all[r].is_whole)
      return receive_all(dist, handed, root,
                         own->step < latest->step || !own->is_whole);
  return NULL;
}

// Of rank `root`.
static choir_status_t take_rates(const choir_dist_opt_t* dist, int32_t root) {
  const size_t count = choir__optimizer_rates(dist->optimizer, NULL);
  void* rates = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(double),
                           "learning rates", &rates));
  choir__optimizer_rates(dist->optimizer, rates);
  choir_status_t status =
      choir_comm_broadcast(dist->comm, rates, (int64_t)count, CHOIR_DTYPE_F64,
                           root, "learning rates");
  if (!status) choir__optimizer_set_rates(dist->optimizer, rates);
  choir_deallocate(dist->allocator, rates, count * sizeof(double));
  return status;
}

// On return all ranks have the same, and made *step steps.
static choir_status_t make_equal(choir_dist_opt_t* dist, handed_t* handed,
                                 int64_t* step) {
  const int32_t size = choir_comm_size(dist->comm);
  choir__progress_t own = {
      .step = *step, .course = dist->course, .is_whole = handed->is_whole};
  choir__holders_describe(handed->holders, &own);
  const size_t bytes = (size_t)size * sizeof(own);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(dist->allocator, bytes, "progress of ranks", &memory));
  const choir__progress_t* all = memory;
  choir_status_t status = choir_comm_all_gather(
      dist->comm, &own, memory, sizeof(own) / sizeof(int64_t), CHOIR_DTYPE_I64,
      "progress of ranks");
  const int32_t root = find_latest(all, size);
  if (!status) status = make_whole(dist, handed, all);
  if (!status) status = take_rates(dist, root);
  if (!status) {
    const choir__progress_t* latest = &all[root];
    handed->is_whole = true;
    *step = latest->step;
    dist->course = latest->course;
    choir__course_change(dist, *step);
  }
  choir_deallocate(dist->allocator, memory, bytes);
  return status;
}

// ---- The next generation ----

static choir_status_t take_comm(choir_dist_opt_t* dist, choir_comm_t* comm) {
  const size_t bytes = sizeof(uint64_t) * (size_t)choir_comm_size(comm);
  void* hashes = NULL;
  choir_status_t status =
      choir_allocate(dist->allocator, bytes, "hashes of ranks", &hashes);
  if (status) {
    choir_comm_release(comm);
    return status;
  }
  choir_deallocate(dist->allocator, dist->hashes,
                   sizeof(uint64_t) * (size_t)choir_comm_size(dist->comm));
  dist->hashes = hashes;
  choir_comm_release(dist->comm);
  dist->comm = comm;
  return NULL;
}

static void detach(choir_dist_opt_t* dist) {
  dist->updater.vtable->detach(&dist->updater);
  choir_comm_release(dist->layers_comm);
  dist->layers_comm = NULL;
}

static choir_status_t attach_with(choir_dist_opt_t* dist,
                                  const handed_t* handed, int64_t step) {
  CHOIR_TRY(dist->updater.vtable->attach(&dist->updater, handed->device,
                                         handed->params));
  const size_t params = handed->params->count;
  const size_t count = handed->count - params;
  choir_named_tensor_t* states =
      (choir_named_tensor_t*)(void*)(handed->tensors + handed->count);
  choir_optimizer_states(dist->optimizer, states);
  choir_stream_t* stream = choir_device_stream(dist->device);
  for (size_t i = 0; i < count; ++i) {
    choir_tensor_t** whole = &handed->tensors[params + i];
    if (states[i].shard) {
      CHOIR_TRY(choir_named_tensor_take(&states[i], *whole));
      continue;
    }
    choir_tensor_t* tensor = states[i].tensor;
    CHOIR_TRY(
        choir_op_run(stream, CHOIR_OP_COPY, whole, 1, NULL, false, &tensor));
    // A generation that is lost before it has begun hands on these.
    choir_tensor_retain(tensor);
    choir_tensor_release(*whole);
    *whole = tensor;
  }
  CHOIR_TRY(hand_on_kept(dist, &handed->kept, step));
  return dist->holders ? choir__holders_give(dist->holders, step) : NULL;
}

// What it has is of the past; others give it what there is now.
static void come(choir_dist_opt_t* dist, handed_t* handed, int64_t* step) {
  *step = -1;
  choir__elastic_drop_kept(dist, &handed->kept);
  choir__holders_destroy(handed->holders);
  handed->holders = NULL;
  // Not after a generation that was lost while it was attached.
  if (dist->attached) choir__feed_take(dist, step);
}

// *out_is_new: what fails is in the new generation.
static choir_status_t enter(choir_dist_opt_t* dist, handed_t* handed,
                            int64_t* step, bool* out_is_new,
                            bool* out_is_left_out) {
  choir_comm_t* comm = NULL;
  choir__change_t change;
  *out_is_new = false;
  CHOIR_TRY(
      choir__membership_change(dist->membership, dist->comm, &comm, &change));
  handed->lost = change.has_come ? 0 : handed->lost + change.lost;
  *out_is_left_out = !comm;
  if (!comm) return NULL;
  CHOIR_TRY(take_comm(dist, comm));
  *out_is_new = true;
  dist->generation.comm = comm;
  dist->generation.number = change.generation;
  CHOIR_TRY(make_equal(dist, handed, step));
  detach(dist);
  CHOIR_TRY(choir__agree_on_outcome(dist->comm, "attach",
                                    attach_with(dist, handed, *step)));
  choir__comm_watch_hosts(comm, 0);
  dist->generation.step = *step;
  dist->generation.seconds = change.seconds;
  dist->generation.has_come = change.has_come;
  dist->generation.lost = handed->lost;
  memcpy(dist->generation.text, change.text, sizeof(change.text));
  if (dist->kept.count > 0 && handed->lost > 0)
    strncat(dist->generation.text, " without what others had not sent",
            sizeof(change.text) - strlen(change.text) - 1);
  return choir__course_follow(dist, *step);
}

choir_status_t choir__dist_opt_take_back(choir_updater_t* updater,
                                         choir_status_t status, int64_t* step) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  if (!dist->membership || dist->generation.has_left) return status;
  if (!dist->updater.is_newcomer && !is_broken(dist->comm) &&
      !is_broken(dist->layers_comm))
    return status;
  handed_t handed;
  choir_status_t missing = take_handed(dist, &handed);
  if (missing) return choir_status_join(status, missing);
  bool is_new = true;
  choir__feed_end(dist, *step);
  bool is_left_out = false;
  do {
    choir_status_free(status);
    // What it holds for one that is lost is needed; it leaves before a step.
    if (choir__leave_is_asked(dist) && !handed.holders) {
      status = leave(dist);
      break;
    }
    break_off(dist, "the step is taken back");
    if (choir__membership_is_newcomer(dist->membership))
      come(dist, &handed, step);
    status = enter(dist, &handed, step, &is_new, &is_left_out);
  } while (is_left_out || (status && is_new && is_broken(dist->comm)));
  drop_handed(dist, &handed);
  if (status || !dist->updater.is_newcomer) return status;
  dist->has_come = true;
  dist->updater.is_newcomer = false;
  choir__leave_watch(dist);
  return NULL;
}
