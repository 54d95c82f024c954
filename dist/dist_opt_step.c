// SPDX-License-Identifier: Apache-2.0
// Outline of a step: backward reports each gradient (on_grad); the exchange of
// the bucket of the last one missing is submitted to the background stream
// behind an event, in bucket order on every rank; after backward the buckets
// that are left follow, the compute stream waits for the background stream and
// runs the last bucket itself, then the optimizer. A strategy that combines
// parameters has no exchange; it runs after the optimizer.
#include "core/status_backend.h"
#include "core/trace_backend.h"
#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"

// Whether an exchange in the middle of backward would keep this rank from an
// all_gather that a rank without samples waits in, which cannot know how many
// buckets come before it. On a GPU it would, NCCL or not: what is submitted the
// host agrees on with all ranks before it goes on. And in a traced run, which
// waits for each record.
static bool layers_need_order(const choir_dist_opt_t* dist) {
  return dist->layers_comm && (!choir_device_is_host(dist->device) ||
                               choir__trace_sees_records(dist->device));
}

// Exchange and update are one, after backward.
static bool reduces_late(const choir_dist_opt_t* dist) {
  return dist->uses_shards && choir__shards_reduce_late(dist->shards);
}

// On the compute stream, after the bucket's gradients.
static choir_status_t submit_pass(choir_dist_opt_t* dist, int32_t bucket) {
  choir__passes_t* kept = dist->buckets[bucket].passes;
  if (!kept) return NULL;
  CHOIR_TRY(
      choir__mirror_submit_bucket(dist->mirror, bucket, dist->compute, false));
  choir__dist_opt_trace_grads(dist, bucket, dist->compute);
  choir_status_t status =
      choir__passes_submit(kept, dist->is_partial,
                           dist->strategy->values.sample_count, dist->compute);
  choir__dist_opt_trace_nothing(dist->compute);
  CHOIR_TRY(status);
  // Else an exchange does it.
  const bool is_end = !dist->is_partial && !dist->strategy->def->exchange;
  return is_end ? choir__mirror_submit_bucket(dist->mirror, bucket,
                                              dist->compute, true)
                : NULL;
}

static choir_status_t submit_passes(choir_dist_opt_t* dist) {
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    CHOIR_TRY(submit_pass(dist, b));
  return NULL;
}

choir_status_t choir__dist_opt_need_model(const choir_dist_opt_t* dist_opt,
                                          const char* what) {
  CHOIR_TRY(choir__updater_need_model(&dist_opt->updater, "dist_opt", what));
  if (dist_opt->attached) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "dist_opt: %s after a change of strategy that failed; "
                     "choir_model_set_updater begins anew",
                     what);
}

// A failure of an operation of the background stream. Where the communicator
// broke, its own sentence stands for it.
static choir_status_t exchange_failure(choir_dist_opt_t* dist,
                                       choir_status_t status) {
  const choir_status_code_t code = choir_status_code(status);
  if (code != CHOIR_STATUS_ABORTED && code != CHOIR_STATUS_TIMEOUT)
    return status;
  choir_status_t fault = choir_comm_poll_error(dist->comm);
  if (!fault) return status;
  choir_status_free(status);
  return fault;
}

static choir_status_t exchange_bucket(choir_dist_opt_t* dist, int32_t bucket,
                                      choir_stream_t* stream) {
  choir_strategy_t* strategy = dist->strategy;
  if (!dist->buckets[bucket].passes)
    CHOIR_TRY(choir__mirror_submit_bucket(dist->mirror, bucket, stream, false));
  CHOIR_TRY(exchange_failure(
      dist,
      dist->has_sums
          ? choir__sums_submit(dist->sums, dist->scope_step, bucket, stream)
      : dist->uses_shards ? choir__shards_reduce(dist->shards, bucket, stream)
                          : strategy->def->exchange(strategy, bucket, stream)));
  return choir__mirror_submit_bucket(dist->mirror, bucket, stream, true);
}

static choir_status_t submit_bucket(choir_dist_opt_t* dist, int32_t bucket,
                                    choir_stream_t* stream) {
  choir__dist_opt_trace_grads(dist, bucket, stream);
  choir_status_t status = exchange_bucket(dist, bucket, stream);
  choir__dist_opt_trace_nothing(stream);
  return status;
}

