// SPDX-License-Identifier: Apache-2.0
#include "opt/optimizer.h"

#include <stdio.h>
#include <string.h>

#include "core/profile.h"
#include "core/random.h"
#include "model/updater_backend.h"
#include "opt/optimizer_internal.h"
#include "tensor/op_calls_def.h"
#include "tensor/tensor_def.h"

typedef struct param_state_s {
  choir_param_t* param;  // the model's; NULL: it is gone
  size_t group;
  choir_tensor_t* tensors[CHOIR_OPTIMIZER_MAX_STATES];
  char* names[CHOIR_OPTIMIZER_MAX_STATES];
  choir_shard_t shard;  // what the tensors are of; all of it: they are whole
  int64_t count;        // their elements
} param_state_t;

struct choir_optimizer_s {
  choir_updater_t updater;  // first
  const choir_optimizer_def_t* def;
  void* config;
  choir_schedule_config_t schedule;
  double lr_scale;  // DistOpt's
  choir_gradient_clip_t clip;
  choir__groups_t groups;
  int64_t step;  // that began last
  choir_allocator_t allocator;
  param_state_t* states;  // one for each trainable parameter
  size_t state_count;
  size_t names_per_param;
  bool is_shared;                     // some parameters have memory in common
  bool is_sharded;                    // tensors of `states` are shards
  const choir__sharding_t* sharding;  // of the next attach; NULL: whole states
  // An update that runs, or failed, may have changed some of them.
  bool is_half_applied;
  choir_span_t span;  // of the update that runs
};

// ---- States ----

static void drop_states(choir_optimizer_t* optimizer) {
  choir_allocator_t allocator = optimizer->allocator;
  for (size_t i = 0; i < optimizer->state_count; ++i) {
    for (int32_t k = 0; k < CHOIR_OPTIMIZER_MAX_STATES; ++k) {
      choir_tensor_release(optimizer->states[i].tensors[k]);
      char* name = optimizer->states[i].names[k];
      if (name) choir_deallocate(allocator, name, strlen(name) + 1);
    }
  }
  choir_deallocate(allocator, optimizer->states,
                   optimizer->state_count * sizeof(param_state_t));
  optimizer->states = NULL;
  optimizer->state_count = 0;
}

choir_dtype_t choir__optimizer_state_dtype(choir_dtype_t dtype) {
  return dtype == CHOIR_DTYPE_F64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32;
}

static choir_status_t make_state(choir_optimizer_t* optimizer,
                                 choir_device_t* device, param_state_t* state,
                                 size_t k) {
  const char* name = optimizer->def->states[k];
  choir_view_t layout = *choir_tensor_view(state->param->value);
  layout.dtype = choir__optimizer_state_dtype(layout.dtype);
  const size_t bytes = strlen(state->param->name) + strlen(name) + 2;
  void* text = NULL;
  CHOIR_TRY(choir_allocate(optimizer->allocator, bytes, "state name", &text));
  state->names[k] = text;
  snprintf(text, bytes, "%s/%s", state->param->name, name);
  const choir__sharding_t* sharding = optimizer->sharding;
  CHOIR_TRY(sharding ? sharding->place(sharding->self, state->param, (int32_t)k,
                                       &state->tensors[k])
                     : choir_tensor_create_layout(device, &layout,
                                                  &state->tensors[k]));
  choir_fill_attrs_t zero = {.value = 0};
  return choir_op_run(choir_device_stream(device), CHOIR_OP_FILL,
                      &state->tensors[k], 1, &zero, false, &state->tensors[k]);
}

// Of two parameters that are views of one memory, the second is updated from
// what the first left.
static bool have_memory_in_common(const choir_param_set_t* params) {
  for (size_t i = 0; i < params->count; ++i)
    for (size_t k = 0; k < i; ++k)
      if (params->params[i]->trainable && params->params[k]->trainable &&
          choir__tensors_overlap(params->params[i]->value,
                                 params->params[k]->value))
        return true;
  return false;
}

