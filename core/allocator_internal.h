// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_ALLOCATOR_INTERNAL_H_
#define CHOIR_CORE_ALLOCATOR_INTERNAL_H_

#include "core/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

// The size that a pool really hands out for `bytes`; SIZE_MAX when `bytes` is
// beyond the largest class.
size_t choir__pool_class_bytes(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_ALLOCATOR_INTERNAL_H_