// Any but the last.
static choir_status_t start_next_bucket(choir_dist_opt_t* dist) {
  const int32_t bucket = dist->next_bucket++;
  CHOIR_TRY(submit_pass(dist, bucket));
  choir_event_t* ready = dist->buckets[bucket].ready;
  CHOIR_TRY(choir_event_record(ready, dist->compute));
  CHOIR_TRY(choir_stream_wait_event(dist->background, ready));
  return submit_bucket(dist, bucket, dist->background);
}

static choir_status_t on_grad(void* self, choir_param_t* param) {
  choir_dist_opt_t* dist = self;
  for (size_t i = 0; i < dist->params->count; ++i) {
    if (dist->params->params[i] != param) continue;
    if (dist->places[i].bucket < 0)
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "dist_opt: parameter %s was frozen when the model got "
                         "its updater; call choir_model_set_updater again",
                         param->name);
    --dist->buckets[dist->places[i].bucket].missing;
    break;
  }
  // In bucket order, also when a later bucket is complete first: all ranks
  // must start the same operations in the same order.
  while (dist->strategy->overlaps && !layers_need_order(dist) &&
         dist->next_bucket < dist->bucket_count - 1 &&
         dist->buckets[dist->next_bucket].missing == 0)
    CHOIR_TRY(start_next_bucket(dist));
  return NULL;
}

static choir_status_t round_node(void* self, choir_param_t* param,
                                 choir_tensor_t* node) {
  choir_dist_opt_t* dist = self;
  return choir__sums_round(dist->sums, param, node, dist->compute);
}

// Those whose gradients backward did not report, because they are frozen.
static choir_status_t start_rest(choir_dist_opt_t* dist) {
  while (dist->next_bucket < dist->bucket_count - 1)
    CHOIR_TRY(start_next_bucket(dist));
  return NULL;
}

static choir_status_t begin_wait(void* self) {
  ((choir_dist_opt_t*)self)->span = choir_span_begin(CHOIR_SPAN_WAIT);
  return NULL;
}

static choir_status_t end_wait(void* self) {
  choir_dist_opt_t* dist = self;
  choir_span_end(&dist->span, "wait", "exchange of gradients", NULL);
  dist->span.start = -1;
  if (!choir_event_is_reached(dist->exchanged)) return NULL;
  return exchange_failure(dist, choir_stream_synchronize(dist->background));
}

// The compute stream waits, the caller only where that is its own thread. What
// went wrong is told now when the exchange is over, else by the next step or
// consolidate.
static choir_status_t wait_background(choir_dist_opt_t* dist) {
  CHOIR_TRY(choir_event_record(dist->exchanged, dist->background));
  CHOIR_TRY(choir_stream_call(dist->compute, begin_wait, dist));
  choir_status_t status =
      choir_stream_wait_event(dist->compute, dist->exchanged);
  return choir_status_join(status,
                           choir_stream_call(dist->compute, end_wait, dist));
}

// Nothing is left that the last bucket could run beside: on the compute stream
// no thread has to be woken for it, and its wait for peers may be a busy one.
static choir_status_t finish_exchange(choir_dist_opt_t* dist) {
  if (dist->bucket_count > 1) CHOIR_TRY(wait_background(dist));
  if (dist->bucket_count == 0) return NULL;
  CHOIR_TRY(submit_pass(dist, dist->bucket_count - 1));
  return submit_bucket(dist, dist->bucket_count - 1, dist->compute);
}

static choir_status_t combine(choir_strategy_t* strategy, int32_t bucket,
                              const choir_step_values_t* values,
                              choir_stream_t* stream) {
  (void)bucket;  // all of them
  (void)stream;
  return strategy->def->combine(strategy, values);
}

static choir_status_t submit_combine(choir_dist_opt_t* dist) {
  choir_strategy_t* strategy = dist->strategy;
  choir__mirror_t* mirror = dist->mirror;
  for (int32_t b = 0; strategy->def->reads_grads && b < dist->bucket_count; ++b)
    CHOIR_TRY(choir__mirror_submit_bucket(mirror, b, dist->compute, false));
  CHOIR_TRY(choir__mirror_submit_values(mirror, dist->compute, false));
  choir__dist_opt_trace_values(dist, -1, dist->compute);
  choir_status_t status = exchange_failure(
      dist, choir__strategy_submit(strategy, CHOIR_STRATEGY_COMBINE, combine,
                                   dist->bucket_count, dist->compute));
  choir__dist_opt_trace_nothing(dist->compute);
  CHOIR_TRY(status);
  return choir__mirror_submit_values(mirror, dist->compute, true);
}

