// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_OPT_OPTIMIZER_INTERNAL_H_
#define CHOIR_OPT_OPTIMIZER_INTERNAL_H_

#include "core/scalar.h"
#include "opt/optimizer_def.h"
#include "tensor/ops.h"

// An entry of tensor/optimizers.h as a value.
struct choir_optimizer_def_s {
  const char* name;
  const choir_struct_def_t* config;
  choir_op_t op;  // its attributes are the config and then the step
  // What is wrong with settings that are in range; NULL: nothing.
  const char* (*fault)(const void* config);
  // Whether these settings need the states.
  bool (*keeps)(const void* config);
  int32_t state_count;
  const char* states[CHOIR_OPTIMIZER_MAX_STATES];  // names
};

enum {
  CHOIR__UPDATE_ATTRS_BYTES = 160,  // room for the attributes of any update
};

// ---- param_groups.c ----

typedef struct choir__group_s {
  choir_param_group_t settings;  // `match` is a copy of its own
  choir_scalar_t* lr;            // of the step that began last
} choir__group_t;

// The groups of an optimizer. Number 0 has the parameters of no other.
typedef struct choir__groups_s {
  choir_allocator_t allocator;
  choir__group_t* items;
  size_t count;
} choir__groups_t;

// Adds a group; the first one is number 0, whose `match` is NULL.
choir_status_t choir__groups_add(choir__groups_t* groups,
                                 const choir_param_group_t* settings)
    CHOIR_NODISCARD;
void choir__groups_clear(choir__groups_t* groups);
// The number of a parameter's group: the first that matches its name, else 0.
size_t choir__groups_find(const choir__groups_t* groups, const char* name);
// Marks what frozen groups match as not trainable. is_whole: INVALID_ARGUMENT
// names a group that matches none of the parameters.
choir_status_t choir__groups_apply(const choir__groups_t* groups,
                                   const choir_param_set_t* params,
                                   bool is_whole, const char* optimizer)
    CHOIR_NODISCARD;

#endif  // CHOIR_OPT_OPTIMIZER_INTERNAL_H_
