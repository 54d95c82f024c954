// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_PLANS_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_PLANS_H_

#include "tensor/kernels/problem_key.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a library made for problems on one device, kept by key up to a bound.
//
// Threads: the caller's lock.

// A plan of a library begins with this; `key` is set before it is kept.
typedef struct choir__cuda_plan_s {
  choir__key_t key;
  uint64_t used;  // the cache's own: when it was last asked for
} choir__cuda_plan_t;

// Most plans that are kept; the one that was not asked for for longest goes.
#define CHOIR__CUDA_PLANS 512

typedef struct choir__cuda_plans_s {
  uint64_t hashes[CHOIR__CUDA_PLANS];  // beside the plans: one look
  choir__cuda_plan_t* plans[CHOIR__CUDA_PLANS];
  int32_t count;
  uint64_t clock;
} choir__cuda_plans_t;

// NULL: there is none.
choir__cuda_plan_t* choir__cuda_plans_find(choir__cuda_plans_t* plans,
                                           const choir__key_t* key);
// Takes the plan over, and hands out the one that it takes the place of, for
// the caller to destroy; NULL while there is room.
choir__cuda_plan_t* choir__cuda_plans_keep(choir__cuda_plans_t* plans,
                                           choir__cuda_plan_t* plan);
// Hands out one of them; NULL after the last.
choir__cuda_plan_t* choir__cuda_plans_take(choir__cuda_plans_t* plans);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_PLANS_H_