// Gradients, combined or not, become a step; then parameters are combined where
// gradients were not.
static choir_status_t update(choir_dist_opt_t* dist) {
  choir_strategy_t* strategy = dist->strategy;
  CHOIR_TRY(strategy->def->exchange && !reduces_late(dist)
                ? finish_exchange(dist)
                : submit_passes(dist));
  if (dist->uses_shards)
    return exchange_failure(
        dist,
        choir__shards_update(dist->shards, &strategy->values, dist->compute));
  if (strategy->def->combine) {
    CHOIR_TRY(choir_optimizer_update(dist->optimizer, dist->compute,
                                     strategy->values.step));
    return submit_combine(dist);
  }
  if (dist->clip)
    CHOIR_TRY(exchange_failure(
        dist, choir__clip_submit(dist->clip, false, dist->compute)));
  if (dist->membership)
    CHOIR_TRY(choir__feed_submit(dist, strategy->values.step, dist->compute));
  return choir__optimizer_update_clipped(dist->optimizer, dist->compute,
                                         strategy->values.step);
}

void choir__dist_opt_backward_and_update(choir_updater_t* updater,
                                         choir_scope_t* scope,
                                         choir_var_t* loss) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  if (!choir_scope_is_ok(scope)) return;
  if (!dist->attached) {
    choir_scope_fail(scope, choir__dist_opt_need_model(dist, "a step"));
    return;
  }
  const choir_step_t* step = choir_scope_step(scope);
  choir_scope_fail(scope, choir__sums_prepare(dist, step));
  if (!choir_scope_is_ok(scope)) return;
  dist->scope_step = step;
  const bool exchanges =
      dist->strategy->def->exchange && !step->is_partial && !reduces_late(dist);
  dist->is_partial = step->is_partial;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    dist->buckets[b].missing = dist->buckets[b].param_count;
  dist->next_bucket = exchanges ? 0 : dist->bucket_count;
  dist->strategy->values =
      (choir_step_values_t){.step = step->step,
                            .first_sample = step->first_sample,
                            .sample_count = step->sample_count,
                            .batch_number = step->batch_number};
  choir_optimizer_begin_step(dist->optimizer, step->step);
  dist->compute = choir_scope_stream(scope);
  const choir_backward_options_t backward = {
      .params = dist->params->params,
      .param_count = dist->params->count,
      .on_grad = on_grad,
      .self = dist,
      .round_node = choir__sums_are_rounded(dist) ? round_node : NULL};
  choir_scope_backward(scope, loss, &backward);
  if (choir_scope_is_ok(scope)) choir_scope_fail(scope, start_rest(dist));
  if (!choir_scope_is_ok(scope)) return;
  choir_scope_fail(scope,
                   step->is_partial ? submit_passes(dist) : update(dist));
}

static choir_status_t end_work(choir_dist_opt_t* dist) {
  CHOIR_TRY(exchange_failure(
      dist, choir_stream_synchronize(choir_device_stream(dist->device))));
  CHOIR_TRY(exchange_failure(dist, choir_stream_synchronize(dist->background)));
  // A GPU whose exchange was broken off ends its work like any other.
  return choir_device_is_host(dist->device) ? NULL
                                            : choir_comm_poll_error(dist->comm);
}

// What fails here is a step: of a device whose streams are threads.
choir_status_t choir__dist_opt_end_work(choir_dist_opt_t* dist) {
  choir_status_t status = end_work(dist);
  if (status) choir__dist_opt_step_failed(&dist->updater, status);
  return status;
}

choir_status_t choir__dist_opt_replay_failed(choir_updater_t* updater,
                                             choir_status_t status) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  choir_span_end(&dist->span, "wait", "exchange of gradients", NULL);
  dist->span.start = -1;
  return exchange_failure(dist, status);
}

// Peers may be in an exchange that this rank does not come to any more, or go
// on with parameters that it has not.
void choir__dist_opt_step_failed(choir_updater_t* updater,
                                 choir_status_t status) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  if (choir__status_is_shared(status, dist->comm) ||
      choir_comm_size(dist->comm) == 1)
    return;
  // A communicator that is broken stays so.
  choir_comm_abort(dist->comm, choir_status_message(status));
  if (dist->layers_comm)
    choir_comm_abort(dist->layers_comm, choir_status_message(status));
  if (dist->background)
    choir_status_free(choir_stream_synchronize(dist->background));
}
