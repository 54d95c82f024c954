// SPDX-License-Identifier: Apache-2.0
#include "dist/dist_opt.h"

#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"

static const choir_field_t fields[] = {
    CHOIR_CONFIG_TABLE(choir_dist_opt_config_t, CHOIR_DIST_OPT_FIELDS)};
const choir_struct_def_t choir_dist_opt_config_def = CHOIR_STRUCT_DEF(
    "dist_opt", choir_dist_opt_config_t, fields, "gradient exchange");

// ---- Attach ----

static choir__common_t agreement(const choir_dist_opt_t* dist,
                                 const choir_strategy_t* strategy) {
  return (choir__common_t){.comm = dist->comm,
                           .allocator = dist->allocator,
                           .params = dist->params,
                           .optimizer = dist->optimizer,
                           .config_def = &choir_dist_opt_config_def,
                           .config = &dist->config,
                           .strategy = strategy};
}

static void drop_mirror(choir_dist_opt_t* dist) {
  choir__mirror_destroy(dist->mirror);
  dist->mirror = NULL;
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
    dist->pieces[i].value = choir__tensor_bytes(dist->values[i], &bytes);
  return works_there(dist) ? NULL : make_mirror(dist);
}

static choir_status_t gather(choir_updater_t* updater,
                             const choir_named_tensor_t* state, int32_t root,
                             choir_tensor_t** out_whole) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  CHOIR_TRY(choir__dist_opt_need_model(dist, "gather"));
  CHOIR_TRY(choir__dist_opt_end_work(dist));
  return choir__shards_gather(dist->shards, state, root, out_whole);
}

// They have what a step begins with before the first one, too; a later
// generation has not its states yet.
static choir_status_t open_holders(choir_dist_opt_t* dist) {
  CHOIR_TRY(choir__holders_create(dist, choir__shards_states(dist->shards),
                                  &dist->holders));
  return dist->generation.number == 1 ? choir__holders_give(dist->holders, 0)
                                      : NULL;
}

static choir_status_t attach_strategy(choir_dist_opt_t* dist) {
  ++dist->variant;
  const choir__common_t mine = agreement(dist, dist->strategy);
  CHOIR_TRY(choir__elastic_open(dist, &mine));
  CHOIR_TRY(choir__dist_opt_place_states(dist));
  CHOIR_TRY(place_for_strategy(dist));
  CHOIR_TRY(choir__strategy_attach(
      dist->strategy, dist->comm, dist->mirror ? dist->host : dist->device,
      dist->host, dist->optimizer, dist->strategy_buckets, dist->bucket_count));
  if (dist->uses_shards) CHOIR_TRY(choir__shards_plan(dist->shards));
  if (dist->uses_shards && dist->config.elastic && !dist->holders)
    CHOIR_TRY(open_holders(dist));
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

// Records of the compute stream use buckets, mirror and strategy. An event
// leaves failures to who asks the stream.
static void wait_for_work(const choir_dist_opt_t* dist) {
  if (!dist->exchanged) return;
  choir_status_t status =
      choir_event_record(dist->exchanged, choir_device_stream(dist->device));
  if (!status) status = choir_event_synchronize(dist->exchanged);
  choir_status_free(status);
}

static void detach(choir_updater_t* updater) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  dist->attached = false;
  wait_for_work(dist);
  // It waits for operations that still use the buckets.
  choir_stream_release(dist->background);
  dist->background = NULL;
  choir__elastic_drop_kept(dist, &dist->kept);
  choir__holders_destroy(dist->holders);
  dist->holders = NULL;
  choir__strategy_detach(dist->strategy);
  drop_mirror(dist);
  choir__shards_destroy(dist->shards);
  dist->shards = NULL;
  choir__clip_destroy(dist->clip);
  dist->clip = NULL;
  choir__sums_destroy(dist->sums);
  dist->sums = NULL;
  dist->has_states = false;
  dist->uses_shards = false;
  dist->has_lost_states = false;
  choir__buckets_drop(dist);
  choir__updater_detach(choir_optimizer_updater(dist->optimizer), dist->params);
  choir_buffer_release(dist->gathered);
  dist->gathered = NULL;
  choir_event_release(dist->exchanged);
  choir_device_release(dist->host);
  choir_device_release(dist->device);
  dist->exchanged = NULL;
  dist->host = NULL;
  dist->device = NULL;
  dist->params = NULL;
  choir_comm_release(dist->attached_comm);
  dist->attached_comm = NULL;
}

