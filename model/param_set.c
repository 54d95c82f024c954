// SPDX-License-Identifier: Apache-2.0
#include "model/param_set.h"

#include <stdatomic.h>
#include <string.h>

typedef struct set_s {
  choir_param_set_t shared;  // first
  atomic_int ref_count;
  choir_device_t* device;
  size_t capacity;
} set_t;

static choir_allocator_t allocator_of(const set_t* set) {
  return choir_device_allocator(set->device);
}

choir_status_t choir_param_set_create(choir_device_t* device,
                                      choir_param_set_t** out_set) {
  *out_set = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_device_allocator(device), sizeof(set_t),
                           "parameter set", &memory));
  set_t* set = memory;
  atomic_init(&set->ref_count, 1);
  choir_device_retain(device);
  set->device = device;
  *out_set = &set->shared;
  return NULL;
}

void choir_param_set_retain(choir_param_set_t* set) {
  if (set)
    atomic_fetch_add_explicit(&((set_t*)set)->ref_count, 1,
                              memory_order_relaxed);
}

static void param_destroy(choir_allocator_t allocator, choir_param_t* param) {
  choir_tensor_release(param->value);
  choir_tensor_release(param->grad);
  if (param->name)
    choir_deallocate(allocator, (void*)param->name, strlen(param->name) + 1);
  choir_deallocate(allocator, param, sizeof(*param));
}

static void set_destroy(set_t* set) {
  choir_device_t* device = set->device;
  choir_allocator_t allocator = allocator_of(set);
  for (size_t i = 0; i < set->shared.count; ++i)
    param_destroy(allocator, set->shared.params[i]);
  choir_deallocate(allocator, set->shared.params,
                   set->capacity * sizeof(choir_param_t*));
  choir_deallocate(allocator, set, sizeof(*set));
  choir_device_release(device);
}

void choir_param_set_release(choir_param_set_t* set) {
  if (set && atomic_fetch_sub_explicit(&((set_t*)set)->ref_count, 1,
                                       memory_order_acq_rel) == 1)
    set_destroy((set_t*)set);
}

choir_param_t* choir_param_set_find(const choir_param_set_t* set,
                                    const char* name) {
  for (size_t i = 0; i < set->count; ++i)
    if (strcmp(set->params[i]->name, name) == 0) return set->params[i];
  return NULL;
}

static choir_status_t check_new(const set_t* set, const char* name,
                                choir_tensor_t* value, bool trainable) {
  const choir_dtype_t dtype = choir_tensor_dtype(value);
  if (choir_param_set_find(&set->shared, name))
    return CHOIR_ERROR(ALREADY_EXISTS,
                       "two parameters are called %s; names must differ", name);
  if (choir_tensor_device(value) != set->device)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "parameter %s lies on another device than the others",
                       name);
  if (trainable && !choir_dtype_is_float(dtype))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "parameter %s is of dtype %s; a trained one needs "
                       "floating-point numbers",
                       name, choir_dtype_name(dtype));
  return NULL;
}

static choir_status_t make_room(set_t* set) {
  if (set->shared.count < set->capacity) return NULL;
  const size_t wanted = set->capacity ? 2 * set->capacity : 16;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator_of(set), wanted * sizeof(choir_param_t*),
                           "parameter list", &memory));
  if (set->shared.count)
    memcpy(memory, set->shared.params,
           set->shared.count * sizeof(choir_param_t*));
  choir_deallocate(allocator_of(set), set->shared.params,
                   set->capacity * sizeof(choir_param_t*));
  set->shared.params = memory;
  set->capacity = wanted;
  return NULL;
}

static choir_status_t fill_param(const set_t* set, choir_param_t* param,
                                 const char* name, choir_tensor_t* value,
                                 bool trainable) {
  void* text = NULL;
  CHOIR_TRY(choir_allocate(allocator_of(set), strlen(name) + 1, name, &text));
  memcpy(text, name, strlen(name) + 1);
  param->name = text;
  choir_tensor_retain(value);
  param->value = value;
  param->trainable = trainable;
  return trainable ? choir_tensor_create_layout(
                         set->device, choir_tensor_view(value), &param->grad)
                   : NULL;
}

choir_status_t choir_param_set_add(choir_param_set_t* shared, const char* name,
                                   choir_tensor_t* value, bool trainable,
                                   choir_param_t** out_param) {
  set_t* set = (set_t*)shared;
  if (out_param) *out_param = NULL;
  CHOIR_TRY(check_new(set, name, value, trainable));
  CHOIR_TRY(make_room(set));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator_of(set), sizeof(choir_param_t),
                           "parameter", &memory));
  choir_param_t* param = memory;
  choir_status_t status = fill_param(set, param, name, value, trainable);
  if (status) {
    param_destroy(allocator_of(set), param);
    return status;
  }
  shared->params[shared->count++] = param;
  if (out_param) *out_param = param;
  return NULL;
}

void choir_param_use_grad(choir_param_t* param, choir_tensor_t* grad) {
  choir_tensor_retain(grad);
  choir_tensor_release(param->grad);
  param->grad = grad;
}
