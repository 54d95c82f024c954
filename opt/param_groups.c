// SPDX-License-Identifier: Apache-2.0
#include "opt/optimizer_internal.h"

#include <string.h>

static const choir_field_t fields[] = {
    CHOIR_CONFIG_TABLE(choir_param_group_t, CHOIR_PARAM_GROUP_FIELDS)};
const choir_struct_def_t choir_param_group_def =
    CHOIR_STRUCT_DEF("group", choir_param_group_t, fields,
                     "settings of parameters by their names");

// ---- Names ----

// Whether text [name] is what pattern [begin, end) says.
static bool matches_one(const char* begin, const char* end, const char* name) {
  for (; begin < end && *begin != '*'; ++begin, ++name)
    if (*name != *begin) return false;
  if (begin == end) return *name == '\0';
  do {
    if (matches_one(begin + 1, end, name)) return true;
  } while (*name++);
  return false;
}

static bool matches(const char* patterns, const char* name) {
  while (patterns && *patterns) {
    const size_t length = strcspn(patterns, ",");
    if (matches_one(patterns, patterns + length, name)) return true;
    patterns += length + (patterns[length] == ',');
  }
  return false;
}

size_t choir__groups_find(const choir__groups_t* groups, const char* name) {
  for (size_t i = 1; i < groups->count; ++i)
    if (matches(groups->items[i].settings.match, name)) return i;
  return 0;
}

choir_status_t choir__groups_apply(const choir__groups_t* groups,
                                   const choir_param_set_t* params,
                                   bool is_whole, const char* optimizer) {
  for (size_t i = 1; i < groups->count; ++i) {
    const choir_param_group_t* group = &groups->items[i].settings;
    bool is_found = false;
    for (size_t k = 0; k < params->count; ++k)
      is_found |= matches(group->match, params->params[k]->name);
    if (is_whole && !is_found)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: group %zu, \"%s\", matches no parameter of the "
                         "model; the first of %zu is %s",
                         optimizer, i - 1, group->match, params->count,
                         params->count ? params->params[0]->name : "(none)");
  }
  for (size_t k = 0; k < params->count; ++k) {
    choir_param_t* param = params->params[k];
    if (!groups->items[choir__groups_find(groups, param->name)]
             .settings.trainable)
      param->trainable = false;
  }
  return NULL;
}

// ---- The list ----

// -1 stands for the optimizer's own.
static choir_status_t check(const choir_param_group_t* group) {
  CHOIR_TRY(choir_struct_check(&choir_param_group_def, group));
  const bool is_lr = group->lr < 0 && group->lr != -1;
  if (is_lr || (group->weight_decay < 0 && group->weight_decay != -1))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "group: %s is %g; needs -1, for the optimizer's own, or "
                       "a number from 0",
                       is_lr ? "lr" : "weight_decay",
                       is_lr ? group->lr : group->weight_decay);
  return NULL;
}

static choir_status_t make(choir_allocator_t allocator,
                           const choir_param_group_t* settings,
                           choir__group_t* out_group) {
  out_group->settings = *settings;
  out_group->settings.match = NULL;
  CHOIR_TRY(choir_scalar_create(allocator, "lr", 0, &out_group->lr));
  if (!settings->match) return NULL;
  void* copy = NULL;
  CHOIR_TRY(choir_allocate(allocator, strlen(settings->match) + 1,
                           "names of a group", &copy));
  out_group->settings.match = strcpy(copy, settings->match);
  return NULL;
}

static void free_group(choir_allocator_t allocator, choir__group_t* group) {
  choir_scalar_release(group->lr);
  const char* match = group->settings.match;
  if (match)
    choir_deallocate(allocator, (void*)(uintptr_t)match, strlen(match) + 1);
}

choir_status_t choir__groups_add(choir__groups_t* groups,
                                 const choir_param_group_t* settings) {
  CHOIR_TRY(check(settings));
  const size_t bytes = groups->count * sizeof(choir__group_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(groups->allocator, bytes + sizeof(choir__group_t),
                           "parameter groups", &memory));
  choir__group_t* items = memory;
  choir_status_t status =
      make(groups->allocator, settings, &items[groups->count]);
  if (status) {
    free_group(groups->allocator, &items[groups->count]);
    choir_deallocate(groups->allocator, items, bytes + sizeof(choir__group_t));
    return status;
  }
  if (groups->count > 0) memcpy(items, groups->items, bytes);
  choir_deallocate(groups->allocator, groups->items, bytes);
  groups->items = items;
  ++groups->count;
  return NULL;
}

void choir__groups_clear(choir__groups_t* groups) {
  for (size_t i = 0; i < groups->count; ++i)
    free_group(groups->allocator, &groups->items[i]);
  choir_deallocate(groups->allocator, groups->items,
                   groups->count * sizeof(choir__group_t));
  groups->items = NULL;
  groups->count = 0;
}
