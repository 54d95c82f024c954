// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_MEMORY_H_
#define CHOIR_CORE_MEMORY_H_

#include "core/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where memory comes from: a plain value of two callbacks. Objects take one
// at creation and use it for all they own. `free` is told the size and
// alignment that `alloc` was asked for.
//
// Ownership: a plain value; `self` must outlive every object made with it.
// Threads: the callbacks must be thread-safe.

typedef struct choir_allocator_s {
  void* self;
  // Returns NULL when there is no memory. `bytes` > 0, alignment a power of 2.
  void* (*alloc)(void* self, size_t bytes, size_t alignment);
  void (*free)(void* self, void* memory, size_t bytes, size_t alignment);
} choir_allocator_t;

// The C library's allocator.
CHOIR_API choir_allocator_t choir_allocator_system(void);

// Bytes that this process may still take of the host's memory: the least of
// what the system has available, what is left under the limit of the control
// group (versions 1 and 2) and under RLIMIT_DATA and RLIMIT_AS; UINT64_MAX
// where none of them is known. Not what other processes are about to take.
CHOIR_API uint64_t choir_memory_available(void);

// The process default; see choir_allocator_set_default (core/allocator.h).
CHOIR_API choir_allocator_t choir_allocator_default(void);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_MEMORY_H_
