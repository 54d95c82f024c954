// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_KV_CACHE_INTERNAL_H_
#define CHOIR_MODEL_KV_CACHE_INTERNAL_H_

#include "autograd/scope.h"
#include "model/kv_cache.h"

// For layers that look at more than one place.

// Puts rows x (n, heads, t, d) of the layer's keys (which 0) or values (1)
// behind those of earlier places, and gives all of them (n, heads, places, d);
// rows of places that did not come yet are zeros or old.
choir_var_t* choir__kv_cache_append(choir_kv_cache_t* cache,
                                    choir_scope_t* scope,
                                    const choir_layer_t* layer, int32_t which,
                                    choir_var_t* x);

// model.c: forward of one input in inference mode, eagerly. cache may be NULL.
choir_status_t choir__model_forward(choir_model_t* model,
                                    choir_kv_cache_t* cache, choir_tensor_t* x,
                                    choir_tensor_t** out_y) CHOIR_NODISCARD;

#endif  // CHOIR_MODEL_KV_CACHE_INTERNAL_H_
