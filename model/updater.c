// SPDX-License-Identifier: Apache-2.0
#include "model/updater.h"

#include "model/updater_backend.h"

void choir_updater_retain(choir_updater_t* updater) {
  if (updater)
    atomic_fetch_add_explicit(&updater->ref_count, 1, memory_order_relaxed);
}

void choir_updater_release(choir_updater_t* updater) {
  if (updater && atomic_fetch_sub_explicit(&updater->ref_count, 1,
                                           memory_order_acq_rel) == 1)
    updater->vtable->destroy(updater);
}

choir_status_t choir_updater_consolidate(choir_updater_t* updater) {
  return updater ? updater->vtable->consolidate(updater) : NULL;
}