choir_status_t choir__optimizer_prepare(choir_optimizer_t* optimizer,
                                        const choir_param_set_t* params,
                                        bool is_whole) {
  CHOIR_TRY(choir__groups_apply(&optimizer->groups, params, is_whole,
                                optimizer->def->name));
  optimizer->is_shared = have_memory_in_common(params);
  return NULL;
}

int32_t choir__optimizer_state_count(const choir_optimizer_t* optimizer) {
  return optimizer->def->keeps(optimizer->config) ? optimizer->def->state_count
                                                  : 0;
}

// Of which part of the parameter the states are.
static void set_part(const choir_optimizer_t* optimizer, param_state_t* state) {
  const choir__sharding_t* sharding = optimizer->sharding;
  int64_t count = choir_tensor_count(state->param->value);
  state->shard.whole = *choir_tensor_view(state->param->value);
  state->shard.whole.dtype =
      choir__optimizer_state_dtype(state->shard.whole.dtype);
  state->shard.whole.buffer = NULL;
  state->shard.whole.offset = 0;
  if (sharding)
    sharding->part_of(sharding->self, state->param, &state->shard.start,
                      &count);
  state->count = count;
}

// States are as large as what they belong to, or smaller.
static choir_status_t check_memory(const choir_optimizer_t* optimizer,
                                   choir_device_t* device) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < optimizer->state_count; ++i) {
    const param_state_t* state = &optimizer->states[i];
    bytes += (uint64_t)state->count * optimizer->names_per_param *
             choir_dtype_bytes(choir__optimizer_state_dtype(
                 choir_tensor_dtype(state->param->value)));
  }
  CHOIR_TRY_NOTE(choir_device_check_memory(device, bytes), "states of %s",
                 optimizer->def->name);
  return NULL;
}

static choir_optimizer_t* of_updater(choir_updater_t* updater) {
  return (choir_optimizer_t*)updater;
}

static choir_status_t attach(choir_updater_t* updater, choir_device_t* device,
                             choir_param_set_t* params) {
  choir_optimizer_t* optimizer = of_updater(updater);
  drop_states(optimizer);
  optimizer->is_half_applied = false;
  CHOIR_TRY(
      choir__optimizer_prepare(optimizer, params, updater->model != NULL));
  size_t trainable = 0;
  for (size_t i = 0; i < params->count; ++i)
    trainable += params->params[i]->trainable;
  if (trainable == 0)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "%s: the model has no trainable parameter",
                       optimizer->def->name);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(optimizer->allocator,
                           trainable * sizeof(param_state_t),
                           "optimizer states", &memory));
  optimizer->states = memory;
  optimizer->state_count = trainable;
  param_state_t* state = optimizer->states;
  for (size_t i = 0; i < params->count; ++i) {
    choir_param_t* param = params->params[i];
    if (!param->trainable) continue;
    state->param = param;
    state->group = choir__groups_find(&optimizer->groups, param->name);
    set_part(optimizer, state++);
  }
  optimizer->is_sharded = optimizer->sharding != NULL;
  optimizer->names_per_param = (size_t)choir__optimizer_state_count(optimizer);
  choir_status_t status = check_memory(optimizer, device);
  for (size_t i = 0; i < trainable && !status; ++i)
    for (size_t k = 0; k < optimizer->names_per_param && !status; ++k)
      status = make_state(optimizer, device, &optimizer->states[i], k);
  if (status) drop_states(optimizer);
  return status;
}

static void detach(choir_updater_t* updater) {
  choir_optimizer_t* optimizer = of_updater(updater);
  for (size_t i = 0; i < optimizer->state_count; ++i)
    optimizer->states[i].param = NULL;
}

choir_status_t choir_optimizer_attach(choir_optimizer_t* optimizer,
                                      choir_device_t* device,
                                      choir_param_set_t* params) {
  if (!device || !params)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %s is NULL; needs a device and parameters",
                       optimizer->def->name, device ? "params" : "device");
  return choir__updater_attach(&optimizer->updater, device, params, NULL);
}

