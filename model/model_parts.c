// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "model/layer_def.h"
#include "model/model_internal.h"

// A model's growing lists, for layers while they are defined.

void choir__model_fail(choir_model_t* model, choir_status_t status) {
  model->error = choir_status_join(model->error, status);
}

choir_status_t choir__model_take_error(choir_model_t* model) {
  choir_status_t error = model->error;
  model->error = NULL;
  return error;
}

choir_layer_t* choir__model_enter(choir_model_t* model, choir_layer_t* layer) {
  choir_layer_t* before = model->parent;
  model->parent = layer;
  return before;
}

choir_status_t choir__append(choir_allocator_t allocator, void*** items,
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
  choir_allocator_t allocator = choir_device_allocator(model->device);
  choir_layer_t* parent = model->parent;
  for (size_t i = 0; layer->name && i < model->layer_count; ++i)
    if (model->layers[i]->name &&
        strcmp(model->layers[i]->name, layer->name) == 0)
      choir__model_fail(
          model, CHOIR_ERROR(ALREADY_EXISTS,
                             "model %s: two layers are called %s; names must "
                             "differ",
                             model->def->name, layer->name));
  if (parent)
    CHOIR_TRY(choir__append(allocator, (void***)&parent->children,
                            &parent->child_count, &parent->child_capacity,
                            layer));
  choir_status_t status =
      choir__append(allocator, (void***)&model->layers, &model->layer_count,
                    &model->layer_capacity, layer);
  if (status && parent) --parent->child_count;
  return status;
}

choir_status_t choir__model_add_param(choir_model_t* model, const char* name,
                                      choir_tensor_t* value, bool trainable,
                                      choir_param_t** out_param) {
  // Updaters have laid out memory for all there are.
  if (model->is_compiled)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "model %s: parameter %s after choir_model_compile; "
                       "define makes all of them",
                       model->def->name, name);
  CHOIR_TRY_NOTE(
      choir_param_set_add(model->params, name, value, trainable, out_param),
      "model %s", model->def->name);
  return NULL;
}

choir_param_t* choir_model_add_param(choir_model_t* model, const char* name,
                                     choir_tensor_t* value, bool trainable) {
  choir_param_t* param = NULL;
  char* full_name = NULL;
  choir_status_t status =
      choir__full_name(model, model->parent, name, &full_name);
  if (!status)
    status = choir__model_add_param(model, full_name, value, trainable, &param);
  choir__free_text(model, full_name);
  choir__model_fail(model, status);
  return param;
}
