// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_PARAM_SET_H_
#define CHOIR_MODEL_PARAM_SET_H_

#include "autograd/scope.h"

#ifdef __cplusplus
extern "C" {
#endif

// Parameters and other states (batch norm's averages), in definition order. A
// model makes one and shares it with its updater (an optimizer, DistOpt); a
// program without a model makes its own for choir_optimizer_attach. The set
// owns its parameters with their names, values and gradients, and lives until
// the last one that keeps it lets go.
//
// Ownership: shared. Threads: one thread at a time.

typedef struct choir_param_set_s {
  // To be read; choir_param_set_add writes them. Pointers to parameters stay as
  // they are, the array may move.
  choir_param_t** params;
  size_t count;
} choir_param_set_t;

CHOIR_API choir_status_t choir_param_set_create(choir_device_t* device,
                                                choir_param_set_t** out_set)
    CHOIR_NODISCARD;
CHOIR_API void choir_param_set_retain(choir_param_set_t* set);
CHOIR_API void choir_param_set_release(choir_param_set_t* set);

// Adds a parameter: copies the name, retains the value and, for one that
// training learns (trainable), makes a gradient of its shape and strides.
// *out_param, which may be asked for or not (NULL), is the set's. Updaters that
// were attached before do not see it. ALREADY_EXISTS: the name is taken.
// INVALID_ARGUMENT: the value lies on another device than the set's, or is to
// be trained and of whole numbers.
CHOIR_API choir_status_t choir_param_set_add(
    choir_param_set_t* set, const char* name, choir_tensor_t* value,
    bool trainable, choir_param_t** out_param) CHOIR_NODISCARD;
// The parameter of that name, or NULL.
CHOIR_API choir_param_t* choir_param_set_find(const choir_param_set_t* set,
                                              const char* name);

// Backward writes the parameter's gradient there from now on: shape and strides
// of the value. Retains grad and lets go of the one before.
CHOIR_API void choir_param_use_grad(choir_param_t* param, choir_tensor_t* grad);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_MODEL_PARAM_SET_H_