size_t choir_optimizer_states(const choir_optimizer_t* optimizer,
                              choir_named_tensor_t* out_states) {
  size_t count = 0;
  for (size_t i = 0; i < optimizer->state_count; ++i) {
    for (size_t k = 0; k < optimizer->names_per_param; ++k, ++count) {
      const param_state_t* state = &optimizer->states[i];
      if (out_states)
        out_states[count] = (choir_named_tensor_t){
            .name = state->names[k],
            .tensor = state->tensors[k],
            .shard = optimizer->is_sharded ? &state->shard : NULL};
    }
  }
  return count;
}

// ---- Updating ----

// Where the settings have the field, else NULL.
static void* field_of(const choir_optimizer_t* optimizer, const char* name,
                      void* settings) {
  const choir_field_t* field = choir_struct_find(optimizer->def->config, name);
  return field ? (char*)settings + field->offset : NULL;
}

static double group_lr(const choir_optimizer_t* optimizer,
                       const choir_param_group_t* group, int64_t step) {
  const double* own = field_of(optimizer, "lr", optimizer->config);
  return (group->lr < 0 ? *own : group->lr) * group->lr_factor *
         choir_schedule_factor(&optimizer->schedule, step) *
         optimizer->lr_scale;
}

void choir__optimizer_scale_lr(choir_optimizer_t* optimizer, double scale) {
  optimizer->lr_scale = scale;
}

size_t choir__optimizer_rates(const choir_optimizer_t* optimizer,
                              double* rates) {
  const choir__groups_t* groups = &optimizer->groups;
  if (rates) {
    rates[0] = optimizer->lr_scale;
    rates[1] = *(const double*)field_of(optimizer, "lr", optimizer->config);
    for (size_t i = 0; i < groups->count; ++i)
      rates[2 + i] = groups->items[i].settings.lr;
  }
  return 2 + groups->count;
}

void choir__optimizer_set_rates(choir_optimizer_t* optimizer,
                                const double* rates) {
  choir__groups_t* groups = &optimizer->groups;
  optimizer->lr_scale = rates[0];
  *(double*)field_of(optimizer, "lr", optimizer->config) = rates[1];
  for (size_t i = 0; i < groups->count; ++i)
    groups->items[i].settings.lr = rates[2 + i];
}

double choir_optimizer_lr(const choir_optimizer_t* optimizer, int64_t step) {
  return group_lr(optimizer, &optimizer->groups.items[0].settings, step);
}

double choir_optimizer_param_lr(const choir_optimizer_t* optimizer,
                                const char* param, int64_t step) {
  const size_t group = choir__groups_find(&optimizer->groups, param);
  return group_lr(optimizer, &optimizer->groups.items[group].settings, step);
}

void choir_optimizer_begin_step(choir_optimizer_t* optimizer, int64_t step) {
  optimizer->step = step;
  for (size_t i = 0; i < optimizer->groups.count; ++i)
    choir_scalar_set(
        optimizer->groups.items[i].lr,
        group_lr(optimizer, &optimizer->groups.items[i].settings, step));
}

// Called around an update, also by graphs in each replay. A replay does not
// tell where it failed, so that one that ends between the two calls counts as
// half applied. Applying the step again would apply it twice to some
// parameters: only other values of them help.
static choir_status_t begin_update(void* self) {
  choir_optimizer_t* optimizer = self;
  if (optimizer->is_half_applied)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "%s: an earlier update failed and may have changed some "
                       "of the parameters; call choir_model_set_updater again "
                       "and restore a checkpoint",
                       optimizer->def->name);
  optimizer->is_half_applied = true;
  optimizer->span = choir_span_begin(CHOIR_SPAN_PHASE);
  return NULL;
}

static choir_status_t end_update(void* self) {
  choir_optimizer_t* optimizer = self;
  choir_span_end(&optimizer->span, "update", NULL, NULL);
  optimizer->is_half_applied = false;
  return NULL;
}

