// SPDX-License-Identifier: Apache-2.0
#include "dist/dist_opt.h"

#include <stdio.h>
#include <string.h>

#include "core/profile.h"
#include "core/random.h"
#include "dist/dist_opt_internal.h"
#include "dist/strategies/strategy_internal.h"
#include "model/updater_backend.h"
#include "tensor/ops.h"

// Outline of a step: backward reports each gradient (on_grad); the exchange of
// the bucket of the last one missing is submitted to the background stream
// behind an event, in bucket order on every rank; after backward the buckets
// that are left follow, the compute stream waits for the background stream and
// runs the last bucket itself, then the optimizer. A strategy that combines
// parameters has no exchange; it runs after the optimizer.

typedef struct bucket_s {
  choir_buffer_t* buffer;
  choir_dtype_t dtype;
  int64_t count;  // elements
  int32_t param_count;
  int32_t missing;          // gradients not yet written in this step
  choir_event_t* ready;     // all gradients written
  choir__passes_t* passes;  // NULL: a step has one
  char name[32];
} bucket_t;

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
  choir_param_list_t params;
  int32_t* bucket_of;  // for each parameter of the list; -1: none
  bucket_t* buckets;
  int32_t bucket_count;
  int32_t next_bucket;  // the first that was not started in this step
  // The buckets and where their parameters lie, for the strategy.
  choir_strategy_bucket_t* strategy_buckets;
  choir_strategy_piece_t* pieces;
  choir_tensor_t** values;  // of the pieces
  int32_t value_count;
  choir__mirror_t* mirror;  // NULL: the strategy works where the gradients are
  choir_strategy_t* strategy;
  int64_t variant;   // strategies so far
  uint64_t* hashes;  // of a tensor, [ranks]
  choir_plan_t plan;
  choir_stream_t* compute;
  bool is_partial;  // of the passes of a step not the last
  bool attached;
  choir_span_t span;  // of the wait
  bool in_exchange;   // from the first bucket of a step to the end of the wait
};

static const choir_field_t fields[] = {
    CHOIR_CONFIG_TABLE(choir_dist_opt_config_t, CHOIR_DIST_OPT_FIELDS)};
const choir_struct_def_t choir_dist_opt_config_def = CHOIR_STRUCT_DEF(
    "dist_opt", choir_dist_opt_config_t, fields, "gradient exchange");

static choir_dist_opt_t* of_updater(choir_updater_t* updater) {
  return (choir_dist_opt_t*)updater;
}

// ---- Attach: agree, broadcast, lay out buckets ----

static choir__agreement_t agreement(const choir_dist_opt_t* dist,
                                    const choir_strategy_t* strategy) {
  return (choir__agreement_t){.comm = dist->comm,
                              .allocator = dist->allocator,
                              .params = dist->params,
                              .optimizer = dist->optimizer,
                              .config = &dist->config,
                              .strategy = strategy};
}

// Where the elements of a dense tensor lie in its device's memory.
static void* tensor_bytes(choir_tensor_t* tensor, size_t* out_bytes) {
  const choir_view_t* view = choir_tensor_view(tensor);
  const size_t element = choir_dtype_bytes(view->dtype);
  *out_bytes = (size_t)choir_view_count(view) * element;
  return (char*)choir_buffer_data(view->buffer) +
         (size_t)view->offset * element;
}

// The bytes of a dense tensor for the host: themselves, or a copy that close
// writes up where they were changed.
typedef struct bytes_s {
  choir_buffer_t* buffer;
  size_t offset;
  size_t count;
  void* data;
  bool is_copy;
} bytes_t;

static choir_status_t open_bytes(choir_dist_opt_t* dist, choir_tensor_t* tensor,
                                 bytes_t* out_bytes) {
  const choir_view_t* view = choir_tensor_view(tensor);
  choir_device_t* device = choir_buffer_device(view->buffer);
  bytes_t* bytes = out_bytes;
  *bytes =
      (bytes_t){.buffer = view->buffer,
                .offset = (size_t)view->offset * choir_dtype_bytes(view->dtype),
                .is_copy = !choir_device_is_host(device)};
  bytes->data = tensor_bytes(tensor, &bytes->count);
  if (!bytes->is_copy) return NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, bytes->count, "copy of a tensor",
                           &bytes->data));
  choir_status_t status =
      choir_buffer_read(bytes->buffer, choir_device_stream(device),
                        bytes->offset, bytes->data, bytes->count);
  if (status) choir_deallocate(dist->allocator, bytes->data, bytes->count);
  return status;
}

