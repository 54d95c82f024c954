// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_LAYERS_ROW_NORM_H_
#define CHOIR_MODEL_LAYERS_ROW_NORM_H_

#include "model/layer_def.h"

// What layer norm and RMS norm share. A row is the last axis.

// Adds parameter `name` of the length of a row, of `value` each.
choir_status_t choir__row_norm_add_param(choir_layer_t* layer, const char* name,
                                         choir_vars_t inputs, double value)
    CHOIR_NODISCARD;
// The mean of each row, (..., 1).
choir_var_t* choir__row_norm_mean(choir_scope_t* scope, choir_var_t* x);
// x / sqrt(mean(x^2) + epsilon) for each row.
choir_var_t* choir__row_norm_scale(choir_scope_t* scope, choir_var_t* x,
                                   double epsilon);

#endif  // CHOIR_MODEL_LAYERS_ROW_NORM_H_
