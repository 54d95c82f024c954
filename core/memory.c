// SPDX-License-Identifier: Apache-2.0
#include "core/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "core/memory_internal.h"

// Below statuses, which take their memory here.

// Large blocks, weights and images of a batch, ask for pages of 2 MiB: walking
// over them costs the processor fewer looks into its tables. The last fifth,
// which the pool may have added (core/allocator.c), does not: a page of which
// only the beginning is wanted is memory lost. A kernel that has none to give
// is no failure.
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM (4 * HUGE_PAGE)

static void* huge_alloc(size_t bytes) {
  void* memory = NULL;
  if (posix_memalign(&memory, HUGE_PAGE, bytes) != 0) return NULL;
#if defined(MADV_HUGEPAGE)
  const size_t used = bytes - bytes / 5;
  (void)madvise(memory, used / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
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

// The number behind `name` in a file of the kernel's; UINT64_MAX: it has none.
// name "": the first word.
static uint64_t read_number(const char* path, const char* name, uint64_t unit) {
  FILE* file = fopen(path, "re");
  if (!file) return UINT64_MAX;
  char line[256];
  uint64_t value = UINT64_MAX;
  const size_t length = strlen(name);
  while (value == UINT64_MAX && fgets(line, sizeof(line), file)) {
    unsigned long long number = 0;
    if (strncmp(line, name, length) == 0 &&
        sscanf(line + length, " %llu", &number) == 1)
      value = number * unit;
  }
  fclose(file);
  return value;
}

static uint64_t left(uint64_t limit, uint64_t used) {
  if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
  return limit > used ? limit - used : 0;
}

static uint64_t left_of_limit(int resource, const char* used) {
  struct rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return UINT64_MAX;
  return left(limit.rlim_cur, read_number("/proc/self/status", used, 1024));
}

uint64_t choir_memory_available(void) {
  const uint64_t places[] = {
      read_number("/proc/meminfo", "MemAvailable:", 1024),
      left(read_number("/sys/fs/cgroup/memory.max", "", 1),
           read_number("/sys/fs/cgroup/memory.current", "", 1)),
      left(read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", 1),
           read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", "", 1)),
      left_of_limit(RLIMIT_DATA, "VmData:"),
      left_of_limit(RLIMIT_AS, "VmSize:")};
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); ++i)
    if (places[i] < least) least = places[i];
  return least;
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
