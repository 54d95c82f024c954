// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_ALLOCATOR_H_
#define CHOIR_CORE_ALLOCATOR_H_

#include "core/memory.h"
#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// What is built on choir_allocator_t (core/memory.h): blocks, pools, arenas.

// The process default, which is choir_allocator_system() unless set here. Set
// it before the first object is made; later calls fail with
// FAILED_PRECONDITION.
CHOIR_API choir_status_t
choir_allocator_set_default(choir_allocator_t allocator) CHOIR_NODISCARD;

// A cleared block; `out_memory` is NULL after a failure. `what` names the
// thing in the message ("tensor data").
CHOIR_API choir_status_t choir_allocate(choir_allocator_t allocator,
                                        size_t bytes, const char* what,
                                        void** out_memory) CHOIR_NODISCARD;
CHOIR_API void choir_deallocate(choir_allocator_t allocator, void* memory,
                                size_t bytes);

// A caching allocator over another one: freed blocks are kept by size class
// and handed out again, so that a steady loop asks the base for nothing.
// Unique; every block must be back before _destroy. Thread-safe.
typedef struct choir_pool_s choir_pool_t;

typedef struct choir_pool_stats_s {
  uint64_t base_allocations;  // blocks ever asked from the base
  uint64_t in_use_bytes;      // handed out now (size classes)
  uint64_t cached_bytes;      // kept for reuse
  uint64_t peak_bytes;        // highest in_use_bytes
} choir_pool_stats_t;

CHOIR_API choir_status_t choir_pool_create(choir_allocator_t base,
                                           choir_pool_t** out_pool)
    CHOIR_NODISCARD;
CHOIR_API void choir_pool_destroy(choir_pool_t* pool);
CHOIR_API choir_allocator_t choir_pool_allocator(choir_pool_t* pool);
// Gives every cached block back to the base.
CHOIR_API void choir_pool_trim(choir_pool_t* pool);
CHOIR_API choir_pool_stats_t choir_pool_stats(choir_pool_t* pool);

// Memory that is given back as a whole: blocks live until _reset, which keeps
// the chunks for the next round. Unique. One thread at a time.
typedef struct choir_arena_s choir_arena_t;

CHOIR_API choir_status_t choir_arena_create(choir_allocator_t base,
                                            size_t chunk_bytes,
                                            choir_arena_t** out_arena)
    CHOIR_NODISCARD;
CHOIR_API void choir_arena_destroy(choir_arena_t* arena);
// 16-byte aligned, not cleared; NULL when there is no memory.
CHOIR_API void* choir_arena_alloc(choir_arena_t* arena, size_t bytes);
CHOIR_API void choir_arena_reset(choir_arena_t* arena);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_ALLOCATOR_H_
