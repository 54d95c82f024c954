// SPDX-License-Identifier: Apache-2.0
#include "core/allocator.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/allocator_internal.h"
#include "core/clock_internal.h"
#include "core/memory_internal.h"

// A pool keeps blocks that the program has given back. To the address
// sanitizer they would look alive, so it is told.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHOIR_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define CHOIR_ASAN 1
#endif
#if defined(CHOIR_ASAN)
#include <sanitizer/asan_interface.h>
#define FORBID(memory, bytes) ASAN_POISON_MEMORY_REGION(memory, bytes)
#define PERMIT(memory, bytes) ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#else
#define FORBID(memory, bytes) ((void)(memory), (void)(bytes))
#define PERMIT(memory, bytes) ((void)(memory), (void)(bytes))
#endif

// ---- Blocks ----

choir_status_t choir_allocator_set_default(choir_allocator_t allocator) {
  if (!allocator.alloc || !allocator.free) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_allocator_set_default: %s is NULL; needs both "
                       "callbacks",
                       allocator.alloc ? "free" : "alloc");
  }
  if (choir__allocator_replace_default(allocator)) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "choir_allocator_set_default: the default is in use; set "
                     "it before the first object is made");
}

choir_status_t choir_allocate(choir_allocator_t allocator, size_t bytes,
                              const char* what, void** out_memory) {
  *out_memory = NULL;
  // One byte for nothing: callers get an address of their own.
  size_t wanted = bytes ? bytes : 1;
  void* memory = allocator.alloc(allocator.self, wanted, _Alignof(max_align_t));
  if (!memory) {
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "%s: %zu bytes asked for; the allocator has none left",
                       what ? what : "choir_allocate", bytes);
  }
  memset(memory, 0, wanted);
  *out_memory = memory;
  return NULL;
}

void choir_deallocate(choir_allocator_t allocator, void* memory, size_t bytes) {
  if (!memory) return;
  allocator.free(allocator.self, memory, bytes ? bytes : 1,
                 _Alignof(max_align_t));
}

// ---- Pool ----
//
// Blocks come in size classes, four to each power of two (64, 80, 96, 112,
// 128, 160, ...): at most a quarter is lost, and shapes that wander a little
// still find a block. One lock for all classes: it is held for a few
// instructions, never while the base allocates.

enum {
  POOL_ALIGNMENT = 64,  // of every block: a cache line, and the widest vector
  CLASS_LOG2_MIN = 6,
  CLASS_LOG2_MAX = 47,
};
_Static_assert(CHOIR__POOL_CLASSES == (CLASS_LOG2_MAX - CLASS_LOG2_MIN) * 4 + 1,
               "four to each power of two, and the last");

typedef struct pool_block_s {
  struct pool_block_s* next;
} pool_block_t;

struct choir_pool_s {
  choir_allocator_t base;
  uint32_t fork_generation;
  pthread_mutex_t lock;
  choir_pool_stats_t stats;
  pool_block_t* cached[CHOIR__POOL_CLASSES];
};

static size_t class_bytes(int index) {
  size_t power = (size_t)1 << (CLASS_LOG2_MIN + index / 4);
  return power + (size_t)(index % 4) * (power / 4);
}

// The smallest class that holds `bytes`, or -1.
int choir__pool_class_index(size_t bytes) {
  if (bytes <= ((size_t)1 << CLASS_LOG2_MIN)) return 0;
  if (bytes > ((size_t)1 << CLASS_LOG2_MAX)) return -1;
  // 2^log2 < bytes <= 2^(log2 + 1)
  int log2 = 63 - __builtin_clzll((unsigned long long)(bytes - 1));
  size_t power = (size_t)1 << log2;
  size_t step = power / 4;
  size_t steps = (bytes - power + step - 1) / step;  // 1 .. 4
  return (log2 - CLASS_LOG2_MIN) * 4 + (int)steps;
}

size_t choir__pool_class_bytes(size_t bytes) {
  int index = choir__pool_class_index(bytes);
  return index < 0 ? SIZE_MAX : class_bytes(index);
}

static bool pool_is_inherited(const choir_pool_t* pool) {
  return pool->fork_generation != choir__fork_generation();
}

