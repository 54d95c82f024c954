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
  return append(choir_device_allocator(model->device), (void***)&model->params,
                &model->param_count, &model->param_capacity, param);
}