// One call of the op, whose attributes are the settings and then the step.
static choir_status_t run_update(const choir_optimizer_t* optimizer,
                                 choir_op_calls_t* calls,
                                 const choir_param_t* param, size_t group_index,
                                 choir_tensor_t* const* states) {
  const choir_optimizer_def_t* def = optimizer->def;
  const choir__group_t* group = &optimizer->groups.items[group_index];
  _Alignas(8) char attrs[CHOIR__UPDATE_ATTRS_BYTES];
  memcpy(attrs, optimizer->config, def->config->bytes);
  double* lr = field_of(optimizer, "lr", attrs);
  *lr = choir_scalar_get(group->lr);
  if (group->settings.weight_decay >= 0)
    *(double*)field_of(optimizer, "weight_decay", attrs) =
        group->settings.weight_decay;
  *(int64_t*)(void*)(attrs + def->config->bytes) = optimizer->step + 1;
  calls->scalar = group->lr;
  calls->scalar_offset = (size_t)((char*)lr - attrs);
  choir_tensor_t* srcs[2 + CHOIR_OPTIMIZER_MAX_STATES] = {param->value,
                                                          param->grad};
  choir_tensor_t* dsts[1 + CHOIR_OPTIMIZER_MAX_STATES] = {param->value};
  for (int32_t k = 0; k < def->state_count; ++k)
    srcs[2 + k] = dsts[1 + k] = states[k];
  return choir__op_calls_run(calls, def->op, srcs, 2 + def->state_count, attrs,
                             dsts);
}

// An update of an element depends on that element alone: `param` may be a
// shard of one.
static choir_status_t update_param(const choir_optimizer_t* optimizer,
                                   choir_op_calls_t* calls,
                                   const choir_param_t* param, size_t group,
                                   choir_tensor_t* const* states) {
  choir_stream_set_label(calls->stream, param->name);
  choir_tensor_t* none = NULL;
  choir_tensor_t* nones[CHOIR_OPTIMIZER_MAX_STATES] = {NULL};
  const int64_t no_element = 0;
  if (!optimizer->def->keeps(optimizer->config))
    CHOIR_TRY(choir_tensor_create(choir_tensor_device(param->value),
                                  choir_tensor_dtype(param->value), 1,
                                  &no_element, &none));
  for (int32_t k = 0; k < optimizer->def->state_count; ++k) nones[k] = none;
  choir_status_t status =
      run_update(optimizer, calls, param, group, none ? nones : states);
  choir_tensor_release(none);
  CHOIR_TRY_NOTE(status, "%s: %s", optimizer->def->name, param->name);
  return NULL;
}

static choir_status_t update_one(choir_optimizer_t* optimizer,
                                 choir_op_calls_t* calls,
                                 const param_state_t* state) {
  CHOIR_TRY(update_param(optimizer, calls, state->param, state->group,
                         state->tensors));
  return optimizer->is_shared ? choir__op_calls_flush(calls) : NULL;
}

// Group by group: a device takes many calls as one record where attributes and
// scalar are the same.
static choir_status_t update_all(choir_optimizer_t* optimizer,
                                 choir_op_calls_t* calls) {
  for (size_t group = 0; group < optimizer->groups.count; ++group)
    for (size_t i = 0; i < optimizer->state_count; ++i)
      if (optimizer->states[i].group == group &&
          optimizer->states[i].param->trainable)  // it may be frozen since
        CHOIR_TRY(update_one(optimizer, calls, &optimizer->states[i]));
  return NULL;
}

static choir_status_t clip_norm(const choir_optimizer_t* optimizer,
                                choir_stream_t* stream,
                                choir_tensor_t* const* grads, size_t count) {
  if (!(optimizer->clip.norm > 0) || count == 0) return NULL;
  choir_tensor_t* total = NULL;
  CHOIR_TRY(choir__clip_make_total(grads[0], &total));
  choir_status_t status = choir__clip_squares(stream, grads, count, total);
  if (!status)
    status = choir__clip_scale(&optimizer->clip, stream, grads, count, total);
  choir_tensor_release(total);
  return status;
}