static choir_status_t close_bytes(choir_dist_opt_t* dist, const bytes_t* bytes,
                                  bool is_changed) {
  if (!bytes->is_copy) return NULL;
  choir_status_t status = NULL;
  if (is_changed)
    status = choir_buffer_write(
        bytes->buffer, choir_device_stream(choir_buffer_device(bytes->buffer)),
        bytes->offset, bytes->data, bytes->count);
  choir_deallocate(dist->allocator, bytes->data, bytes->count);
  return status;
}

static choir_status_t broadcast_tensor(choir_dist_opt_t* dist, const char* name,
                                       choir_tensor_t* tensor) {
  bytes_t bytes;
  CHOIR_TRY(open_bytes(dist, tensor, &bytes));
  choir_status_t status = choir_comm_broadcast(
      dist->comm, bytes.data, (int64_t)bytes.count, CHOIR_DTYPE_U8, 0, name);
  return choir_status_join(status, close_bytes(dist, &bytes, !status));
}

typedef choir_status_t (*visit_state_t)(choir_dist_opt_t* dist,
                                        const char* name,
                                        choir_tensor_t* tensor);
static choir_status_t visit_optimizer_states(choir_dist_opt_t* dist,
                                             visit_state_t visit) {
  const size_t count = choir_optimizer_states(dist->optimizer, NULL);
  if (count == 0) return NULL;
  const size_t bytes = count * sizeof(choir_named_tensor_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, bytes, "state list", &memory));
  choir_named_tensor_t* states = memory;
  choir_optimizer_states(dist->optimizer, states);
  choir_status_t status = NULL;
  for (size_t i = 0; !status && i < count; ++i)
    status = visit(dist, states[i].name, states[i].tensor);
  choir_deallocate(dist->allocator, memory, bytes);
  return status;
}

static choir_status_t broadcast_states(choir_dist_opt_t* dist) {
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(dist->device)));
  for (size_t i = 0; i < dist->params.count; ++i)
    CHOIR_TRY(broadcast_tensor(dist, dist->params.params[i]->name,
                               dist->params.params[i]->value));
  return visit_optimizer_states(dist, broadcast_tensor);
}

// Gradients start on cache lines, so that no two are written to one line.
static int64_t padded(int64_t count, choir_dtype_t dtype) {
  const int64_t line = 64 / (int64_t)choir_dtype_bytes(dtype);
  return (count + line - 1) / line * line;
}

// From the last parameter to the first: which bucket, and how large it gets.
static void assign_buckets(choir_dist_opt_t* dist) {
  bucket_t* bucket = NULL;
  dist->bucket_count = 0;
  for (size_t i = dist->params.count; i-- > 0;) {
    const choir_param_t* param = dist->params.params[i];
    dist->bucket_of[i] = -1;
    if (!param->trainable) continue;
    const choir_dtype_t dtype = choir_tensor_dtype(param->value);
    const int64_t bytes =
        bucket ? bucket->count * (int64_t)choir_dtype_bytes(bucket->dtype) : 0;
    if (!bucket || bucket->dtype != dtype ||
        bytes >= dist->config.bucket_bytes) {
      bucket = &dist->buckets[dist->bucket_count];
      bucket->dtype = dtype;
      snprintf(bucket->name, sizeof bucket->name, "gradient bucket %d",
               dist->bucket_count++);
    }
    dist->bucket_of[i] = dist->bucket_count - 1;
    bucket->count += padded(choir_tensor_count(param->value), dtype);
    ++bucket->param_count;
  }
}

static choir_status_t place_gradients(choir_dist_opt_t* dist) {
  choir_strategy_piece_t* piece = dist->pieces;
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    bucket_t* bucket = &dist->buckets[b];
    CHOIR_TRY(choir_event_create(dist->device, &bucket->ready));
    CHOIR_TRY(choir_comm_buffer_create(
        dist->comm, dist->device,
        (size_t)bucket->count * choir_dtype_bytes(bucket->dtype),
        &bucket->buffer));
    choir_strategy_bucket_t* shown = &dist->strategy_buckets[b];
    *shown = (choir_strategy_bucket_t){.name = bucket->name,
                                       .dtype = bucket->dtype,
                                       .count = bucket->count,
                                       .pieces = piece};
    int64_t offset = 0;
    for (size_t i = dist->params.count; i-- > 0;) {
      if (dist->bucket_of[i] != b) continue;
      choir_param_t* param = dist->params.params[i];
      choir_view_t view = *choir_tensor_view(param->value);
      *piece++ = (choir_strategy_piece_t){.offset = offset,
                                          .count = choir_view_count(&view)};
      dist->values[dist->value_count++] = param->value;
      ++shown->piece_count;
      view.buffer = bucket->buffer;
      view.offset = offset;
      choir_tensor_t* grad = NULL;
      CHOIR_TRY(choir_tensor_from_view(&view, &grad));
      choir_tensor_release(param->grad);
      param->grad = grad;
      offset += padded(choir_view_count(&view), bucket->dtype);
    }
  }
  return NULL;
}

