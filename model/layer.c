// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "model/layer_def.h"
#include "model/model_internal.h"

// The layer table and what all layers share.

const char* const choir_activation_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_ACTIVATION_LIST(NAME)
#undef NAME
        NULL};

const char* const choir_window_pad_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_WINDOW_PAD_LIST(NAME)
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

choir_status_t choir__full_name(const choir_model_t* model,
                                const choir_layer_t* parent, const char* name,
                                char** out_text) {
  const char* before = parent ? parent->name : "";
  const size_t bytes = strlen(before) + strlen(name) + 2;
  char* text = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_device_allocator(model->device), bytes,
                           "name of a layer", &memory));
  *out_text = text = memory;
  snprintf(text, bytes, "%s%s%s", before, parent ? "." : "", name);
  return NULL;
}

void choir__free_text(const choir_model_t* model, char* text) {
  if (text)
    choir_deallocate(choir_device_allocator(model->device), text,
                     strlen(text) + 1);
}

static choir_status_t fill_layer(choir_layer_t* layer, const char* name,
                                 const void* config) {
  const choir_struct_def_t* def = layer->def->config;
  choir_allocator_t allocator = choir_device_allocator(layer->model->device);
  CHOIR_TRY(
      choir__full_name(layer->model, layer->model->parent, name, &layer->name));
  CHOIR_TRY(
      choir_allocate(allocator, def->bytes, "layer config", &layer->config));
  memcpy(layer->config, config, def->bytes);
  CHOIR_TRY_NOTE(choir_struct_check(def, config), "layer %s", layer->name);
  return NULL;
}

choir_layer_t* choir_layer_create(choir_model_t* model, const char* name,
                                  const choir_layer_def_t* def,
                                  const void* config) {
  void* memory = NULL;
  choir_status_t status = choir_allocate(choir_device_allocator(model->device),
                                         sizeof(choir_layer_t), name, &memory);
  choir__model_fail(model, status);
  if (status) return NULL;
  choir_layer_t* layer = memory;
  layer->def = def;
  layer->model = model;
  choir__model_fail(model, fill_layer(layer, name, config));
  status = choir__model_add_layer(model, layer);
  choir__model_fail(model, status);
  if (!status) return layer;
  choir__layer_destroy(layer);
  return NULL;
}

void choir__layer_destroy(choir_layer_t* layer) {
  choir_allocator_t allocator = choir_device_allocator(layer->model->device);
  choir_deallocate(allocator, layer->children,
                   layer->child_capacity * sizeof(void*));
  choir_deallocate(allocator, layer->params,
                   layer->param_capacity * sizeof(void*));
  choir_deallocate(allocator, layer->config, layer->def->config->bytes);
  choir__free_text(layer->model, layer->name);
  choir_deallocate(allocator, layer, sizeof(*layer));
}

static choir_status_t add_param(choir_layer_t* layer, const char* name,
                                choir_tensor_t* value,
                                const choir_initializer_t* initializer,
                                bool trainable) {
  choir_model_t* model = layer->model;
  const choir_random_key_t key = {
      .seed = (uint64_t)model->seed,
      .stream =
          (uint32_t)(model->first_stream + (int64_t)model->params->count)};
  CHOIR_TRY_NOTE(choir_initialize(value, initializer, key), "%s", name);
  choir_param_t* param = NULL;
  CHOIR_TRY(choir__model_add_param(model, name, value, trainable, &param));
  return choir__append(choir_device_allocator(model->device),
                       (void***)&layer->params, &layer->param_count,
                       &layer->param_capacity, param);
}

choir_status_t choir__layer_add_param(choir_layer_t* layer, const char* name,
                                      const choir_view_t* layout,
                                      const choir_initializer_t* initializer,
                                      bool trainable) {
  choir_device_t* device = layer->model->device;
  char* full_name = NULL;
  CHOIR_TRY(choir__full_name(layer->model, layer, name, &full_name));
  choir_tensor_t* value = NULL;
  choir_status_t status = choir_tensor_create_layout(device, layout, &value);
  if (!status)
    status = add_param(layer, full_name, value, initializer, trainable);
  choir_tensor_release(value);
  choir__free_text(layer->model, full_name);
  return status;
}