static choir_status_t clip_gradients(const choir_optimizer_t* optimizer,
                                     choir_stream_t* stream) {
  if (!choir__clips(&optimizer->clip)) return NULL;
  const size_t bytes = optimizer->state_count * sizeof(choir_tensor_t*);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(optimizer->allocator, bytes, "list of gradients",
                           &memory));
  choir_tensor_t** grads = memory;
  size_t count = 0;
  for (size_t i = 0; i < optimizer->state_count; ++i)
    if (optimizer->states[i].param->trainable)
      grads[count++] = optimizer->states[i].param->grad;
  choir_status_t status =
      choir__clip_values(&optimizer->clip, stream, grads, count);
  if (!status) status = clip_norm(optimizer, stream, grads, count);
  choir_deallocate(optimizer->allocator, memory, bytes);
  CHOIR_TRY_NOTE(status, "%s", optimizer->def->name);
  return NULL;
}

static choir_status_t need_states(const choir_optimizer_t* optimizer) {
  CHOIR_TRY(choir__updater_need_model(&optimizer->updater, optimizer->def->name,
                                      "update"));
  if (optimizer->is_sharded)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "%s: update: this rank keeps a part of the states, and "
                       "DistOpt updates it",
                       optimizer->def->name);
  return NULL;
}

choir_status_t choir_optimizer_update(choir_optimizer_t* optimizer,
                                      choir_stream_t* stream, int64_t step) {
  CHOIR_TRY(need_states(optimizer));
  CHOIR_TRY(clip_gradients(optimizer, stream));
  return choir__optimizer_update_clipped(optimizer, stream, step);
}

choir_status_t choir__optimizer_update_clipped(choir_optimizer_t* optimizer,
                                               choir_stream_t* stream,
                                               int64_t step) {
  CHOIR_TRY(need_states(optimizer));
  CHOIR_TRY(choir_stream_call(stream, begin_update, optimizer));
  choir_optimizer_begin_step(optimizer, step);
  choir_op_calls_t calls;
  choir__op_calls_begin(&calls, stream, "parameters");
  choir_status_t status =
      choir__op_calls_end(&calls, update_all(optimizer, &calls));
  choir_stream_set_label(stream, NULL);
  if (status && calls.has_submitted) return status;  // half applied
  return choir_status_join(status,
                           choir_stream_call(stream, end_update, optimizer));
}

// ---- Shards ----

struct choir__param_shard_s {
  choir_optimizer_t* optimizer;  // borrowed
  const choir_param_t* whole;
  size_t group;
  choir_param_t param;  // as if the shard were one
  choir_tensor_t* states[CHOIR_OPTIMIZER_MAX_STATES];
};

bool choir__optimizer_is_elementwise(const choir_optimizer_t* optimizer) {
  return !optimizer->is_shared;
}

const choir_gradient_clip_t* choir__optimizer_clip(
    const choir_optimizer_t* optimizer) {
  return &optimizer->clip;
}

static const param_state_t* find_state(const choir_optimizer_t* optimizer,
                                       const choir_param_t* param) {
  for (size_t i = 0; i < optimizer->state_count; ++i)
    if (optimizer->states[i].param == param) return &optimizer->states[i];
  return NULL;
}

const choir_param_t* choir__optimizer_find_state(
    const choir_optimizer_t* optimizer, const choir_tensor_t* tensor,
    int32_t* out_number) {
  for (size_t i = 0; i < optimizer->state_count; ++i)
    for (size_t k = 0; k < optimizer->names_per_param; ++k) {
      if (optimizer->states[i].tensors[k] != tensor) continue;
      *out_number = (int32_t)k;
      return optimizer->states[i].param;
    }
  return NULL;
}

void choir__optimizer_set_sharding(choir_optimizer_t* optimizer,
                                   const choir__sharding_t* sharding) {
  optimizer->sharding = sharding;
}