static choir_status_t attach_all(choir_dist_opt_t* dist, choir_device_t* device,
                                 choir_param_set_t* params) {
  choir_device_retain(device);
  dist->device = device;
  dist->params = params;
  choir_comm_retain(dist->comm);
  dist->attached_comm = dist->comm;
  CHOIR_TRY(open_host(dist));
  const choir__common_t all_have = agreement(dist, dist->strategy);
  CHOIR_TRY(choir__agree_on_model(&all_have));
  CHOIR_TRY(choir__updater_check_free(choir_optimizer_updater(dist->optimizer),
                                      params, dist->updater.model));
  CHOIR_TRY(choir__optimizer_prepare(dist->optimizer, params,
                                     dist->updater.model != NULL));
  CHOIR_TRY(choir__dist_opt_broadcast_params(dist));
  CHOIR_TRY(
      choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &dist->background));
  CHOIR_TRY(choir_event_create(device, &dist->exchanged));
  CHOIR_TRY(choir__buckets_lay_out(dist));
  CHOIR_TRY(choir__clip_create(dist, &dist->clip));
  CHOIR_TRY(choir__shards_create(dist, &dist->shards));
  CHOIR_TRY(attach_strategy(dist));
  dist->attached = true;
  return NULL;
}

static choir_status_t attach(choir_updater_t* updater, choir_device_t* device,
                             choir_param_set_t* params) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  return choir__agree_on_outcome(dist->comm, "attach",
                                 attach_all(dist, device, params));
}

static int64_t passes(const choir_updater_t* updater) {
  return ((const choir_dist_opt_t*)updater)->config.backward_passes_per_step;
}

// ---- Between steps ----

static size_t states(choir_updater_t* updater,
                     choir_named_tensor_t* out_states) {
  const choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  const size_t count = choir_optimizer_states(dist->optimizer, out_states);
  return count + choir__strategy_states(dist->strategy,
                                        out_states ? out_states + count : NULL);
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
static choir_status_t consolidate_all(choir_dist_opt_t* dist) {
  CHOIR_TRY(choir__dist_opt_end_work(dist));
  if (dist->strategy->def->consolidate) CHOIR_TRY(consolidate_strategy(dist));
  for (size_t i = 0; i < dist->params->count; ++i) {
    const choir_param_t* param = dist->params->params[i];
    if (!param->trainable)
      CHOIR_TRY(
          choir__dist_opt_average_tensor(dist, param->name, param->value));
  }
  return NULL;
}

static choir_status_t consolidate(choir_updater_t* updater) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  if (!updater->had_model) return NULL;
  CHOIR_TRY(choir__dist_opt_need_model(dist, "consolidate"));
  return choir__agree_on_outcome(dist->comm, "consolidate",
                                 consolidate_all(dist));
}

static int64_t variant(const choir_updater_t* updater) {
  return ((const choir_dist_opt_t*)updater)->variant;
}

static choir_stream_t* stream(const choir_updater_t* updater) {
  return ((const choir_dist_opt_t*)updater)->background;
}

// ---- The strategy ----

// Detaches the one in use.
static choir_status_t attach_other(choir_dist_opt_t* dist,
                                   choir_strategy_t* strategy) {
  choir__strategy_detach(dist->strategy);
  dist->strategy = strategy;
  choir_status_t status =
      choir__agree_on_outcome(dist->comm, "dist_option", attach_strategy(dist));
  dist->attached = !status;
  return status;
}

// In place of the one in use, which is so again when this one does not fit the
// parameters or the optimizer, or a rank has no memory for it.
static choir_status_t replace_strategy(choir_dist_opt_t* dist,
                                       choir_strategy_t* strategy) {
  choir_strategy_t* before = dist->strategy;
  choir_status_t status = attach_other(dist, strategy);
  if (status) return choir_status_join(status, attach_other(dist, before));
  choir__strategy_destroy(before);
  return NULL;
}

// Local steps have left each rank its own states of the optimizer, which would
// make replicas drift apart where all are to apply one step.
static choir_status_t prepare_switch(choir_dist_opt_t* dist,
                                     const choir_strategy_t* strategy) {
  CHOIR_TRY(choir__dist_opt_end_work(dist));
  const choir__common_t all_have = agreement(dist, strategy);
  CHOIR_TRY(choir__agree_on_settings(&all_have));
  CHOIR_TRY(consolidate_all(dist));
  return choir__dist_opt_average_states(dist);
}

// All ranks hear of a difference, or of a failure, before anything is replaced.
static choir_status_t switch_to(choir_dist_opt_t* dist,
                                choir_strategy_t* strategy) {
  CHOIR_TRY(choir__agree_on_outcome(dist->comm, "dist_option",
                                    prepare_switch(dist, strategy)));
  return replace_strategy(dist, strategy);
}