int64_t choir__layer_dropout_stream(choir_scope_t* scope) {
  // Below are the streams of initial values.
  const int64_t first = 0x20000000;
  return first + choir_scope_next_random_stream(scope);
}

choir_status_t choir__layer_check_ndim(const choir_layer_t* layer,
                                       choir_vars_t inputs, int32_t least,
                                       int32_t most,
                                       const choir_view_t** out_x) {
  const choir_view_t* x = *out_x = choir_var_view(inputs.at[0]);
  if (x->ndim >= least && x->ndim <= most) return NULL;
  char text[128], upto[32] = "";
  if (most == CHOIR_MAX_NDIM)
    snprintf(upto, sizeof upto, " or more");
  else if (most > least)
    snprintf(upto, sizeof upto, " to %d", most);
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s (%s): the input is %s; %d%s dimensions are needed",
                     layer->name, layer->def->name,
                     choir_view_print(x, text, sizeof text), least, upto);
}

static choir_status_t check_inputs(const choir_layer_t* layer,
                                   choir_vars_t inputs) {
  const choir_layer_def_t* def = layer->def;
  if (inputs.count < def->min_inputs || inputs.count > def->max_inputs)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s (%s): %d inputs were given; needs %d at least and "
                       "%d at most",
                       layer->name, def->name, inputs.count, def->min_inputs,
                       def->max_inputs);
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
  choir_layer_t* parent = choir__model_enter(layer->model, layer);
  choir_status_t status =
      layer->def->build ? layer->def->build(layer, inputs) : NULL;
  choir__model_enter(layer->model, parent);
  if (!status) status = choir__model_take_error(layer->model);
  layer->is_built = !status;
  return status;
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
  if (!status && choir_scope_step(scope)->cache && !layer->def->keeps_places)
    status = CHOIR_ERROR(FAILED_PRECONDITION,
                         "%s (%s): is not known to keep places apart, so there "
                         "is no computing the next ones alone",
                         layer->name, layer->def->name);
  if (!status) status = build(layer, inputs);
  if (status) return choir_scope_fail(scope, status);
  const char* outer = choir_scope_label(scope);
  const choir_tape_entry_t* since = choir_scope_tape(scope);
  choir_scope_set_label(scope, layer->name);
  choir_var_t* y = layer->def->forward(scope, layer, inputs);
  if (layer->recomputes) choir_scope_recompute(scope, since, y);
  choir_scope_set_label(scope, outer);
  return y;
}

void choir_layer_set_recompute(choir_layer_t* layer, bool recompute) {
  if (layer) layer->recomputes = recompute;
}

choir_var_t* choir_layer_forward(choir_scope_t* scope, choir_layer_t* layer,
                                 choir_var_t* x) {
  return choir_layer_forward_list(scope, layer, CHOIR_VARS(x));
}

// ---- A layer without a model: one whose model nobody sees ----

static const choir_model_def_t alone = {.name = "alone"};

choir_status_t choir_layer_create_alone(choir_device_t* device,
                                        const char* name,
                                        const choir_layer_def_t* def,
                                        const void* config, int64_t seed,
                                        int64_t first_stream,
                                        choir_layer_t** out_layer) {
  choir_model_t* model = NULL;
  *out_layer = NULL;
  CHOIR_TRY(choir__model_make(device, &alone, NULL, seed, &model));
  model->first_stream = first_stream;
  *out_layer = choir_layer_create(model, name, def, config);
  choir_status_t status = choir__model_take_error(model);
  if (!status) return NULL;
  *out_layer = NULL;
  choir_model_release(model);
  return status;
}

void choir_layer_release(choir_layer_t* layer) {
  if (layer) choir_model_release(layer->model);
}

// Names of a layer's parameters begin with its own and a dot.
choir_param_t* choir_layer_param(const choir_layer_t* layer, size_t index) {
  const choir_param_set_t* set = layer->model->params;
  const size_t length = strlen(layer->name);
  for (size_t i = 0; i < set->count; ++i) {
    const char* name = set->params[i]->name;
    if (strncmp(name, layer->name, length) == 0 && name[length] == '.' &&
        index-- == 0)
      return set->params[i];
  }
  return NULL;
}
