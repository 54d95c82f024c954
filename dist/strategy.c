// SPDX-License-Identifier: Apache-2.0
// The life of a strategy, and what all share.
#include "dist/strategy.h"

#include <stdio.h>
#include <string.h>

#include "core/random.h"
#include "dist/comm_shared_def.h"
#include "dist/strategies/strategy_internal.h"
#include "tensor/op_def.h"
#include "tensor/ops.h"

const char* choir_strategy_def_option(const choir_strategy_def_t* def) {
  return def->config->name;
}

const choir_struct_def_t* choir_strategy_def_config(
    const choir_strategy_def_t* def) {
  return def->config;
}

choir_status_t choir__strategy_check(const choir_strategy_def_t* def,
                                     const void* config) {
  CHOIR_TRY(choir_struct_check(def->config, config));
  if (def->check)
    CHOIR_TRY_NOTE(def->check(config), "%s", choir_strategy_def_option(def));
  return NULL;
}

// ---- Life ----

choir_status_t choir__strategy_create(const choir_strategy_def_t* def,
                                      const void* config,
                                      choir_strategy_t** out_strategy) {
  *out_strategy = NULL;
  if (config) CHOIR_TRY(choir__strategy_check(def, config));
  const choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, def->bytes, "strategy", &memory));
  choir_strategy_t* strategy = memory;
  strategy->def = def;
  choir_struct_init(def->config, &strategy->config);
  if (config) memcpy(&strategy->config, config, def->config->bytes);
  strategy->allocator = allocator;
  *out_strategy = strategy;
  return NULL;
}

void choir__strategy_detach(choir_strategy_t* strategy) {
  if (strategy->def->detach) strategy->def->detach(strategy);
  strategy->comm = NULL;
  strategy->buckets = NULL;
  strategy->bucket_count = 0;
}

void choir__strategy_destroy(choir_strategy_t* strategy) {
  if (!strategy) return;
  const choir_strategy_def_t* def = strategy->def;
  const choir_allocator_t allocator = strategy->allocator;
  choir__strategy_detach(strategy);
  choir_deallocate(allocator, strategy, def->bytes);
}

choir_status_t choir__strategy_attach(
    choir_strategy_t* strategy, choir_comm_t* comm, choir_device_t* device,
    choir_device_t* host, choir_optimizer_t* optimizer,
    const choir_strategy_bucket_t* buckets, int32_t bucket_count) {
  strategy->comm = comm;
  strategy->device = device;
  strategy->host = host;
  strategy->optimizer = optimizer;
  strategy->buckets = buckets;
  strategy->bucket_count = bucket_count;
  strategy->overlaps = true;
  if (!strategy->def->attach) return NULL;
  CHOIR_TRY_NOTE(strategy->def->attach(strategy), "dist_option %s",
                 choir_strategy_def_option(strategy->def));
  return NULL;
}

size_t choir__strategy_states(const choir_strategy_t* strategy,
                              choir_named_tensor_t* out_states) {
  return strategy->comm && strategy->def->states
             ? strategy->def->states(strategy, out_states)
             : 0;
}

const char* choir__strategy_print(const choir_strategy_t* strategy, char* text,
                                  size_t text_bytes) {
  const int length = snprintf(text, text_bytes, "%s ",
                              choir_strategy_def_option(strategy->def));
  if (length > 0 && (size_t)length < text_bytes)
    choir_struct_print(strategy->def->config, &strategy->config, text + length,
                       text_bytes - (size_t)length);
  return text;
}

uint64_t choir__strategy_hash(const choir_strategy_t* strategy) {
  const char* option = choir_strategy_def_option(strategy->def);
  const uint64_t settings =
      choir_struct_hash(strategy->def->config, &strategy->config);
  const uint64_t hash =
      choir_hash_bytes(CHOIR_HASH_START, option, strlen(option));
  return choir_hash_bytes(hash, &settings, sizeof settings);
}

// ---- For strategies ----

typedef struct call_attrs_s {
  choir_strategy_t* strategy;
  choir_strategy_run_t run;
  int64_t bucket;
  choir_step_values_t values;
} call_attrs_t;

static choir_status_t run_call(const choir_record_t* record,
                               choir_stream_t* stream) {
  const call_attrs_t* attrs = record->attrs;
  return attrs->run(attrs->strategy, (int32_t)attrs->bucket, &attrs->values,
                    stream);
}

static void call_at_step(void* attrs, const choir_step_values_t* values) {
  ((call_attrs_t*)attrs)->values = *values;
}

static const choir_kernel_t kernels[CHOIR_STRATEGY_WORK_COUNT] = {
    [CHOIR_STRATEGY_ENCODE] = {.name = "encode/strategy", .run = run_call},
    [CHOIR_STRATEGY_DECODE] = {.name = "decode/strategy", .run = run_call},
    [CHOIR_STRATEGY_COMBINE] = {.name = "combine/strategy", .run = run_call},
};

choir_status_t choir__strategy_submit(choir_strategy_t* strategy,
                                      choir_strategy_work_t work,
                                      choir_strategy_run_t run, int32_t bucket,
                                      choir_stream_t* stream) {
  const call_attrs_t attrs = {.strategy = strategy,
                              .run = run,
                              .bucket = bucket,
                              .values = strategy->values};
  const choir_record_t record = {
      .kernel = &kernels[work],
      .attrs = &attrs,
      .attrs_bytes = sizeof(attrs),
      .at_step = call_at_step,
      .label = bucket < strategy->bucket_count
                   ? strategy->buckets[bucket].name
                   : choir_strategy_def_option(strategy->def)};
  return choir_stream_submit(stream, &record);
}

choir_status_t choir__strategy_submit_collective(
    const choir_strategy_t* strategy, const choir_device_t* device,
    choir_stream_t* stream, const choir_collective_t* collective) {
  choir_collective_t placed = *collective;
  placed.in_host_memory = choir_device_is_host(device);
  choir__comm_set_step(&placed, &strategy->values);
  return choir_comm_submit(strategy->comm, stream, &placed);
}

choir_status_t choir__strategy_make_state(choir_strategy_t* strategy,
                                          choir_dtype_t dtype, int64_t count,
                                          choir_tensor_t** out_tensor,
                                          void** out_data) {
  CHOIR_TRY(
      choir_tensor_create(strategy->device, dtype, 1, &count, out_tensor));
  const choir_view_t* view = choir_tensor_view(*out_tensor);
  *out_data = choir_buffer_data(view->buffer);
  if (choir_device_is_host(strategy->device)) {
    memset(*out_data, 0, (size_t)count * choir_dtype_bytes(dtype));
    return NULL;
  }
  const choir_fill_attrs_t zero = {.value = 0};
  return choir_op_run(choir_device_stream(strategy->device), CHOIR_OP_FILL,
                      out_tensor, 1, &zero, false, out_tensor);
}

choir_status_t choir__strategy_need_f32(const choir_strategy_t* strategy) {
  for (int32_t b = 0; b < strategy->bucket_count; ++b)
    if (strategy->buckets[b].dtype != CHOIR_DTYPE_F32)
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "%s has parameters of %s; this strategy is for f32 ones",
          strategy->buckets[b].name,
          choir_dtype_name(strategy->buckets[b].dtype));
  return NULL;
}
