// SPDX-License-Identifier: Apache-2.0
#include "core/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/memory_internal.h"

// Below statuses, which take their memory here.

// Large blocks, weights and images of a batch, ask for pages of 2 MiB: walking
// over them costs the processor fewer looks into its tables. A kernel that has
// none to give is no failure.
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM (4 * HUGE_PAGE)

static void* huge_alloc(size_t bytes) {
  void* memory = NULL;
  if (posix_memalign(&memory, HUGE_PAGE, bytes) != 0) return NULL;
#if defined(MADV_HUGEPAGE)
  (void)madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  return memory;
}

static void* system_alloc(void* self, size_t bytes, size_t alignment) {
  (void)self;
  if (bytes >= HUGE_FROM && alignment <= HUGE_PAGE) return huge_alloc(bytes);
  if (alignment <= _Alignof(max_align_t)) return malloc(bytes);
  void* memory = NULL;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void system_free(void* self, void* memory, size_t bytes,
                        size_t alignment) {
  (void)self;
  (void)bytes;
  (void)alignment;
  free(memory);
}

choir_allocator_t choir_allocator_system(void) {
  return (choir_allocator_t){NULL, system_alloc, system_free};
}

static pthread_mutex_t default_lock = PTHREAD_MUTEX_INITIALIZER;
static choir_allocator_t default_allocator = {NULL, system_alloc, system_free};
// Once somebody took the default it stays, and is read without the lock.
static atomic_bool default_is_fixed;

choir_allocator_t choir__allocator_peek_default(void) {
  if (atomic_load_explicit(&default_is_fixed, memory_order_acquire))
    return default_allocator;
  pthread_mutex_lock(&default_lock);
  choir_allocator_t allocator = default_allocator;
  pthread_mutex_unlock(&default_lock);
  return allocator;
}

choir_allocator_t choir_allocator_default(void) {
  if (!atomic_load_explicit(&default_is_fixed, memory_order_acquire)) {
    pthread_mutex_lock(&default_lock);
    atomic_store_explicit(&default_is_fixed, true, memory_order_release);
    pthread_mutex_unlock(&default_lock);
  }
  return default_allocator;
}

bool choir__allocator_replace_default(choir_allocator_t allocator) {
  pthread_mutex_lock(&default_lock);
  bool fixed = atomic_load_explicit(&default_is_fixed, memory_order_relaxed);
  if (!fixed) default_allocator = allocator;
  pthread_mutex_unlock(&default_lock);
  return !fixed;
}
