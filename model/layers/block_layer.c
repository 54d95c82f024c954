// SPDX-License-Identifier: Apache-2.0
#include "model/layer_def.h"
#include "model/model_internal.h"

// choir_layer_block: a layer whose functions are the program's.

typedef struct block_s {
  const choir_block_def_t* def;
  void* self;
} block_t;

static choir_var_t* forward(choir_scope_t* scope, choir_layer_t* layer,
                            choir_vars_t inputs) {
  const block_t* block = layer->config;
  return block->def->forward(scope, block->self, inputs);
}

static const choir_struct_def_t block_config = {.name = "block",
                                                .bytes = sizeof(block_t)};
static const choir_layer_def_t block_def = {
    .name = "block",
    .config = &block_config,
    .keeps_places = true,  // as far as its layers do
    .max_inputs = CHOIR_MODEL_MAX_TENSORS,
    .forward = forward};

choir_layer_t* choir_layer_block(choir_model_t* model, const char* name,
                                 const choir_block_def_t* def, void* self) {
  const block_t block = {.def = def, .self = self};
  choir_layer_t* layer = choir_layer_create(model, name, &block_def, &block);
  if (!layer || !layer->name) return layer;  // the model knows
  choir_layer_t* parent = choir__model_enter(model, layer);
  def->define(model, self);
  choir__model_enter(model, parent);
  return layer;
}