static void* pool_take(choir_pool_t* pool, int index) {
  size_t bytes = class_bytes(index);
  pthread_mutex_lock(&pool->lock);
  pool_block_t* block = pool->cached[index];
  if (block) {
    pool->cached[index] = block->next;
    pool->stats.cached_bytes -= bytes;
  } else {
    ++pool->stats.base_allocations;
  }
  // Counted before the base is asked, so that the peak holds what was wanted
  // at one time.
  pool->stats.in_use_bytes += bytes;
  if (pool->stats.in_use_bytes > pool->stats.peak_bytes)
    pool->stats.peak_bytes = pool->stats.in_use_bytes;
  pthread_mutex_unlock(&pool->lock);
  if (block) return block;

  void* memory = pool->base.alloc(pool->base.self, bytes, POOL_ALIGNMENT);
  if (!memory) {
    // Perhaps the base can serve this once it has the other classes back.
    choir_pool_trim(pool);
    memory = pool->base.alloc(pool->base.self, bytes, POOL_ALIGNMENT);
  }
  if (!memory) {
    pthread_mutex_lock(&pool->lock);
    pool->stats.in_use_bytes -= bytes;
    --pool->stats.base_allocations;
    pthread_mutex_unlock(&pool->lock);
  }
  return memory;
}

static void pool_give(choir_pool_t* pool, void* memory, int index) {
  size_t bytes = class_bytes(index);
  pool_block_t* block = memory;
  pthread_mutex_lock(&pool->lock);
  block->next = pool->cached[index];
  pool->cached[index] = block;
  pool->stats.in_use_bytes -= bytes;
  pool->stats.cached_bytes += bytes;
  // The link at the front stays readable for the pool itself; a stale pointer
  // into the rest is caught.
  FORBID(block + 1, bytes - sizeof(*block));
  pthread_mutex_unlock(&pool->lock);
}

// Alignments above a block's own are made inside a larger block, whose start
// is noted in front of the address that is handed out.
static size_t bytes_with_alignment(size_t bytes, size_t alignment) {
  if (alignment <= POOL_ALIGNMENT) return bytes;
  return bytes > SIZE_MAX - alignment ? SIZE_MAX : bytes + alignment;
}

static void* pool_alloc(void* self, size_t bytes, size_t alignment) {
  choir_pool_t* pool = self;
  size_t wanted = bytes_with_alignment(bytes, alignment);
  int index = choir__pool_class_index(wanted);
  if (index < 0) return NULL;
  // In a forked child the lock may be held for ever. The base (libc) is safe
  // there, and the child's few blocks need no cache.
  char* block = pool_is_inherited(pool)
                    ? pool->base.alloc(pool->base.self, class_bytes(index),
                                       POOL_ALIGNMENT)
                    : pool_take(pool, index);
  if (!block) return NULL;
  PERMIT(block, class_bytes(index));
  char* memory = block;
  if (alignment > POOL_ALIGNMENT) {
    uintptr_t address = (uintptr_t)block + POOL_ALIGNMENT;
    memory +=
        (address + alignment - 1) / alignment * alignment - (uintptr_t)block;
    memcpy(memory - sizeof(block), &block, sizeof(block));
  }
  FORBID(memory + bytes, class_bytes(index) - (size_t)(memory - block) - bytes);
  return memory;
}

static void pool_free(void* self, void* memory, size_t bytes,
                      size_t alignment) {
  if (!memory) return;
  choir_pool_t* pool = self;
  int index = choir__pool_class_index(bytes_with_alignment(bytes, alignment));
  void* block = memory;
  if (alignment > POOL_ALIGNMENT)
    memcpy(&block, (char*)memory - sizeof(block), sizeof(block));
  PERMIT(block, class_bytes(index));
  if (pool_is_inherited(pool)) {
    pool->base.free(pool->base.self, block, class_bytes(index), POOL_ALIGNMENT);
    return;
  }
  pool_give(pool, block, index);
}

choir_status_t choir_pool_create(choir_allocator_t base,
                                 choir_pool_t** out_pool) {
  *out_pool = NULL;
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(base, sizeof(choir_pool_t), "choir_pool_create", &memory));
  choir_pool_t* pool = memory;
  pool->base = base;
  pool->fork_generation = choir__fork_generation();
  if (pthread_mutex_init(&pool->lock, NULL) != 0) {
    choir_deallocate(base, pool, sizeof(*pool));
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "choir_pool_create: the system gave no lock");
  }
  *out_pool = pool;
  return NULL;
}

void choir_pool_destroy(choir_pool_t* pool) {
  if (!pool) return;
  choir_allocator_t base = pool->base;
  choir_pool_trim(pool);
  if (!pool_is_inherited(pool)) pthread_mutex_destroy(&pool->lock);
  choir_deallocate(base, pool, sizeof(*pool));
}