choir_status_t choir_dist_opt_refuse_use(choir_dist_opt_t* dist_opt,
                                         choir_status_t why) {
  if (!why || !dist_opt->attached) return why;
  // Operations that are on their way come first.
  choir_status_free(choir__dist_opt_end_work(dist_opt));
  return choir__agree_on_outcome(dist_opt->comm, "dist_option", why);
}

static choir_status_t use(choir_dist_opt_t* dist,
                          const choir_strategy_def_t* def, const void* config) {
  choir_strategy_t* strategy = NULL;
  choir_status_t status = choir__strategy_create(def, config, &strategy);
  if (!status && !dist->attached) {
    choir__strategy_destroy(dist->strategy);
    dist->strategy = strategy;
    return NULL;
  }
  if (!status) status = switch_to(dist, strategy);
  if (status) choir__strategy_destroy(strategy);
  return choir_dist_opt_refuse_use(dist, status);
}

static choir_status_t begin_step(choir_updater_t* updater, int64_t step) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  CHOIR_TRY(choir__elastic_begin_step(dist, step));
  choir_optimizer_begin_step(dist->optimizer, step);
  if (!dist->attached || !dist->strategy->def->measure) return NULL;
  choir_link_t link;
  choir_workload_t workload;
  bool done = false;
  CHOIR_TRY(
      dist->strategy->def->measure(dist->strategy, &link, &workload, &done));
  if (!done) return NULL;
  choir_plan_make(&link, &workload, &dist->plan);
  const choir_strategy_def_t* def = NULL;
  CHOIR_TRY(choir_strategy_def_parse(dist->plan.rows[dist->plan.chosen].option,
                                     &def));
  return use(dist, def, NULL);
}

choir_status_t choir_dist_opt_use(choir_dist_opt_t* dist_opt,
                                  const choir_strategy_def_t* def,
                                  const void* config) {
  if (!dist_opt)
    return CHOIR_ERROR(INVALID_ARGUMENT, "dist_opt_use: dist_opt is NULL");
  if (!def)
    return choir_dist_opt_refuse_use(
        dist_opt, CHOIR_ERROR(INVALID_ARGUMENT, "dist_opt_use: def is NULL"));
  return use(dist_opt, def, config);
}

const choir_strategy_def_t* choir_dist_opt_strategy(
    const choir_dist_opt_t* dist_opt) {
  return dist_opt->strategy->def;
}

bool choir_dist_opt_ranks_differ(const choir_dist_opt_t* dist_opt) {
  // What is combined after local steps, kept from one exchange to the next, or
  // shared out.
  return dist_opt->strategy->def->combine || dist_opt->strategy->def->states ||
         dist_opt->config.shard;
}

const char* choir_dist_opt_print_strategy(const choir_dist_opt_t* dist_opt,
                                          char* text, size_t text_bytes) {
  return choir__strategy_print(dist_opt->strategy, text, text_bytes);
}

// In: those in use.
static choir_status_t read_options(const choir_update_options_t* options,
                                   const choir_strategy_def_t** def,
                                   choir_strategy_config_t* config) {
  const choir_strategy_def_t* now = *def;
  if (options->dist_option)
    CHOIR_TRY_NOTE(choir_strategy_def_parse(options->dist_option, def),
                   "dist_opt");
  if (*def != now) choir_struct_init((*def)->config, config);
  const bool has_spars = choir_struct_find((*def)->config, "spars");
  CHOIR_TRY_NOTE(
      choir__strategy_config_set(*def, has_spars ? options->spars : 0,
                                 options->settings, config),
      "dist_opt");
  return NULL;
}

static choir_status_t set_options(choir_updater_t* updater,
                                  const choir_update_options_t* options) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  const choir_strategy_t* now = dist->strategy;
  const choir_strategy_def_t* def = now->def;
  choir_strategy_config_t config = now->config;
  choir_status_t status = read_options(options, &def, &config);
  if (status) return choir_dist_opt_refuse_use(dist, status);
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
  choir__elastic_close(dist);
  choir__strategy_destroy(dist->strategy);
  choir_deallocate(dist->allocator, dist->hashes, hashes_bytes(dist->comm));
  choir_optimizer_release(dist->optimizer);
  choir_comm_release(dist->layers_comm);
  choir_comm_release(dist->comm);
  choir_deallocate(dist->allocator, dist, sizeof(*dist));
}

static void destroy(choir_updater_t* updater) {
  detach(updater);
  free_dist_opt(choir__dist_opt_of(updater));
}

