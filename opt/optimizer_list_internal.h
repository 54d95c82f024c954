// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_OPT_OPTIMIZER_LIST_INTERNAL_H_
#define CHOIR_OPT_OPTIMIZER_LIST_INTERNAL_H_

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

#endif  // CHOIR_OPT_OPTIMIZER_LIST_INTERNAL_H_
