// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "model/layer_def.h"
#include "model/model_internal.h"

// The layer table and what all layers share.

const char* const choir_activation_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_ACTIVATION_LIST(NAME)
#undef NAME
        NULL};

static const choir_layer_def_t* const defs[] = {
#define DEF(name, FIELDS) &choir_layer_def_##name,
    CHOIR_LAYER_LIST(DEF)
#undef DEF
        NULL};

const choir_layer_def_t* choir_layer_def_find(const char* name) {
  for (int32_t i = 0; defs[i]; ++i)
    if (strcmp(defs[i]->name, name) == 0) return defs[i];
  return NULL;
}

const choir_layer_def_t* choir_layer_def_get(int32_t index) {
  const int32_t count = (int32_t)(sizeof(defs) / sizeof(defs[0])) - 1;
  return index >= 0 && index < count ? defs[index] : NULL;
}

const choir_struct_def_t* choir_layer_def_config(const choir_layer_def_t* def) {
  return def->config;
}

const char* choir_layer_name(const choir_layer_t* layer) { return layer->name; }

static char* copy_text(choir_allocator_t allocator, const char* a,
                       const char* b) {
  const size_t a_bytes = strlen(a);
  const size_t b_bytes = b ? strlen(b) + 1 : 0;
  void* memory = NULL;
  choir_status_t status =
      choir_allocate(allocator, a_bytes + b_bytes + 1, "name", &memory);
  choir_status_free(status);
  if (status) return NULL;
  char* text = memory;
  memcpy(text, a, a_bytes);
  if (b) {
    text[a_bytes] = '.';
    memcpy(text + a_bytes + 1, b, b_bytes - 1);
  }
  text[a_bytes + b_bytes] = '\0';
  return text;
}

static void free_text(choir_allocator_t allocator, const char* text) {
  if (text) choir_deallocate(allocator, (void*)text, strlen(text) + 1);
}

choir_layer_t* choir_layer_create(choir_model_t* model, const char* name,
                                  const choir_layer_def_t* def,
                                  const void* config) {
  choir_allocator_t allocator = choir_device_allocator(model->device);
  void* memory = NULL;
  choir_status_t status =
      choir_allocate(allocator, sizeof(choir_layer_t), "layer", &memory);
  if (status) {
    choir__model_fail(model, status);
    return NULL;
  }
  choir_layer_t* layer = memory;
  layer->def = def;
  layer->model = model;
  layer->name = copy_text(allocator, name, NULL);
  status = choir_allocate(allocator, def->config->bytes, "layer config",
                          &layer->config);
  if (!status && !layer->name)
    status = CHOIR_ERROR(OUT_OF_MEMORY, "%s: no memory for its name", name);
  if (!status) {
    memcpy(layer->config, config, def->config->bytes);
    status = choir_struct_check(def->config, config);
    if (status)
      status =
          choir_status_annotate(status, __FILE__, __LINE__, "layer %s", name);
  }
  choir__model_fail(model, status);
  status = choir__model_add_layer(model, layer);
  if (!status) return layer;
  choir__model_fail(model, status);
  choir__layer_destroy(layer);
  return NULL;
}

void choir__layer_destroy(choir_layer_t* layer) {
  choir_allocator_t allocator = choir_device_allocator(layer->model->device);
  for (int32_t i = 0; i < layer->param_count; ++i)
    choir__param_destroy(allocator, layer->params[i]);
  choir_deallocate(allocator, layer->config, layer->def->config->bytes);
  free_text(allocator, layer->name);
  choir_deallocate(allocator, layer, sizeof(*layer));
}

choir_status_t choir__layer_add_param(choir_layer_t* layer, const char* name,
                                      const choir_view_t* layout,
                                      const choir_initializer_t* initializer,
                                      bool trainable) {
  choir_model_t* model = layer->model;
  choir_allocator_t allocator = choir_device_allocator(model->device);
  if (layer->param_count == CHOIR_LAYER_MAX_PARAMS)
    return CHOIR_ERROR(INTERNAL, "%s: more than %d parameters", layer->name,
                       CHOIR_LAYER_MAX_PARAMS);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(allocator, sizeof(choir_param_t), "parameter", &memory));
  choir_param_t* param = memory;
  layer->params[layer->param_count++] = param;
  param->trainable = trainable;
  param->name = copy_text(allocator, layer->name, name);
  if (!param->name)
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: no memory for a name", layer->name);
  CHOIR_TRY(choir_tensor_create_layout(model->device, layout, &param->value));
  if (trainable)
    CHOIR_TRY(choir_tensor_create_layout(model->device, layout, &param->grad));
  const choir_random_key_t key = {.seed = (uint64_t)model->seed,
                                  .stream = (uint32_t)model->param_count};
  CHOIR_TRY_NOTE(choir_initialize(param->value, initializer, key), "%s",
                 param->name);
  return choir__model_add_param(model, param);
}

choir_status_t choir__layer_check_ndim(const choir_layer_t* layer,
                                       choir_vars_t inputs, int32_t ndim,
                                       const choir_view_t** out_x) {
  const choir_view_t* x = *out_x = choir_var_view(inputs.at[0]);
  if (x->ndim == ndim) return NULL;
  char text[128];
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s (%s): the input is %s; %d dimensions are needed",
                     layer->name, layer->def->name,
                     choir_view_print(x, text, sizeof text), ndim);
}

static choir_status_t check_inputs(const choir_layer_t* layer,
                                   choir_vars_t inputs) {
  const choir_layer_def_t* def = layer->def;
  if (inputs.count < def->min_inputs || inputs.count > def->max_inputs)
    return CHOIR_ERROR(
        INVALID_ARGUMENT, "%s (%s): %d inputs were given; %d to %d are needed",
        layer->name, def->name, inputs.count, def->min_inputs, def->max_inputs);
  for (int32_t i = 0; i < inputs.count; ++i)
    if (!choir_var_view(inputs.at[i]))
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: input %d is not a variable of this step",
                         layer->name, i);
  return NULL;
}

static choir_status_t build(choir_layer_t* layer, choir_vars_t inputs) {
  if (layer->is_built) return NULL;
  if (layer->model->is_compiled)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "%s: used for the first time after the model was "
                       "compiled; forward must use every layer",
                       layer->name);
  if (layer->def->build) CHOIR_TRY(layer->def->build(layer, inputs));
  layer->is_built = true;
  return NULL;
}

choir_var_t* choir_layer_forward_list(choir_scope_t* scope,
                                      choir_layer_t* layer,
                                      choir_vars_t inputs) {
  if (!choir_scope_is_ok(scope)) return choir_scope_fail(scope, NULL);
  if (!layer)
    return choir_scope_fail(
        scope, CHOIR_ERROR(INVALID_ARGUMENT,
                           "layer_forward: the layer is NULL; the model's "
                           "define must create it"));
  choir_status_t status = check_inputs(layer, inputs);
  if (!status) status = build(layer, inputs);
  if (status) return choir_scope_fail(scope, status);
  choir_scope_set_label(scope, layer->name);
  choir_var_t* y = layer->def->forward(scope, layer, inputs);
  choir_scope_set_label(scope, NULL);
  return y;
}

choir_var_t* choir_layer_forward(choir_scope_t* scope, choir_layer_t* layer,
                                 choir_var_t* x) {
  return choir_layer_forward_list(scope, layer, CHOIR_VARS(x));
}
