// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_ALLOCATOR_INTERNAL_H_
#define CHOIR_CORE_ALLOCATOR_INTERNAL_H_

#include "core/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

// The process default as it stands, without closing the door on
// choir_allocator_set_default: for statuses, which carry the allocator that
// they came from and may arise before the program has set one.
choir_allocator_t choir__allocator_peek_default(void);

// The size that a pool really hands out for `bytes`; SIZE_MAX when `bytes` is
// beyond the largest class.
size_t choir__pool_class_bytes(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_ALLOCATOR_INTERNAL_H_