static choir_status_t check_shard(const choir_optimizer_t* optimizer,
                                  const choir_param_t* param, int64_t start,
                                  int64_t count, const choir_tensor_t* grad) {
  const char* kind = optimizer->def->name;
  const param_state_t* state = find_state(optimizer, param);
  if (!state)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: parameter %s has no states: it was not trainable "
                       "at attach",
                       kind, param->name);
  const int64_t first = state->shard.start;
  if (start < first || count < 0 || start - first > state->count - count)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: a shard of %lld elements from %lld of parameter "
                       "%s, of which %lld from %lld are here",
                       kind, (long long)count, (long long)start, param->name,
                       (long long)state->count, (long long)first);
  if (choir_tensor_count(grad) == count) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: a shard of %lld elements of parameter %s with a "
                     "gradient of %lld",
                     kind, (long long)count, param->name,
                     (long long)choir_tensor_count(grad));
}

// Of a shard that has been checked.
static choir_status_t fill_shard(choir__param_shard_t* shard,
                                 const choir_param_t* param, int64_t start,
                                 int64_t count, choir_tensor_t* grad) {
  const param_state_t* state = find_state(shard->optimizer, param);
  shard->whole = param;
  shard->group = state->group;
  choir_tensor_retain(grad);
  shard->param =
      (choir_param_t){.name = param->name, .grad = grad, .trainable = true};
  CHOIR_TRY(
      choir__tensor_stretch(param->value, start, count, &shard->param.value));
  for (size_t k = 0; k < shard->optimizer->names_per_param; ++k)
    CHOIR_TRY(choir__tensor_stretch(state->tensors[k],
                                    start - state->shard.start, count,
                                    &shard->states[k]));
  return NULL;
}

choir_status_t choir__param_shard_create(choir_optimizer_t* optimizer,
                                         choir_param_t* param, int64_t start,
                                         int64_t count, choir_tensor_t* grad,
                                         choir__param_shard_t** out_shard) {
  *out_shard = NULL;
  CHOIR_TRY(check_shard(optimizer, param, start, count, grad));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(optimizer->allocator, sizeof(choir__param_shard_t),
                           "shard of a parameter", &memory));
  choir__param_shard_t* shard = memory;
  shard->optimizer = optimizer;
  choir_status_t status = fill_shard(shard, param, start, count, grad);
  if (status)
    choir__param_shard_destroy(shard);
  else
    *out_shard = shard;
  return status;
}

void choir__param_shard_destroy(choir__param_shard_t* shard) {
  if (!shard) return;
  for (int32_t k = 0; k < CHOIR_OPTIMIZER_MAX_STATES; ++k)
    choir_tensor_release(shard->states[k]);
  choir_tensor_release(shard->param.value);
  choir_tensor_release(shard->param.grad);
  choir_deallocate(shard->optimizer->allocator, shard, sizeof(*shard));
}

choir_status_t choir__param_shard_update(choir__param_shard_t* shard,
                                         choir_stream_t* stream, int64_t step) {
  choir_optimizer_t* optimizer = shard->optimizer;
  if (!shard->whole->trainable) return NULL;  // frozen since
  choir_optimizer_begin_step(optimizer, step);
  choir_op_calls_t calls;
  choir__op_calls_begin(&calls, stream, shard->param.name);
  choir_status_t status = update_param(optimizer, &calls, &shard->param,
                                       shard->group, shard->states);
  status = choir__op_calls_end(&calls, status);
  choir_stream_set_label(stream, NULL);
  return status;
}

// Appends to `text`, which is cut at text_bytes.
static void print_struct(const char* name, const choir_struct_def_t* def,
                         const void* object, char* text, size_t text_bytes) {
  const size_t used = strlen(text);
  snprintf(text + used, text_bytes - used, "%s%s ", used ? "; " : "", name);
  const size_t start = strlen(text);
  choir_struct_print(def, object, text + start, text_bytes - start);
}

const char* choir_optimizer_print(const choir_optimizer_t* optimizer,
                                  char* text, size_t text_bytes) {
  if (text_bytes == 0) return text;
  text[0] = '\0';
  print_struct(optimizer->def->name, optimizer->def->config, optimizer->config,
               text, text_bytes);
  if (choir__clips(&optimizer->clip))
    print_struct("clip", &choir_gradient_clip_def, &optimizer->clip, text,
                 text_bytes);
  for (size_t i = 1; i < optimizer->groups.count; ++i)
    print_struct("group", &choir_param_group_def,
                 &optimizer->groups.items[i].settings, text, text_bytes);
  return text;
}

