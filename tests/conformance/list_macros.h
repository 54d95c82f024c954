// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_LIST_MACROS_H_
#define CHOIR_TESTS_CONFORMANCE_LIST_MACROS_H_

#include "model/layers.h"
#include "opt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// The macros choir_layer_<name> and choir_optimizer_<name>, which only C can
// use: one function for each line of the two lists, so that a line without its
// macro does not compile.

typedef struct layer_macro_s {
  const char* name;
  choir_layer_t* (*make)(struct choir_model_s* model);
} layer_macro_t;

typedef struct optimizer_macro_s {
  const char* name;
  choir_status_t (*make)(choir_optimizer_t** out_optimizer);
} optimizer_macro_t;

// Both end with a NULL name.
extern const layer_macro_t layer_macros[];
extern const optimizer_macro_t optimizer_macros[];

// choir_optimizer_add_group: "*.b" has twice the rate.
choir_status_t add_group_by_macro(choir_optimizer_t* optimizer);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TESTS_CONFORMANCE_LIST_MACROS_H_
