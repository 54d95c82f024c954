// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/list_macros.h"

#define MAKE_LAYER(name, FIELDS)                                         \
  static choir_layer_t* make_layer_##name(struct choir_model_s* model) { \
    return choir_layer_##name(model, #name);                             \
  }
#define MAKE_OPTIMIZER(T, NAME, name, states, doc)                       \
  static choir_status_t make_optimizer_##name(choir_optimizer_t** out) { \
    return choir_optimizer_##name(out);                                  \
  }
CHOIR_LAYER_LIST(MAKE_LAYER)
CHOIR_OPTIMIZER_LIST(MAKE_OPTIMIZER, )

#define LAYER_ENTRY(name, FIELDS) {#name, make_layer_##name},
const layer_macro_t layer_macros[] = {
    CHOIR_LAYER_LIST(LAYER_ENTRY){NULL, NULL}};

#define OPTIMIZER_ENTRY(T, NAME, name, states, doc) \
  {#name, make_optimizer_##name},
const optimizer_macro_t optimizer_macros[] = {
    CHOIR_OPTIMIZER_LIST(OPTIMIZER_ENTRY, ){NULL, NULL}};

choir_status_t add_group_by_macro(choir_optimizer_t* optimizer) {
  return choir_optimizer_add_group(optimizer, .match = "*.b", .lr_factor = 2);
}