static choir_status_t make_passes(choir_dist_opt_t* dist) {
  if (dist->config.backward_passes_per_step == 1) return NULL;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    CHOIR_TRY(choir__passes_create(dist->allocator, &dist->strategy_buckets[b],
                                   &dist->buckets[b].passes));
  return NULL;
}

static void drop_mirror(choir_dist_opt_t* dist) {
  choir__mirror_destroy(dist->mirror);
  dist->mirror = NULL;
}

static void drop_buckets(choir_dist_opt_t* dist) {
  // First, as it waits for operations that still use the buckets.
  choir_stream_release(dist->background);
  dist->background = NULL;
  choir__strategy_detach(dist->strategy);
  drop_mirror(dist);
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    choir__passes_destroy(dist->allocator, dist->buckets[b].passes);
    choir_buffer_release(dist->buckets[b].buffer);
    choir_event_release(dist->buckets[b].ready);
  }
  choir_deallocate(dist->allocator, dist->buckets,
                   dist->params.count * sizeof(bucket_t));
  choir_deallocate(dist->allocator, dist->bucket_of,
                   dist->params.count * sizeof(int32_t));
  choir_deallocate(dist->allocator, dist->strategy_buckets,
                   dist->params.count * sizeof(choir_strategy_bucket_t));
  choir_deallocate(dist->allocator, dist->pieces,
                   dist->params.count * sizeof(choir_strategy_piece_t));
  dist->buckets = NULL;
  dist->bucket_of = NULL;
  dist->strategy_buckets = NULL;
  dist->pieces = NULL;
  choir_deallocate(dist->allocator, dist->values,
                   dist->params.count * sizeof(choir_tensor_t*));
  dist->values = NULL;
  dist->value_count = 0;
  dist->bucket_count = 0;
  choir_event_release(dist->exchanged);
  choir_device_release(dist->host);
  choir_device_release(dist->device);
  dist->exchanged = NULL;
  dist->host = NULL;
  dist->device = NULL;
}

static choir_status_t allocate_lists(choir_dist_opt_t* dist) {
  const size_t count = dist->params.count;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(bucket_t), "buckets",
                           &memory));
  dist->buckets = memory;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(int32_t),
                           "bucket map", &memory));
  dist->bucket_of = memory;
  CHOIR_TRY(choir_allocate(dist->allocator,
                           count * sizeof(choir_strategy_bucket_t),
                           "buckets for the strategy", &memory));
  dist->strategy_buckets = memory;
  CHOIR_TRY(choir_allocate(dist->allocator,
                           count * sizeof(choir_strategy_piece_t),
                           "places of parameters", &memory));
  dist->pieces = memory;
  CHOIR_TRY(choir_allocate(dist->allocator, count * sizeof(choir_tensor_t*),
                           "parameters of buckets", &memory));
  dist->values = memory;
  return NULL;
}

choir_status_t choir__dist_opt_take_params(choir_dist_opt_t* dist_opt) {
  choir_strategy_t* strategy = dist_opt->strategy;
  if (!strategy->def->take_params) return NULL;
  if (dist_opt->mirror)
    CHOIR_TRY(choir__mirror_copy_values(
        dist_opt->mirror, choir_device_stream(dist_opt->device), false));
  strategy->def->take_params(strategy);
  return NULL;
}

static choir_status_t make_mirror(choir_dist_opt_t* dist) {
  const size_t bytes = (size_t)dist->bucket_count * sizeof(choir_buffer_t*);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, bytes, "list of buckets", &memory));
  choir_buffer_t** grads = memory;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    grads[b] = dist->buckets[b].buffer;
  const choir__mirrored_t what = {
      .comm = dist->comm,
      .host = dist->host,
      .grads = grads,
      .values = dist->values,
      .buckets = dist->strategy_buckets,
      .pieces = dist->pieces,
      .bucket_count = dist->bucket_count,
      .value_count = dist->strategy->def->combine ? dist->value_count : 0};
  choir_status_t status =
      choir__mirror_create(dist->allocator, &what, &dist->mirror);
  choir_deallocate(dist->allocator, memory, bytes);
  return status;
}

