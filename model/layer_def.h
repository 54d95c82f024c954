// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_LAYER_DEF_H_
#define CHOIR_MODEL_LAYER_DEF_H_

#include "autograd/functions.h"
#include "model/initializer.h"
#include "model/layers.h"

// For writers of a layer (model/layers/<name>_layer.c). Not installed.

struct choir_layer_def_s {
  const char* name;
  const choir_struct_def_t* config;
  // How many inputs forward takes.
  int32_t min_inputs;
  int32_t max_inputs;
  // What it gives at a place of x (n, places, ...) follows from this place, or
  // it keeps what it needs of those before (choir_step_t.cache).
  bool keeps_places;
  // Once, at the first inputs: checks them and adds the parameters. Layers that
  // it makes become its children, whose names come after its own. May be NULL.
  choir_status_t (*build)(choir_layer_t* layer, choir_vars_t inputs);
  choir_var_t* (*forward)(choir_scope_t* scope, choir_layer_t* layer,
                          choir_vars_t inputs);
};

struct choir_layer_s {
  const choir_layer_def_t* def;
  struct choir_model_s* model;
  char* name;
  void* config;  // a copy of the layer's struct
  bool is_built;
  bool recomputes;           // choir_layer_set_recompute
  choir_layer_t** children;  // the model's, in the order of their making
  size_t child_count;
  size_t child_capacity;
  choir_param_t** params;  // of the model's set
  size_t param_count;
  size_t param_capacity;
};

// Adds parameter "<layer>.<name>" with dense strides as in `layout` (dtype and
// shape too), initialised by the model's seed. A state that training does not
// learn (a running average) has trainable false and no gradient.
choir_status_t choir__layer_add_param(choir_layer_t* layer, const char* name,
                                      const choir_view_t* layout,
                                      const choir_initializer_t* initializer,
                                      bool trainable) CHOIR_NODISCARD;

// *out_x is the first input's view; fails with a sentence when that has not
// from `least` to `most` dimensions.
choir_status_t choir__layer_check_ndim(const choir_layer_t* layer,
                                       choir_vars_t inputs, int32_t least,
                                       int32_t most, const choir_view_t** out_x)
    CHOIR_NODISCARD;

// The random stream of a forward's next dropout.
int64_t choir__layer_dropout_stream(choir_scope_t* scope);

// sync_batch_norm.c: running = (1 - momentum) running + weight * batch, at once
// and in place.
choir_status_t choir__update_average(choir_scope_t* scope,
                                     choir_tensor_t* running,
                                     choir_tensor_t* batch, double momentum,
                                     double weight) CHOIR_NODISCARD;

// Layer `name`, file model/layers/<name>_layer.c: defines its field table and
// definition. Then come .forward = ... and what else the definition has; of one
// input unless it says otherwise.
#define CHOIR_LAYER_DEFINE(layer_name, FIELDS, doc, ...)                     \
  static const choir_field_t layer_name##_fields[] = {                       \
      CHOIR_CONFIG_TABLE(choir_##layer_name##_config_t, FIELDS)};            \
  static const choir_struct_def_t layer_name##_config = CHOIR_STRUCT_DEF(    \
      #layer_name, choir_##layer_name##_config_t, layer_name##_fields, doc); \
  const choir_layer_def_t choir_layer_def_##layer_name = {                   \
      .name = #layer_name,                                                   \
      .config = &layer_name##_config,                                        \
      .min_inputs = 1,                                                       \
      .max_inputs = 1,                                                       \
      __VA_ARGS__}

#endif  // CHOIR_MODEL_LAYER_DEF_H_
