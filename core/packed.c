// SPDX-License-Identifier: Apache-2.0
#include "core/packed_backend.h"

#include <pthread.h>
#include <string.h>

#include "core/clock.h"
#include "core/device_backend.h"

enum { ALIGNMENT = 64 };

struct choir__packed_s {
  atomic_int ref_count;
  choir_allocator_t allocator;
  choir__packed_t* next;  // of the same buffer
  uint64_t version;       // of the buffer, whose content this is
  bool is_kept;
  void* data;
  size_t bytes;
  size_t key_bytes;
  char key[];
};

// Of the lists of all buffers; held for a few comparisons.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t version_of(const choir_buffer_t* buffer) {
  return atomic_load_explicit(&buffer->version, memory_order_acquire);
}

static bool is_watched(const choir_buffer_t* buffer) {
  return !buffer->wrapped && buffer->device->vtable->is_host &&
         !atomic_load_explicit(&buffer->is_lent, memory_order_acquire);
}

// *out_pays: the content was asked for before.
static choir__packed_t* find(choir_buffer_t* buffer, const void* key,
                             size_t key_bytes, bool* out_pays) {
  pthread_mutex_lock(&lock);
  const uint64_t version = version_of(buffer);
  *out_pays = buffer->asked_for == version;
  buffer->asked_for = version;
  choir__packed_t* packed = buffer->packed;
  while (packed &&
         (packed->version != version || packed->key_bytes != key_bytes ||
          memcmp(packed->key, key, key_bytes) != 0))
    packed = packed->next;
  if (packed)
    atomic_fetch_add_explicit(&packed->ref_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&lock);
  return packed;
}

choir_status_t choir__packed_take(choir_buffer_t* buffer, const void* key,
                                  size_t key_bytes, size_t bytes,
                                  choir__packed_t** out_packed) {
  *out_packed = NULL;
  if (!is_watched(buffer)) return NULL;
  bool pays = false;
  *out_packed = find(buffer, key, key_bytes, &pays);
  if (*out_packed || !pays) return NULL;
  const choir_allocator_t allocator =
      choir_pool_allocator(buffer->device->pool);
  void* memory = NULL;
  const size_t head = sizeof(choir__packed_t) + key_bytes;
  CHOIR_TRY(choir_allocate(allocator, head, "packed form", &memory));
  choir__packed_t* packed = memory;
  packed->data = allocator.alloc(allocator.self, bytes, ALIGNMENT);
  if (!packed->data) {
    choir_deallocate(allocator, memory, head);
    return CHOIR_ERROR(OUT_OF_MEMORY, "packed form: no %zu bytes", bytes);
  }
  atomic_init(&packed->ref_count, 1);
  packed->allocator = allocator;
  packed->bytes = bytes;
  packed->version = version_of(buffer);
  packed->key_bytes = key_bytes;
  memcpy(packed->key, key, key_bytes);
  *out_packed = packed;
  return NULL;
}

void* choir__packed_data(choir__packed_t* packed) { return packed->data; }

bool choir__packed_is_kept(const choir__packed_t* packed) {
  return packed->is_kept;
}

void choir__packed_release(choir__packed_t* packed) {
  if (!packed || atomic_fetch_sub_explicit(&packed->ref_count, 1,
                                           memory_order_acq_rel) > 1)
    return;
  const choir_allocator_t allocator = packed->allocator;
  allocator.free(allocator.self, packed->data, packed->bytes, ALIGNMENT);
  choir_deallocate(allocator, packed, sizeof(*packed) + packed->key_bytes);
}

static void release_all(choir__packed_t* packed) {
  while (packed) {
    choir__packed_t* next = packed->next;
    packed->next = NULL;
    choir__packed_release(packed);
    packed = next;
  }
}

void choir__packed_keep(choir_buffer_t* buffer, choir__packed_t* packed) {
  if (packed->is_kept) return;
  choir__packed_t* oldest = NULL;
  pthread_mutex_lock(&lock);
  if (packed->version == version_of(buffer)) {
    packed->is_kept = true;
    atomic_fetch_add_explicit(&packed->ref_count, 1, memory_order_relaxed);
    packed->next = buffer->packed;
    buffer->packed = packed;
    for (int32_t i = 1; packed && i < CHOIR__PACKED_FORMS; ++i)
      packed = packed->next;
    if (packed) {
      oldest = packed->next;
      packed->next = NULL;
    }
    atomic_store_explicit(&buffer->has_packed, true, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  release_all(oldest);
}

void choir__packed_drop(choir_buffer_t* buffer) {
  if (!atomic_load_explicit(&buffer->has_packed, memory_order_acquire)) return;
  // The lock may be another thread's, which is not there any more.
  if (choir_process_is_forked_child()) return;
  pthread_mutex_lock(&lock);
  choir__packed_t* all = buffer->packed;
  buffer->packed = NULL;
  atomic_store_explicit(&buffer->has_packed, false, memory_order_release);
  pthread_mutex_unlock(&lock);
  release_all(all);
}

void choir__buffer_wrote(choir_buffer_t* buffer) {
  if (!buffer) return;
  atomic_fetch_add_explicit(&buffer->version, 1, memory_order_acq_rel);
  choir__packed_drop(buffer);
}

void* choir__buffer_place(const choir_buffer_t* buffer) { return buffer->data; }

// ---- Lending ----

void* choir_buffer_data(const choir_buffer_t* buffer) {
  // Also of a buffer that is looked at alone: its owner may not be told when
  // somebody keeps the address and writes there later.
  choir_buffer_t* own = (choir_buffer_t*)(uintptr_t)buffer;
  if (!atomic_load_explicit(&own->is_lent, memory_order_relaxed)) {
    atomic_store_explicit(&own->is_lent, true, memory_order_release);
    choir__packed_drop(own);
  }
  return buffer->data;
}