choir_allocator_t choir_pool_allocator(choir_pool_t* pool) {
  return (choir_allocator_t){pool, pool_alloc, pool_free};
}

void choir_pool_trim(choir_pool_t* pool) {
  if (pool_is_inherited(pool)) return;
  for (int index = 0; index < CHOIR__POOL_CLASSES; ++index) {
    size_t bytes = class_bytes(index);
    pthread_mutex_lock(&pool->lock);
    pool_block_t* block = pool->cached[index];
    pool->cached[index] = NULL;
    for (pool_block_t* each = block; each; each = each->next)
      pool->stats.cached_bytes -= bytes;
    pthread_mutex_unlock(&pool->lock);
    while (block) {
      pool_block_t* next = block->next;
      PERMIT(block, bytes);
      pool->base.free(pool->base.self, block, bytes, POOL_ALIGNMENT);
      block = next;
    }
  }
}

choir_pool_stats_t choir_pool_stats(choir_pool_t* pool) {
  // Statistics are not worth a hang in a forked child.
  if (pool_is_inherited(pool)) return pool->stats;
  pthread_mutex_lock(&pool->lock);
  choir_pool_stats_t stats = pool->stats;
  pthread_mutex_unlock(&pool->lock);
  return stats;
}

// ---- Arena ----
//
// A list of chunks in the order in which they are filled. Reset goes back to
// the first chunk and frees none, so that the same round of allocations finds
// all its room again.

enum { ARENA_ALIGNMENT = 16 };

typedef struct arena_chunk_s {
  struct arena_chunk_s* next;
  size_t bytes;  // room after the header
  size_t used;
} arena_chunk_t;

// Keeps the room after the header aligned.
enum {
  CHUNK_HEADER = (sizeof(arena_chunk_t) + ARENA_ALIGNMENT - 1) /
                 ARENA_ALIGNMENT * ARENA_ALIGNMENT
};

struct choir_arena_s {
  choir_allocator_t base;
  size_t chunk_bytes;
  arena_chunk_t* first;
  arena_chunk_t* current;  // the one being filled; all before it are full
};

choir_status_t choir_arena_create(choir_allocator_t base, size_t chunk_bytes,
                                  choir_arena_t** out_arena) {
  *out_arena = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(base, sizeof(choir_arena_t), "choir_arena_create",
                           &memory));
  choir_arena_t* arena = memory;
  arena->base = base;
  arena->chunk_bytes = chunk_bytes < 256 ? 256 : chunk_bytes;
  *out_arena = arena;
  return NULL;
}

void choir_arena_destroy(choir_arena_t* arena) {
  if (!arena) return;
  for (arena_chunk_t* chunk = arena->first; chunk;) {
    arena_chunk_t* next = chunk->next;
    arena->base.free(arena->base.self, chunk, CHUNK_HEADER + chunk->bytes,
                     ARENA_ALIGNMENT);
    chunk = next;
  }
  choir_deallocate(arena->base, arena, sizeof(*arena));
}

void* choir_arena_alloc(choir_arena_t* arena, size_t bytes) {
  if (bytes > SIZE_MAX / 2) return NULL;
  size_t wanted =
      (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
  if (wanted == 0) wanted = ARENA_ALIGNMENT;
  // After a reset the following chunks are empty; one that is too small for
  // this block is passed over until the next reset.
  arena_chunk_t** link = &arena->first;
  arena_chunk_t* chunk = arena->current;
  while (chunk && wanted > chunk->bytes - chunk->used) {
    link = &chunk->next;
    chunk = chunk->next;
  }
  if (!chunk) {
    size_t room = wanted > arena->chunk_bytes ? wanted : arena->chunk_bytes;
    chunk = arena->base.alloc(arena->base.self, CHUNK_HEADER + room,
                              ARENA_ALIGNMENT);
    if (!chunk) return NULL;
    *chunk = (arena_chunk_t){NULL, room, 0};
    *link = chunk;
  }
  arena->current = chunk;
  void* memory = (char*)chunk + CHUNK_HEADER + chunk->used;
  chunk->used += wanted;
  return memory;
}

void choir_arena_reset(choir_arena_t* arena) {
  for (arena_chunk_t* chunk = arena->first; chunk; chunk = chunk->next)
    chunk->used = 0;
  arena->current = arena->first;
}