static uint64_t hash_struct(uint64_t hash, const choir_struct_def_t* def,
                            const void* object) {
  const uint64_t part = choir_struct_hash(def, object);
  return choir_hash_bytes(hash, &part, sizeof part);
}

uint64_t choir_optimizer_hash(const choir_optimizer_t* optimizer) {
  const choir_optimizer_def_t* def = optimizer->def;
  uint64_t hash =
      choir_hash_bytes(CHOIR_HASH_START, def->name, strlen(def->name) + 1);
  hash = hash_struct(hash, def->config, optimizer->config);
  hash = hash_struct(hash, &choir_schedule_config_def, &optimizer->schedule);
  hash = hash_struct(hash, &choir_gradient_clip_def, &optimizer->clip);
  for (size_t i = 1; i < optimizer->groups.count; ++i)
    hash = hash_struct(hash, &choir_param_group_def,
                       &optimizer->groups.items[i].settings);
  return hash;
}

choir_status_t choir_optimizer_take_momentum(choir_optimizer_t* optimizer,
                                             double* out_momentum) {
  *out_momentum = 0;
  const bool* nesterov = field_of(optimizer, "nesterov", optimizer->config);
  if (nesterov && *nesterov)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "%s: nesterov is set; momentum outside the optimizer is "
                       "plain momentum only",
                       optimizer->def->name);
  double* momentum = field_of(optimizer, "momentum", optimizer->config);
  if (!momentum) return NULL;
  *out_momentum = *momentum;
  *momentum = 0;
  return NULL;
}

void choir_optimizer_give_momentum(choir_optimizer_t* optimizer,
                                   double momentum) {
  double* own = field_of(optimizer, "momentum", optimizer->config);
  if (own) *own = momentum;
}

choir_status_t choir_optimizer_set_lr(choir_optimizer_t* optimizer, double lr) {
  double* own = field_of(optimizer, "lr", optimizer->config);
  const double before = *own;
  *own = lr;
  choir_status_t status =
      choir_struct_check(optimizer->def->config, optimizer->config);
  if (status) *own = before;
  choir_optimizer_begin_step(optimizer, optimizer->step);
  return status;
}

// What is recorded in graphs, or laid out for ranks, is not changed any more.
static choir_status_t need_no_model(const choir_optimizer_t* optimizer,
                                    const char* what) {
  if (!optimizer->updater.has_model) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "%s: %s after it got its parameters; needs to be before",
                     optimizer->def->name, what);
}

choir_status_t choir_optimizer_add_param_group(
    choir_optimizer_t* optimizer, const choir_param_group_t* group) {
  CHOIR_TRY(need_no_model(optimizer, "a group was added"));
  if (!group->match)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: the group has no `match`; needs names or patterns",
                       optimizer->def->name);
  CHOIR_TRY_NOTE(choir__groups_add(&optimizer->groups, group), "%s",
                 optimizer->def->name);
  return NULL;
}

choir_status_t choir_optimizer_set_clip(choir_optimizer_t* optimizer,
                                        const choir_gradient_clip_t* clip) {
  CHOIR_TRY(need_no_model(optimizer, "clipping was set"));
  CHOIR_TRY_NOTE(choir_struct_check(&choir_gradient_clip_def, clip), "%s",
                 optimizer->def->name);
  optimizer->clip = *clip;
  return NULL;
}

choir_status_t choir_optimizer_set_group_lr(choir_optimizer_t* optimizer,
                                            size_t group, double lr) {
  const choir__groups_t* groups = &optimizer->groups;
  if (group + 1 >= groups->count)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: group %zu of %zu",
                       optimizer->def->name, group, groups->count - 1);
  const choir_field_t* field = choir_struct_find(&choir_param_group_def, "lr");
  if (!(lr >= 0 && lr <= field->maximum))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: lr of group %zu is %g; needs a number from 0 to %g",
                       optimizer->def->name, group, lr, field->maximum);
  groups->items[group + 1].settings.lr = lr;
  choir_optimizer_begin_step(optimizer, optimizer->step);
  return NULL;
}

