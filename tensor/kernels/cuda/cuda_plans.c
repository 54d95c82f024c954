// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_plans.h"

choir__cuda_plan_t* choir__cuda_plans_find(choir__cuda_plans_t* plans,
                                           const choir__key_t* key) {
  const uint64_t hash = choir__key_hash(key);
  for (int32_t i = 0; i < plans->count; ++i) {
    if (plans->hashes[i] != hash ||
        !choir__key_equal(&plans->plans[i]->key, key))
      continue;
    plans->plans[i]->used = ++plans->clock;
    return plans->plans[i];
  }
  return NULL;
}

choir__cuda_plan_t* choir__cuda_plans_keep(choir__cuda_plans_t* plans,
                                           choir__cuda_plan_t* plan) {
  int32_t at = plans->count;
  choir__cuda_plan_t* dropped = NULL;
  if (at < CHOIR__CUDA_PLANS) {
    ++plans->count;
  } else {
    at = 0;
    for (int32_t i = 1; i < plans->count; ++i)
      if (plans->plans[i]->used < plans->plans[at]->used) at = i;
    dropped = plans->plans[at];
  }
  plan->used = ++plans->clock;
  plans->hashes[at] = choir__key_hash(&plan->key);
  plans->plans[at] = plan;
  return dropped;
}

choir__cuda_plan_t* choir__cuda_plans_take(choir__cuda_plans_t* plans) {
  return plans->count > 0 ? plans->plans[--plans->count] : NULL;
}
