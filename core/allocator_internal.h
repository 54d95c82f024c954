// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_ALLOCATOR_INTERNAL_H_
#define CHOIR_CORE_ALLOCATOR_INTERNAL_H_

#include "core/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

// A pool's size classes: the class of `bytes`, -1 beyond the largest; and the
// size that it really hands out for `bytes`, SIZE_MAX when `bytes` is
// beyond the largest class.
enum { CHOIR__POOL_CLASSES = 165 };
int choir__pool_class_index(size_t bytes);
size_t choir__pool_class_bytes(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_ALLOCATOR_INTERNAL_H_