choir_status_t choir_optimizer_set_schedule(
    choir_optimizer_t* optimizer, const choir_schedule_config_t* schedule) {
  CHOIR_TRY(choir_struct_check(&choir_schedule_config_def, schedule));
  optimizer->schedule = *schedule;
  return NULL;
}

// ---- As a model's updater ----

static void updater_destroy(choir_updater_t* updater) {
  choir_optimizer_t* optimizer = of_updater(updater);
  choir_allocator_t allocator = optimizer->allocator;
  drop_states(optimizer);
  choir__groups_clear(&optimizer->groups);
  choir_deallocate(allocator, optimizer->config, optimizer->def->config->bytes);
  choir_deallocate(allocator, optimizer, sizeof(*optimizer));
}

static void updater_backward_and_update(choir_updater_t* updater,
                                        choir_scope_t* scope,
                                        choir_var_t* loss) {
  choir_optimizer_t* optimizer = of_updater(updater);
  if (!loss) return;  // no sample, nobody else: nothing to learn
  const choir_backward_options_t all = {.params = updater->params->params,
                                        .param_count = updater->params->count};
  choir_scope_backward(scope, loss, &all);
  if (choir_scope_is_ok(scope))
    choir_scope_fail(
        scope, choir_optimizer_update(optimizer, choir_scope_stream(scope),
                                      choir_scope_step(scope)->step));
}

static size_t updater_states(choir_updater_t* updater,
                             choir_named_tensor_t* out_states) {
  return choir_optimizer_states(of_updater(updater), out_states);
}

static choir_status_t updater_consolidate(choir_updater_t* updater) {
  (void)updater;
  return NULL;
}

static choir_status_t updater_begin_step(choir_updater_t* updater,
                                         int64_t step) {
  choir_optimizer_begin_step(of_updater(updater), step);
  return NULL;
}

static const choir_updater_vtable_t vtable = {
    .destroy = updater_destroy,
    .attach = attach,
    .detach = detach,
    .backward_and_update = updater_backward_and_update,
    .states = updater_states,
    .consolidate = updater_consolidate,
    .begin_step = updater_begin_step,
};

choir_status_t choir_optimizer_create(const choir_optimizer_def_t* def,
                                      const void* config,
                                      choir_optimizer_t** out_optimizer) {
  *out_optimizer = NULL;
  CHOIR_TRY(choir_struct_check(def->config, config));
  if (def->fault(config))
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %s", def->name,
                       def->fault(config));
  choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir_optimizer_t), "optimizer",
                           &memory));
  choir_optimizer_t* optimizer = memory;
  choir_status_t status = choir_allocate(
      allocator, def->config->bytes, "optimizer config", &optimizer->config);
  optimizer->groups.allocator = allocator;
  const choir_param_group_t all = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_PARAM_GROUP_FIELDS)};
  if (!status) status = choir__groups_add(&optimizer->groups, &all);
  if (status) {
    choir_deallocate(allocator, optimizer->config, def->config->bytes);
    choir_deallocate(allocator, optimizer, sizeof(*optimizer));
    return status;
  }
  memcpy(optimizer->config, config, def->config->bytes);
  choir_struct_init(&choir_schedule_config_def, &optimizer->schedule);
  atomic_init(&optimizer->updater.ref_count, 1);
  optimizer->updater.vtable = &vtable;
  optimizer->def = def;
  optimizer->lr_scale = 1;
  optimizer->allocator = allocator;
  *out_optimizer = optimizer;
  return NULL;
}

void choir_optimizer_retain(choir_optimizer_t* optimizer) {
  if (optimizer) choir_updater_retain(&optimizer->updater);
}
void choir_optimizer_release(choir_optimizer_t* optimizer) {
  if (optimizer) choir_updater_release(&optimizer->updater);
}
choir_updater_t* choir_optimizer_updater(choir_optimizer_t* optimizer) {
  return &optimizer->updater;
}