// Passes of a step are added up on the host.
static bool works_there(const choir_dist_opt_t* dist) {
  const choir_strategy_def_t* def = dist->strategy->def;
  return choir_device_is_host(dist->device) ||
         (dist->config.backward_passes_per_step == 1 && def->works_on &&
          def->works_on(dist->strategy, dist->device));
}

// Gradients and parameters as the strategy sees them: where they lie, or copies
// where it computes on the host and they are not there.
static choir_status_t place_for_strategy(choir_dist_opt_t* dist) {
  drop_mirror(dist);
  size_t bytes;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    dist->strategy_buckets[b].grads =
        choir_buffer_data(dist->buckets[b].buffer);
  for (int32_t i = 0; i < dist->value_count; ++i)
    dist->pieces[i].value = tensor_bytes(dist->values[i], &bytes);
  return works_there(dist) ? NULL : make_mirror(dist);
}

static choir_status_t attach_strategy(choir_dist_opt_t* dist) {
  ++dist->variant;
  dist->strategy->plan = &dist->plan;
  CHOIR_TRY(place_for_strategy(dist));
  CHOIR_TRY(choir__strategy_attach(
      dist->strategy, dist->comm, dist->mirror ? dist->host : dist->device,
      dist->host, dist->optimizer, dist->strategy_buckets, dist->bucket_count));
  return choir__dist_opt_take_params(dist);
}

static choir_status_t open_host(choir_dist_opt_t* dist) {
  if (!choir_device_is_host(dist->device)) {
    const choir_device_options_t options = {.threads = 1};
    return choir_device_create("cpu", &options, &dist->host);
  }
  choir_device_retain(dist->device);
  dist->host = dist->device;
  return NULL;
}

static choir_status_t attach(choir_updater_t* updater, choir_device_t* device,
                             choir_param_list_t params) {
  choir_dist_opt_t* dist = of_updater(updater);
  dist->attached = false;
  drop_buckets(dist);
  choir_device_retain(device);
  dist->device = device;
  dist->params = params;
  CHOIR_TRY(open_host(dist));
  const choir__agreement_t all_have = agreement(dist, dist->strategy);
  CHOIR_TRY(choir__agree_on_model(&all_have));
  CHOIR_TRY(choir_optimizer_attach(dist->optimizer, device, params));
  CHOIR_TRY(broadcast_states(dist));
  CHOIR_TRY(
      choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &dist->background));
  CHOIR_TRY(choir_event_create(device, &dist->exchanged));
  CHOIR_TRY(allocate_lists(dist));
  assign_buckets(dist);
  CHOIR_TRY(place_gradients(dist));
  CHOIR_TRY(make_passes(dist));
  CHOIR_TRY(attach_strategy(dist));
  dist->attached = true;
  return NULL;
}

