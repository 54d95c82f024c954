// SPDX-License-Identifier: Apache-2.0
// The list of strategies, and settings from text.
#include <stdio.h>
#include <string.h>

#include "dist/strategies/strategy_internal.h"
#include "dist/strategy.h"

static const choir_strategy_def_t* const defs[] = {
#define DEF(name, FIELDS) &choir_strategy_def_##name,
    CHOIR_STRATEGY_LIST(DEF)
#undef DEF
};
enum { DEF_COUNT = sizeof(defs) / sizeof(defs[0]) };

choir_status_t choir_strategy_def_parse(const char* option,
                                        const choir_strategy_def_t** out_def) {
  for (int32_t i = 0; option && i < DEF_COUNT; ++i) {
    *out_def = defs[i];
    if (strcmp(defs[i]->config->name, option) == 0) return NULL;
    if (defs[i]->alias && strcmp(defs[i]->alias, option) == 0) return NULL;
  }
  *out_def = NULL;
  char known[256] = "";
  for (int32_t i = 0; i < DEF_COUNT; ++i) {
    const size_t length = strlen(known);
    snprintf(known + length, sizeof known - length, "%s%s", i ? ", " : "",
             defs[i]->config->name);
  }
  return CHOIR_ERROR(INVALID_ARGUMENT, "dist_option is \"%s\"; known are: %s",
                     option ? option : "(NULL)", known);
}

const choir_strategy_def_t* choir_strategy_def_get(int32_t index) {
  return index >= 0 && index < DEF_COUNT ? defs[index] : NULL;
}

// ---- Settings ----

static choir_status_t refuse_spars(const choir_strategy_def_t* def,
                                   double spars) {
  char having[128] = "";
  for (int32_t i = 0; i < DEF_COUNT; ++i) {
    if (!choir_struct_find(defs[i]->config, "spars")) continue;
    const size_t length = strlen(having);
    snprintf(having + length, sizeof having - length, "%s%s",
             length ? ", " : "", choir_strategy_def_option(defs[i]));
  }
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: spars is %g; only these have such a setting: %s",
                     choir_strategy_def_option(def), spars, having);
}

choir_status_t choir__strategy_config_set(const choir_strategy_def_t* def,
                                          double spars, const char* settings,
                                          void* config) {
  if (spars != 0) {
    const choir_field_t* field = choir_struct_find(def->config, "spars");
    if (!field) return refuse_spars(def, spars);
    *(double*)(void*)((char*)config + field->offset) = spars;
    CHOIR_TRY(choir_struct_check(def->config, config));
  }
  if (settings) CHOIR_TRY(choir_struct_set_list(def->config, config, settings));
  return choir__strategy_check(def, config);
}

choir_status_t choir_strategy_config_read(const char* option, double spars,
                                          const char* settings,
                                          const choir_strategy_def_t** out_def,
                                          choir_strategy_config_t* out_config) {
  *out_def = NULL;
  memset(out_config, 0, sizeof(*out_config));
  const choir_strategy_def_t* def = NULL;
  CHOIR_TRY(choir_strategy_def_parse(option, &def));
  choir_struct_init(def->config, out_config);
  CHOIR_TRY(choir__strategy_config_set(def, spars, settings, out_config));
  *out_def = def;
  return NULL;
}
