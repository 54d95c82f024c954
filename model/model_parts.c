// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "model/layer_def.h"
#include "model/model_internal.h"

// A model's growing lists, for layers while they are defined.

void choir__model_fail(choir_model_t* model, choir_status_t status) {
  model->error = choir_status_join(model->error, status);
}

// Appends a pointer to a growing array.
static choir_status_t append(choir_allocator_t allocator, void*** items,
                             size_t* count, size_t* capacity, void* item) {
  if (*count == *capacity) {
    const size_t wanted = *capacity ? *capacity * 2 : 16;
    void* memory = NULL;
    CHOIR_TRY(choir_allocate(allocator, wanted * sizeof(void*), "model list",
                             &memory));
    if (*count) memcpy(memory, *items, *count * sizeof(void*));
    choir_deallocate(allocator, *items, *capacity * sizeof(void*));
    *items = memory;
    *capacity = wanted;
  }
  (*items)[(*count)++] = item;
  return NULL;
}

choir_status_t choir__model_add_layer(choir_model_t* model,
                                      choir_layer_t* layer) {
  for (size_t i = 0; layer->name && i < model->layer_count; ++i)
    if (model->layers[i]->name &&
        strcmp(model->layers[i]->name, layer->name) == 0)
      choir__model_fail(
          model, CHOIR_ERROR(ALREADY_EXISTS,
                             "model %s: two layers are called %s; names must "
                             "differ",
                             model->def->name, layer->name));
  return append(choir_device_allocator(model->device), (void***)&model->layers,
                &model->layer_count, &model->layer_capacity, layer);
}

choir_status_t choir__model_add_param(choir_model_t* model,
                                      choir_param_t* param) {
  // An updater keeps a pointer to the array of parameters: it may not move.
  if (model->is_compiled)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "model %s: parameter %s after choir_model_compile; "
                       "define makes all of them",
                       model->def->name, param->name);
  return append(choir_device_allocator(model->device), (void***)&model->params,
                &model->param_count, &model->param_capacity, param);
}

void choir__param_destroy(choir_allocator_t allocator, choir_param_t* param) {
  choir_tensor_release(param->value);
  choir_tensor_release(param->grad);
  if (param->name)
    choir_deallocate(allocator, (void*)param->name, strlen(param->name) + 1);
  choir_deallocate(allocator, param, sizeof(*param));
}

static choir_status_t fill_param(choir_model_t* model, choir_param_t* param,
                                 const char* name, choir_tensor_t* value,
                                 bool trainable) {
  choir_allocator_t allocator = choir_device_allocator(model->device);
  void* text = NULL;
  CHOIR_TRY(choir_allocate(allocator, strlen(name) + 1, name, &text));
  memcpy(text, name, strlen(name) + 1);
  param->name = text;
  choir_tensor_retain(value);
  param->value = value;
  param->trainable = trainable;
  for (size_t i = 0; i < model->param_count; ++i)
    if (strcmp(model->params[i]->name, name) == 0)
      return CHOIR_ERROR(ALREADY_EXISTS,
                         "model %s: two parameters are called %s; names must "
                         "differ",
                         model->def->name, name);
  if (choir_tensor_device(value) != model->device)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: parameter %s lies on another device than the "
                       "model",
                       model->def->name, name);
  if (trainable && !choir_dtype_is_float(choir_tensor_dtype(value)))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "model %s: parameter %s is of dtype %s; a trained one "
                       "needs floating-point numbers",
                       model->def->name, name,
                       choir_dtype_name(choir_tensor_dtype(value)));
  if (trainable)
    CHOIR_TRY(choir_tensor_create_layout(
        model->device, choir_tensor_view(value), &param->grad));
  return choir__model_add_param(model, param);
}

choir_param_t* choir_model_add_param(choir_model_t* model, const char* name,
                                     choir_tensor_t* value, bool trainable) {
  choir_allocator_t allocator = choir_device_allocator(model->device);
  void* memory = NULL;
  choir_status_t status =
      choir_allocate(allocator, sizeof(choir_param_t), "parameter", &memory);
  choir_param_t* param = memory;
  if (!status) {
    status = append(allocator, (void***)&model->own_params,
                    &model->own_param_count, &model->own_param_capacity, param);
    if (status) choir__param_destroy(allocator, param);
  }
  // From here on it goes with the model.
  if (!status) status = fill_param(model, param, name, value, trainable);
  choir__model_fail(model, status);
  return status ? NULL : param;
}
