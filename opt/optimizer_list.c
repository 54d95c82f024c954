// SPDX-License-Identifier: Apache-2.0
// The entries of tensor/optimizers.h as values.
#include "opt/optimizer_internal.h"

#include <string.h>

#define STATE_NAME(T, name, domain) name,
#define DEFINE(T, NAME, name, states, doc)                                  \
  _Static_assert(sizeof(choir_##name##_config_t) ==                         \
                     offsetof(choir_##name##_update_attrs_t, step),         \
                 "the op's attributes begin with the config");              \
  _Static_assert(                                                           \
      sizeof(choir_##name##_update_attrs_t) <= CHOIR__UPDATE_ATTRS_BYTES,   \
      "there is room for them");                                            \
  static const choir_field_t name##_fields[] = {                            \
      CHOIR_CONFIG_TABLE(choir_##name##_config_t, CHOIR_##NAME##_FIELDS)};  \
  static const choir_struct_def_t name##_config =                           \
      CHOIR_STRUCT_DEF(#name, choir_##name##_config_t, name##_fields, doc); \
  static const char* name##_fault(const void* config) {                     \
    const choir_##name##_config_t* c = config;                              \
    (void)c;                                                                \
    return CHOIR_##NAME##_FAULT(c);                                         \
  }                                                                         \
  static bool name##_keeps(const void* config) {                            \
    const choir_##name##_config_t* c = config;                              \
    (void)c;                                                                \
    return CHOIR_##NAME##_KEEPS(c);                                         \
  }                                                                         \
  const choir_optimizer_def_t choir_optimizer_def_##name = {                \
      #name,                                                                \
      &name##_config,                                                       \
      CHOIR_OP_##NAME##_UPDATE,                                             \
      name##_fault,                                                         \
      name##_keeps,                                                         \
      states,                                                               \
      {CHOIR_##NAME##_STATES(STATE_NAME, )}};
CHOIR_OPTIMIZER_LIST(DEFINE, )

static const choir_optimizer_def_t* const defs[] = {
#define DEF(T, NAME, name, states, doc) &choir_optimizer_def_##name,
    CHOIR_OPTIMIZER_LIST(DEF, )
#undef DEF
        NULL};

const choir_optimizer_def_t* choir_optimizer_def_find(const char* name) {
  for (int32_t i = 0; defs[i]; ++i)
    if (strcmp(defs[i]->name, name) == 0) return defs[i];
  return NULL;
}

const choir_optimizer_def_t* choir_optimizer_def_get(int32_t index) {
  const int32_t count = (int32_t)(sizeof(defs) / sizeof(defs[0])) - 1;
  return index >= 0 && index < count ? defs[index] : NULL;
}

const choir_struct_def_t* choir_optimizer_def_config(
    const choir_optimizer_def_t* def) {
  return def->config;
}