static const choir_updater_vtable_t vtable = {
    .destroy = destroy,
    .attach = attach,
    .detach = detach,
    .backward_and_update = choir__dist_opt_backward_and_update,
    .states = states,
    .gather = gather,
    .consolidate = consolidate,
    .set_options = set_options,
    .open_all_gather = choir__layers_open_all_gather,
    .all_gather = choir__layers_all_gather,
    .begin_step = begin_step,
    .passes = passes,
    .variant = variant,
    .stream = stream,
    .replay_failed = choir__dist_opt_replay_failed,
    .step_failed = choir__dist_opt_step_failed,
    .take_back = choir__dist_opt_take_back,
};

static choir_status_t check_config(const choir_dist_opt_config_t* config) {
  CHOIR_TRY(choir_struct_check(&choir_dist_opt_config_def, config));
  if ((config->keep_batch && !config->elastic) ||
      (config->rate_rule != CHOIR_RATE_RULE_NONE && !config->keep_batch))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "dist_opt: %s: the number of workers does not change "
                       "without it",
                       config->keep_batch ? "keep_batch needs elastic"
                                          : "rate_rule needs keep_batch");
  return NULL;
}

choir_status_t choir_dist_opt_create(choir_optimizer_t* optimizer,
                                     choir_comm_t* comm,
                                     const choir_dist_opt_config_t* config,
                                     choir_dist_opt_t** out_dist_opt) {
  *out_dist_opt = NULL;
  if (!optimizer || !comm)
    return CHOIR_ERROR(INVALID_ARGUMENT, "dist_opt: %s is NULL",
                       optimizer ? "comm" : "optimizer");
  if (config) CHOIR_TRY(check_config(config));
  const bool is_newcomer = choir_comm_is_newcomer(comm);
  if (is_newcomer && !(config && config->elastic))
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "dist_opt: this worker comes to a run that is under "
                       "way, which elastic alone can");
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
  // A rank that is lost must leave no other's parameters half-updated.
  if (dist->config.elastic) dist->config.peer_memory = false;
  dist->updater.takes_back = dist->config.elastic;
  dist->updater.is_newcomer = is_newcomer;
  dist->generation = (choir_generation_t){.number = 1, .comm = comm};
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
choir_dist_opt_t* choir__dist_opt_from(choir_updater_t* updater) {
  return updater && updater->vtable == &vtable ? choir__dist_opt_of(updater)
                                               : NULL;
}

const choir_generation_t* choir_dist_opt_generation(
    const choir_dist_opt_t* dist_opt) {
  return &dist_opt->generation;
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

static choir_status_t broadcast_all(choir_dist_opt_t* dist) {
  if (dist->uses_shards)
    return CHOIR_ERROR(
        FAILED_PRECONDITION,
        "dist_opt: broadcast: each rank keeps a shard of the optimizer's "
        "states, and rank 0 has not those of others; choir_training_resume "
        "reads a checkpoint for all ranks");
  CHOIR_TRY(choir__dist_opt_broadcast_params(dist));
  CHOIR_TRY(choir__dist_opt_broadcast_states(dist));
  return choir__dist_opt_take_params(dist);
}

choir_status_t choir_dist_opt_broadcast(choir_dist_opt_t* dist_opt) {
  CHOIR_TRY(choir__dist_opt_need_model(dist_opt, "broadcast"));
  choir_status_t status = broadcast_all(dist_opt);
  return choir__agree_on_outcome(dist_opt->comm, "broadcast", status);
}

choir_status_t choir__dist_opt_settle(choir_dist_opt_t* dist_opt,
                                      const char* what,
                                      choir__dist_opt_view_t* out_view) {
  CHOIR_TRY(choir__dist_opt_need_model(dist_opt, what));
  *out_view = (choir__dist_opt_view_t){.comm = dist_opt->comm,
                                       .device = dist_opt->device,
                                       .allocator = dist_opt->allocator,
                                       .params = dist_opt->params};
  return choir__dist_opt_end_work(dist_opt);
}

choir_status_t choir_dist_opt_check_digest(choir_dist_opt_t* dist_opt,
                                           uint64_t digest) {
  uint64_t* digests = dist_opt->hashes;
  CHOIR_TRY(choir_comm_all_gather(dist_opt->comm, &digest, digests, 1,
                                  CHOIR_DTYPE_I64, "digest"));
  for (int32_t rank = 1; rank < choir_comm_size(dist_opt->comm); ++rank)
    if (digests[rank] != digests[0])
      return CHOIR_ERROR(INTERNAL,
                         "the replicas differ: %s has digest %016llx, rank 0 "
                         "has %016llx",
                         choir_comm_peer(dist_opt->comm, rank),
                         (unsigned long long)digests[rank],
                         (unsigned long long)digests[0]);
  return NULL;
}
