// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_MODEL_INTERNAL_H_
#define CHOIR_MODEL_MODEL_INTERNAL_H_

#include <stdatomic.h>

#include "core/profile.h"
#include "model/model.h"

// The model's insides, for model.c, model_parts.c and layer.c.

struct choir_model_s {
  atomic_int ref_count;
  choir_device_t* device;
  const choir_model_def_t* def;
  void* self;
  int64_t seed;
  int64_t step;
  bool is_compiled;
  bool is_updated;  // backward_and_update came in this step
  choir_span_t forward_span;
  choir_status_t error;  // the first failure of define
  choir_scope_t* scope;
  choir_updater_t* updater;
  choir_update_options_t options;
  choir_layer_t** layers;
  size_t layer_count;
  size_t layer_capacity;
  choir_param_t** params;
  size_t param_count;
  size_t param_capacity;
  choir_tensor_t* loss_sum;  // f64 (1), summed on the device
  choir_tensor_t* correct;   // i64 (1)
  choir_metrics_t metrics;   // the parts that the host counts
};

// model_parts.c
// Keeps the first failure; NULL does nothing.
void choir__model_fail(choir_model_t* model, choir_status_t status);
// Takes the layer over unless it fails; a name that is taken already becomes
// the model's failure.
choir_status_t choir__model_add_layer(choir_model_t* model,
                                      choir_layer_t* layer) CHOIR_NODISCARD;
choir_status_t choir__model_add_param(choir_model_t* model,
                                      choir_param_t* param) CHOIR_NODISCARD;
// layer.c
void choir__layer_destroy(choir_layer_t* layer);

#endif  // CHOIR_MODEL_MODEL_INTERNAL_H_