// On the compute stream, after the bucket's gradients.
static choir_status_t submit_pass(choir_dist_opt_t* dist, int32_t bucket) {
  choir__passes_t* kept = dist->buckets[bucket].passes;
  if (!kept) return NULL;
  CHOIR_TRY(
      choir__mirror_submit_bucket(dist->mirror, bucket, dist->compute, false));
  CHOIR_TRY(choir__passes_submit(kept, dist->is_partial,
                                 dist->strategy->values.sample_count,
                                 dist->compute));
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

static int64_t passes(const choir_updater_t* updater) {
  return ((const choir_dist_opt_t*)updater)->config.backward_passes_per_step;
}

// ---- A step ----

static choir_status_t require_attached(const choir_dist_opt_t* dist_opt,
                                       const char* what) {
  if (dist_opt->attached) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "dist_opt: %s before it has a model; "
                     "choir_model_set_updater gives it one",
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

static choir_status_t begin_exchange(void* self) {
  ((choir_dist_opt_t*)self)->in_exchange = true;
  return NULL;
}

static choir_status_t submit_bucket(choir_dist_opt_t* dist, int32_t bucket,
                                    choir_stream_t* stream) {
  choir_strategy_t* strategy = dist->strategy;
  if (!dist->buckets[bucket].passes)
    CHOIR_TRY(choir__mirror_submit_bucket(dist->mirror, bucket, stream, false));
  CHOIR_TRY(exchange_failure(
      dist, strategy->def->exchange(strategy, bucket, stream)));
  return choir__mirror_submit_bucket(dist->mirror, bucket, stream, true);
}

// Any but the last.
static choir_status_t start_next_bucket(choir_dist_opt_t* dist) {
  const int32_t bucket = dist->next_bucket++;
  if (bucket == 0)
    CHOIR_TRY(choir_stream_call(dist->compute, begin_exchange, dist));
  CHOIR_TRY(submit_pass(dist, bucket));
  choir_event_t* ready = dist->buckets[bucket].ready;
  CHOIR_TRY(choir_event_record(ready, dist->compute));
  CHOIR_TRY(choir_stream_wait_event(dist->background, ready));
  return submit_bucket(dist, bucket, dist->background);
}

static choir_status_t on_grad(void* self, choir_param_t* param) {
  choir_dist_opt_t* dist = self;
  for (size_t i = 0; i < dist->params.count; ++i) {
    if (dist->params.params[i] != param) continue;
    if (dist->bucket_of[i] < 0)
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "dist_opt: parameter %s was frozen when the model got "
                         "its updater; call choir_model_set_updater again",
                         param->name);
    --dist->buckets[dist->bucket_of[i]].missing;
    break;
  }
  // In bucket order, also when a later bucket is complete first: all ranks
  // must start the same operations in the same order.
  while (dist->strategy->overlaps &&
         dist->next_bucket < dist->bucket_count - 1 &&
         dist->buckets[dist->next_bucket].missing == 0)
    CHOIR_TRY(start_next_bucket(dist));
  return NULL;
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
  dist->in_exchange = false;
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

// Peers may be in an exchange that this rank does not come to any more.
static void give_up(choir_dist_opt_t* dist) {
  if (!dist->in_exchange) return;
  dist->in_exchange = false;
  choir_comm_abort(dist->comm, "its training step failed in backward");
  choir_status_free(choir_stream_synchronize(dist->background));
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
  CHOIR_TRY(exchange_failure(
      dist, choir__strategy_submit(strategy, CHOIR_STRATEGY_COMBINE, combine,
                                   dist->bucket_count, dist->compute)));
  return choir__mirror_submit_values(mirror, dist->compute, true);
}

// Gradients, combined or not, become a step; then parameters are combined where
// gradients were not.
static choir_status_t update(choir_dist_opt_t* dist) {
  choir_strategy_t* strategy = dist->strategy;
  CHOIR_TRY(strategy->def->exchange ? finish_exchange(dist)
                                    : submit_passes(dist));
  CHOIR_TRY(choir_optimizer_update(dist->optimizer, dist->compute,
                                   strategy->values.step));
  return strategy->def->combine ? submit_combine(dist) : NULL;
}

static void backward_and_update(choir_updater_t* updater, choir_scope_t* scope,
                                choir_var_t* loss) {
  choir_dist_opt_t* dist = of_updater(updater);
  if (!choir_scope_is_ok(scope)) return;
  if (!dist->attached) {
    choir_scope_fail(scope, require_attached(dist, "a step"));
    return;
  }
  const choir_step_t* step = choir_scope_step(scope);
  const bool exchanges = dist->strategy->def->exchange && !step->is_partial;
  dist->is_partial = step->is_partial;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    dist->buckets[b].missing = dist->buckets[b].param_count;
  dist->next_bucket = exchanges ? 0 : dist->bucket_count;
  dist->in_exchange = false;
  dist->strategy->values = (choir_step_values_t){
      .step = step->step,
      .first_sample = step->first_sample,
      .sample_count = step->sample_count,
      .lr = choir_optimizer_lr(dist->optimizer, step->step)};
  dist->compute = choir_scope_stream(scope);
  const choir_backward_options_t backward = {.params = dist->params.params,
                                             .param_count = dist->params.count,
                                             .on_grad = on_grad,
                                             .self = dist};
  choir_scope_backward(scope, loss, &backward);
  if (choir_scope_is_ok(scope)) choir_scope_fail(scope, start_rest(dist));
  if (!choir_scope_is_ok(scope)) {
    give_up(dist);
    return;
  }
  choir_scope_fail(scope,
                   step->is_partial ? submit_passes(dist) : update(dist));
}

static size_t states(choir_updater_t* updater,
                     choir_named_tensor_t* out_states) {
  const choir_dist_opt_t* dist = of_updater(updater);
  const size_t count = choir_optimizer_states(dist->optimizer, out_states);
  return count + choir__strategy_states(dist->strategy,
                                        out_states ? out_states + count : NULL);
}

static choir_status_t compare_bytes(choir_dist_opt_t* dist, const char* name,
                                    const bytes_t* bytes, bool* out_differ) {
  const uint64_t hash =
      choir_hash_bytes(CHOIR_HASH_START, bytes->data, bytes->count);
  CHOIR_TRY(choir_comm_all_gather(dist->comm, &hash, dist->hashes, 1,
                                  CHOIR_DTYPE_I64, name));
  for (int32_t rank = 1; rank < choir_comm_size(dist->comm); ++rank)
    *out_differ |= dist->hashes[rank] != dist->hashes[0];
  return NULL;
}

// Averages a tensor of floats over ranks where they differ. Equal ones stay as
// they are: a mean of three times the same number is not always that number.
static choir_status_t average_tensor(choir_dist_opt_t* dist, const char* name,
                                     choir_tensor_t* tensor) {
  if (!choir_dtype_is_float(choir_tensor_dtype(tensor))) return NULL;
  bytes_t bytes;
  CHOIR_TRY(open_bytes(dist, tensor, &bytes));
  bool differ = false;
  choir_status_t status = compare_bytes(dist, name, &bytes, &differ);
  if (!status && differ)
    status = choir_comm_all_reduce(
        dist->comm, bytes.data, bytes.data, choir_tensor_count(tensor),
        choir_tensor_dtype(tensor), CHOIR_REDUCE_AVERAGE, name);
  return choir_status_join(status,
                           close_bytes(dist, &bytes, !status && differ));
}

static choir_status_t settle(choir_dist_opt_t* dist) {
  CHOIR_TRY(exchange_failure(
      dist, choir_stream_synchronize(choir_device_stream(dist->device))));
  CHOIR_TRY(exchange_failure(dist, choir_stream_synchronize(dist->background)));
  // A GPU whose exchange was broken off ends its work like any other.
  return choir_device_is_host(dist->device) ? NULL
                                            : choir_comm_poll_error(dist->comm);
}

static choir_status_t consolidate_strategy(choir_dist_opt_t* dist) {
  choir_stream_t* stream = choir_device_stream(dist->device);
  if (dist->mirror)
    CHOIR_TRY(choir__mirror_copy_values(dist->mirror, stream, false));
  CHOIR_TRY(dist->strategy->def->consolidate(dist->strategy));
  if (!dist->mirror) return NULL;
  return choir__mirror_copy_values(dist->mirror, stream, true);
}

// Parameters become equal, and so do states that training does not learn
// (running averages): they become the average.
static choir_status_t consolidate(choir_updater_t* updater) {
  choir_dist_opt_t* dist = of_updater(updater);
  if (!dist->attached) return NULL;
  CHOIR_TRY(settle(dist));
  if (dist->strategy->def->consolidate) CHOIR_TRY(consolidate_strategy(dist));
  for (size_t i = 0; i < dist->params.count; ++i) {
    const choir_param_t* param = dist->params.params[i];
    if (!param->trainable)
      CHOIR_TRY(average_tensor(dist, param->name, param->value));
  }
  return NULL;
}

static int64_t variant(const choir_updater_t* updater) {
  return ((const choir_dist_opt_t*)updater)->variant;
}

static double lr(const choir_updater_t* updater, int64_t step) {
  return choir_optimizer_lr(((const choir_dist_opt_t*)updater)->optimizer,
                            step);
}

static choir_stream_t* stream(const choir_updater_t* updater) {
  return ((const choir_dist_opt_t*)updater)->background;
}

static choir_status_t replay_failed(choir_updater_t* updater,
                                    choir_status_t status) {
  choir_dist_opt_t* dist = of_updater(updater);
  choir_span_end(&dist->span, "wait", "exchange of gradients", NULL);
  dist->span.start = -1;
  status = exchange_failure(dist, status);
  give_up(dist);
  return status;
}

// ---- The strategy ----

// In place of the one in use, which is so again when this one does not fit the
// parameters or the optimizer (on any rank: all have the same).
static choir_status_t replace_strategy(choir_dist_opt_t* dist,
                                       choir_strategy_t* strategy) {
  choir_strategy_t* before = dist->strategy;
  choir__strategy_detach(before);
  dist->attached = false;
  dist->strategy = strategy;
  choir_status_t status = attach_strategy(dist);
  if (status) {
    choir__strategy_detach(strategy);
    dist->strategy = before;
    choir_status_t again = attach_strategy(dist);
    dist->attached = !again;
    return choir_status_join(status, again);
  }
  choir__strategy_destroy(before);
  dist->attached = true;
  return NULL;
}

// All ranks hear of a difference before anything is changed. Local steps have
// left each rank its own states of the optimizer, which would make replicas
// drift apart where all are to apply one step.
static choir_status_t switch_to(choir_dist_opt_t* dist,
                                choir_strategy_t* strategy) {
  CHOIR_TRY(settle(dist));
  const choir__agreement_t all_have = agreement(dist, strategy);
  CHOIR_TRY(choir__agree_on_settings(&all_have));
  CHOIR_TRY(consolidate(&dist->updater));
  CHOIR_TRY(visit_optimizer_states(dist, average_tensor));
  return replace_strategy(dist, strategy);
}

static choir_status_t use(choir_dist_opt_t* dist,
                          const choir_strategy_def_t* def, const void* config) {
  choir_strategy_t* strategy = NULL;
  CHOIR_TRY(choir__strategy_create(def, config, &strategy));
  if (!dist->attached) {
    choir__strategy_destroy(dist->strategy);
    dist->strategy = strategy;
    return NULL;
  }
  choir_status_t status = switch_to(dist, strategy);
  if (status) choir__strategy_destroy(strategy);
  return status;
}

static choir_status_t begin_step(choir_updater_t* updater) {
  choir_dist_opt_t* dist = of_updater(updater);
  if (!dist->attached || !dist->strategy->def->successor) return NULL;
  const choir_strategy_def_t* def = NULL;
  CHOIR_TRY(dist->strategy->def->successor(dist->strategy, &def));
  return def ? use(dist, def, NULL) : NULL;
}

choir_status_t choir_dist_opt_use(choir_dist_opt_t* dist_opt,
                                  const choir_strategy_def_t* def,
                                  const void* config) {
  if (!dist_opt || !def)
    return CHOIR_ERROR(INVALID_ARGUMENT, "dist_opt_use: %s is NULL",
                       dist_opt ? "def" : "dist_opt");
  return use(dist_opt, def, config);
}

const choir_strategy_def_t* choir_dist_opt_strategy(
    const choir_dist_opt_t* dist_opt) {
  return dist_opt->strategy->def;
}

bool choir_dist_opt_ranks_differ(const choir_dist_opt_t* dist_opt) {
  // What is combined after local steps, or kept from one exchange to the next.
  return dist_opt->strategy->def->combine || dist_opt->strategy->def->states;
}

const char* choir_dist_opt_print_strategy(const choir_dist_opt_t* dist_opt,
                                          char* text, size_t text_bytes) {
  return choir__strategy_print(dist_opt->strategy, text, text_bytes);
}

static choir_status_t set_options(choir_updater_t* updater,
                                  const choir_update_options_t* options) {
  choir_dist_opt_t* dist = of_updater(updater);
  const choir_strategy_t* now = dist->strategy;
  const choir_strategy_def_t* def = now->def;
  if (options->dist_option)
    CHOIR_TRY_NOTE(choir_strategy_def_parse(options->dist_option, &def),
                   "dist_opt");
  choir_strategy_config_t config = now->config;
  if (def != now->def) choir_struct_init(def->config, &config);
  const bool has_spars = choir_struct_find(def->config, "spars");
  CHOIR_TRY_NOTE(choir__strategy_config_set(def, has_spars ? options->spars : 0,
                                            options->settings, &config),
                 "dist_opt");
  if (def == now->def && choir_struct_hash(def->config, &config) ==
                             choir_struct_hash(def->config, &now->config))
    return NULL;
  return use(dist, def, &config);
}

static size_t hashes_bytes(const choir_comm_t* comm) {
  return sizeof(uint64_t) * (size_t)choir_comm_size(comm);
}

// Also what create left half-made.
static void free_dist_opt(choir_dist_opt_t* dist) {
  choir__strategy_destroy(dist->strategy);
  choir_deallocate(dist->allocator, dist->hashes, hashes_bytes(dist->comm));
  choir_optimizer_release(dist->optimizer);
  choir_comm_release(dist->comm);
  choir_deallocate(dist->allocator, dist, sizeof(*dist));
}

static void destroy(choir_updater_t* updater) {
  choir_dist_opt_t* dist = of_updater(updater);
  drop_buckets(dist);
  free_dist_opt(dist);
}

static const choir_updater_vtable_t vtable = {
    .destroy = destroy,
    .attach = attach,
    .backward_and_update = backward_and_update,
    .states = states,
    .consolidate = consolidate,
    .set_options = set_options,
    .begin_step = begin_step,
    .passes = passes,
    .variant = variant,
    .lr = lr,
    .stream = stream,
    .replay_failed = replay_failed,
};

choir_status_t choir_dist_opt_create(choir_optimizer_t* optimizer,
                                     choir_comm_t* comm,
                                     const choir_dist_opt_config_t* config,
                                     choir_dist_opt_t** out_dist_opt) {
  *out_dist_opt = NULL;
  if (!optimizer || !comm)
    return CHOIR_ERROR(INVALID_ARGUMENT, "dist_opt: %s is NULL",
                       optimizer ? "comm" : "optimizer");
  if (config) CHOIR_TRY(choir_struct_check(&choir_dist_opt_config_def, config));
  choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(allocator, sizeof(choir_dist_opt_t), "dist_opt", &memory));
  choir_dist_opt_t* dist = memory;
  atomic_init(&dist->updater.ref_count, 1);
  dist->updater.vtable = &vtable;
  dist->allocator = allocator;
  dist->span.start = -1;
  choir_struct_init(&choir_dist_opt_config_def, &dist->config);
  if (config) dist->config = *config;
  choir_optimizer_retain(optimizer);
  choir_comm_retain(comm);
  dist->optimizer = optimizer;
  dist->comm = comm;
  void* hashes = NULL;
  choir_status_t status =
      choir_allocate(allocator, hashes_bytes(comm), "hashes of ranks", &hashes);
  dist->hashes = hashes;
  if (!status)
    status =
        choir__strategy_create(&choir_strategy_def_fp32, NULL, &dist->strategy);
  if (status)
    free_dist_opt(dist);
  else
    *out_dist_opt = dist;
  return status;
}

void choir_dist_opt_retain(choir_dist_opt_t* dist_opt) {
  if (dist_opt) choir_updater_retain(&dist_opt->updater);
}
void choir_dist_opt_release(choir_dist_opt_t* dist_opt) {
  if (dist_opt) choir_updater_release(&dist_opt->updater);
}
choir_updater_t* choir_dist_opt_updater(choir_dist_opt_t* dist_opt) {
  return &dist_opt->updater;
}

const choir_plan_t* choir_dist_opt_plan(const choir_dist_opt_t* dist_opt) {
  return dist_opt->plan.row_count ? &dist_opt->plan : NULL;
}

choir_stream_t* choir__dist_opt_background(const choir_dist_opt_t* dist_opt) {
  return dist_opt->background;
}

choir_status_t choir_dist_opt_broadcast(choir_dist_opt_t* dist_opt) {
  CHOIR_TRY(require_attached(dist_opt, "broadcast"));
  CHOIR_TRY(broadcast_states(dist_opt));
  return choir__dist_opt_take_params(dist_opt);
}

choir_status_t choir__dist_opt_settle(choir_dist_opt_t* dist_opt,
                                      const char* what,
                                      choir__dist_opt_view_t* out_view) {
  CHOIR_TRY(require_attached(dist_opt, what));
  *out_view = (choir__dist_opt_view_t){.comm = dist_opt->comm,
                                       .device = dist_opt->device,
                                       .allocator = dist_opt->allocator,
                                       .params = dist_opt->params};
  return settle(dist_opt);
}

choir_status_t choir_dist_opt_check_digest(choir_dist_opt_t* dist_opt,
                                           uint64_t digest) {
  const int32_t size = choir_comm_size(dist_opt->comm);
  const size_t bytes = sizeof(uint64_t) * (size_t)size;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist_opt->allocator, bytes, "digests", &memory));
  uint64_t* digests = memory;
  choir_status_t status = choir_comm_all_gather(
      dist_opt->comm, &digest, digests, 1, CHOIR_DTYPE_I64, "digest");
  for (int32_t rank = 1; !status && rank < size; ++rank)
    if (digests[rank] != digests[0])
      status = CHOIR_ERROR(INTERNAL,
                           "the replicas differ: %s has digest %016llx, rank 0 "
                           "has %016llx",
                           choir_comm_peer(dist_opt->comm, rank),
                           (unsigned long long)digests[rank],
                           (unsigned long long)digests[0]);
  choir_deallocate(dist_opt->allocator, memory, bytes);
  return status;
}
