// SPDX-License-Identifier: Apache-2.0
#include "core/scalar.h"

#include <stdatomic.h>
#include <stdio.h>

struct choir_scalar_s {
  atomic_int ref_count;
  choir_allocator_t allocator;
  char name[32];
  double value;
};

choir_status_t choir_scalar_create(choir_allocator_t allocator,
                                   const char* name, double value,
                                   choir_scalar_t** out_scalar) {
  *out_scalar = NULL;
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(allocator, sizeof(choir_scalar_t), "scalar", &memory));
  choir_scalar_t* scalar = memory;
  atomic_init(&scalar->ref_count, 1);
  scalar->allocator = allocator;
  snprintf(scalar->name, sizeof(scalar->name), "%s", name);
  scalar->value = value;
  *out_scalar = scalar;
  return NULL;
}

void choir_scalar_retain(choir_scalar_t* scalar) {
  if (scalar)
    atomic_fetch_add_explicit(&scalar->ref_count, 1, memory_order_relaxed);
}

void choir_scalar_release(choir_scalar_t* scalar) {
  if (scalar && atomic_fetch_sub_explicit(&scalar->ref_count, 1,
                                          memory_order_acq_rel) == 1)
    choir_deallocate(scalar->allocator, scalar, sizeof(*scalar));
}

const char* choir_scalar_name(const choir_scalar_t* scalar) {
  return scalar->name;
}
double choir_scalar_get(const choir_scalar_t* scalar) { return scalar->value; }
void choir_scalar_set(choir_scalar_t* scalar, double value) {
  scalar->value = value;
}
