// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_KV_CACHE_H_
#define CHOIR_MODEL_KV_CACHE_H_

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

// The keys and values that causal attention made of the places seen so far, so
// that a model which writes a text computes each new place alone:
//
//   CHOIR_TRY(choir_kv_cache_create(model, 1, 1024, &cache));
//   CHOIR_TRY(choir_model_predict_next(model, cache, prompt, &y));   // (1, t)
//   ... while there is room: a token from the last row of y ...
//   CHOIR_TRY(choir_model_predict_next(model, cache, token, &y));    // (1, 1)
//
// Ownership: unique; the cache retains its model. Threads: those of the model.
typedef struct choir_kv_cache_s choir_kv_cache_t;

// For `samples` texts of at most `places` places each. Memory comes with the
// first prediction: samples x places x the elements of key and value, in each
// layer of attention.
CHOIR_API choir_status_t choir_kv_cache_create(choir_model_t* model,
                                               int64_t samples, int64_t places,
                                               choir_kv_cache_t** out_cache)
    CHOIR_NODISCARD;
CHOIR_API void choir_kv_cache_destroy(choir_kv_cache_t* cache);
// Places that it holds.
CHOIR_API int64_t choir_kv_cache_count(const choir_kv_cache_t* cache);
// Forgets all but the first `count` of them; more: nothing happens.
CHOIR_API void choir_kv_cache_keep(choir_kv_cache_t* cache, int64_t count);

// ---- Of layers without a model ----

// For programs that run layers by scopes of their own
// (choir_layer_create_alone): the same cache, on a device. It is in each step
// (choir_step_t.cache) between _begin with x (samples, t, ...), whose places
// come next, and _end; there is no _end after a _begin that failed. Memory and
// INVALID_ARGUMENT are as above and below; a layer that is given keys of other
// samples or places than x's fails.
CHOIR_API choir_status_t choir_kv_cache_create_alone(
    choir_device_t* device, int64_t samples, int64_t places,
    choir_kv_cache_t** out_cache) CHOIR_NODISCARD;
CHOIR_API choir_status_t choir_kv_cache_begin(choir_kv_cache_t* cache,
                                              const choir_tensor_t* x)
    CHOIR_NODISCARD;
// is_done: the cache holds the places from now on; else what it held.
CHOIR_API void choir_kv_cache_end(choir_kv_cache_t* cache, bool is_done);

// ---- Of a model ----

// Forward, in inference mode, of the places that follow those in the cache: of
// x (samples, t, ...) t places; y has rows of these alone, and the cache holds
// them afterwards. y is what choir_model_predict gives at these places for the
// whole, up to rounding.
//
// INVALID_ARGUMENT: another number of samples than the cache is for, or more
// places than it has room for. FAILED_PRECONDITION: the model has a layer that
// is not known to keep places apart, or attention that is not causal, has a
// mask or has other keys than its own input. Ops that forward calls by itself
// cannot be checked: they must keep places apart too. After a failure the cache
// holds what it held.
CHOIR_API choir_status_t choir_model_predict_next(choir_model_t* model,
                                                  choir_kv_cache_t* cache,
                                                  choir_tensor_t* x,
                                                  choir_tensor_t** out_y)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_MODEL_KV_CACHE_H_
