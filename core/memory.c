// SPDX-License-Identifier: Apache-2.0
#include "core/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/memory_internal.h"

// Below statuses, which take their memory here.

static void* system_alloc(void* self, size_t bytes, size_t alignment) {
  (void)self;
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
