// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/device/cuda/cuda_device.h"

// Blocks come in the size classes of the host's pool (core/allocator.c), one
// piece of the driver's each. A steady loop asks the driver for nothing.

static uint32_t bit(int slot) { return (uint32_t)1 << slot; }

// ---- All blocks, by address ----

// How many begin at or before the address.
static size_t rank_of(const cuda_pool_t* pool, choir__cu_address_t address) {
  size_t low = 0;
  size_t high = pool->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (pool->blocks[middle]->address <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

cuda_block_t* choir__cuda_pool_find(cuda_device_t* device, const void* data) {
  const cuda_pool_t* pool = &device->pool;
  const choir__cu_address_t address = (uintptr_t)data;
  const size_t rank = rank_of(pool, address);
  if (rank == 0) return NULL;
  cuda_block_t* block = pool->blocks[rank - 1];
  return address - block->address < block->bytes ? block : NULL;
}

static choir_status_t make_room(cuda_device_t* device) {
  cuda_pool_t* pool = &device->pool;
  if (pool->count < pool->capacity) return NULL;
  const size_t capacity = pool->capacity ? 2 * pool->capacity : 64;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device->objects, capacity * sizeof(cuda_block_t*),
                           "choir_buffer_create", &memory));
  if (pool->count > 0)
    memcpy(memory, pool->blocks, pool->count * sizeof(cuda_block_t*));
  choir_deallocate(device->objects, pool->blocks,
                   pool->capacity * sizeof(cuda_block_t*));
  pool->blocks = memory;
  pool->capacity = capacity;
  return NULL;
}

static void insert(cuda_pool_t* pool, cuda_block_t* block) {
  const size_t rank = rank_of(pool, block->address);
  memmove(pool->blocks + rank + 1, pool->blocks + rank,
          (pool->count - rank) * sizeof(cuda_block_t*));
  pool->blocks[rank] = block;
  ++pool->count;
}

static void erase(cuda_pool_t* pool, const cuda_block_t* block) {
  const size_t rank = rank_of(pool, block->address) - 1;
  --pool->count;
  memmove(pool->blocks + rank, pool->blocks + rank + 1,
          (pool->count - rank) * sizeof(cuda_block_t*));
}

// ---- Order ----

// Drops from `mask` the slots whose record is known to be done.
static uint32_t unfinished(const cuda_device_t* device, const uint64_t* numbers,
                           uint32_t mask) {
  uint32_t left = 0;
  for (int slot = 0; slot < CUDA_QUEUES; ++slot) {
    if ((mask & bit(slot)) && numbers[slot] > device->queues[slot]->completed)
      left |= bit(slot);
  }
  return left;
}

// What its users so far did with the block is what the next one inherits.
static void hand_on(const cuda_device_t* device, cuda_block_t* block) {
  for (int slot = 0; slot < CUDA_QUEUES; ++slot)
    if (block->used_mask & bit(slot))
      block->inherited[slot] = block->used[slot];
  block->inherited_mask = unfinished(device, block->inherited,
                                     block->inherited_mask | block->used_mask);
  block->used_mask = 0;
  block->ordered_mask = 0;
}

choir_status_t choir__cuda_block_acquire(cuda_device_t* device,
                                         cuda_block_t* block,
                                         cuda_queue_t* queue) {
  if (block->ordered_mask & bit(queue->slot)) return NULL;
  block->inherited_mask =
      unfinished(device, block->inherited, block->inherited_mask);
  for (int slot = 0; slot < CUDA_QUEUES; ++slot) {
    if (slot == queue->slot || !(block->inherited_mask & bit(slot))) continue;
    CHOIR_TRY(choir__cuda_queue_follow(device, queue, device->queues[slot],
                                       block->inherited[slot]));
  }
  block->ordered_mask |= bit(queue->slot);
  return NULL;
}

void choir__cuda_block_use(cuda_block_t* block, const cuda_queue_t* queue) {
  block->used[queue->slot] = queue->launched + 1;
  block->used_mask |= bit(queue->slot);
}

// Not ordered_mask: what the stream waited for is done, as it is.
void choir__cuda_pool_forget(cuda_device_t* device, int slot) {
  for (size_t i = 0; i < device->pool.count; ++i) {
    cuda_block_t* block = device->pool.blocks[i];
    block->used_mask &= ~bit(slot);
    block->inherited_mask &= ~bit(slot);
  }
}

// ---- The driver's memory ----

// Under the lock. The driver may take back only what no stream works on.
static void trim(cuda_device_t* device) {
  cuda_pool_t* pool = &device->pool;
  bool is_synchronized = false;
  for (int index = 0; index < CHOIR__POOL_CLASSES; ++index) {
    while (pool->cached[index]) {
      cuda_block_t* block = pool->cached[index];
      hand_on(device, block);
      if (block->inherited_mask && !is_synchronized) {
        choir__cuda_warn("work of which nobody asked failed",
                         CUDA_CALL(device, cuCtxSynchronize));
        is_synchronized = true;
      }
      pool->cached[index] = block->next;
      pool->stats.cached_bytes -= block->bytes;
      choir__cuda_warn("memory was not released",
                       CUDA_CALL(device, cuMemFree_v2, block->address));
      erase(pool, block);
      choir_deallocate(device->objects, block, sizeof(*block));
    }
  }
}

static choir_status_t out_of_memory(cuda_device_t* device, size_t asked,
                                    uint64_t cached) {
  size_t left = 0;
  size_t total = 0;
  (void)device->driver->cuMemGetInfo_v2(&left, &total);
  return CHOIR_ERROR(
      OUT_OF_MEMORY,
      "%s: %zu bytes asked for; %llu are in use and %llu were cached and given "
      "back, and the GPU has %zu left of %zu",
      device->who, asked, (unsigned long long)device->pool.stats.in_use_bytes,
      (unsigned long long)cached, left, total);
}

// A block of class `bytes` that is new. Under the lock.
static choir_status_t grow(cuda_device_t* device, size_t asked, size_t bytes,
                           cuda_block_t** out_block) {
  cuda_pool_t* pool = &device->pool;
  CHOIR_TRY(make_room(device));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device->objects, sizeof(cuda_block_t),
                           "choir_buffer_create", &memory));
  cuda_block_t* block = memory;
  block->bytes = bytes;
  const uint64_t cached = pool->stats.cached_bytes;
  choir__cu_result_t result =
      device->driver->cuMemAlloc_v2(&block->address, bytes);
  if (result == CHOIR__CU_OUT_OF_MEMORY) {
    trim(device);
    result = device->driver->cuMemAlloc_v2(&block->address, bytes);
  }
  if (result == CHOIR__CU_SUCCESS) {
    insert(pool, block);
    ++pool->stats.base_allocations;
    *out_block = block;
    return NULL;
  }
  choir_deallocate(device->objects, block, sizeof(*block));
  if (result == CHOIR__CU_OUT_OF_MEMORY)
    return out_of_memory(device, asked, cached);
  return choir_status_certain(
      choir__cuda_status(device->driver, result, device->who, "cuMemAlloc_v2"));
}

// ---- Blocks for buffers ----

static choir_status_t take(cuda_device_t* device, size_t asked,
                           cuda_block_t** out_block) {
  cuda_pool_t* pool = &device->pool;
  const int index = choir__pool_class_index(asked);
  if (index < 0) return out_of_memory(device, asked, pool->stats.cached_bytes);
  cuda_block_t* block = pool->cached[index];
  if (block) {
    pool->cached[index] = block->next;
    block->next = NULL;
    pool->stats.cached_bytes -= block->bytes;
    hand_on(device, block);
  } else {
    CHOIR_TRY(grow(device, asked, choir__pool_class_bytes(asked), &block));
  }
  pool->stats.in_use_bytes += block->bytes;
  if (pool->stats.in_use_bytes > pool->stats.peak_bytes)
    pool->stats.peak_bytes = pool->stats.in_use_bytes;
  *out_block = block;
  return NULL;
}

choir_status_t choir__cuda_pool_alloc(cuda_device_t* device, size_t bytes,
                                      void** out_data) {
  *out_data = NULL;
  cuda_block_t* block = NULL;
  pthread_mutex_lock(&device->lock);
  choir_status_t status = take(device, bytes, &block);
  pthread_mutex_unlock(&device->lock);
  if (status) return status;
  *out_data = (void*)(uintptr_t)block->address;
  return NULL;
}

void choir__cuda_pool_free(cuda_device_t* device, void* data) {
  cuda_pool_t* pool = &device->pool;
  pthread_mutex_lock(&device->lock);
  cuda_block_t* block = choir__cuda_pool_find(device, data);
  const int index = choir__pool_class_index(block->bytes);
  block->next = pool->cached[index];
  pool->cached[index] = block;
  pool->stats.in_use_bytes -= block->bytes;
  pool->stats.cached_bytes += block->bytes;
  pthread_mutex_unlock(&device->lock);
}

void choir__cuda_pool_trim(cuda_device_t* device) {
  pthread_mutex_lock(&device->lock);
  trim(device);
  pthread_mutex_unlock(&device->lock);
}

void choir__cuda_pool_close(cuda_device_t* device) {
  cuda_pool_t* pool = &device->pool;
  choir__cuda_pool_trim(device);
  choir_deallocate(device->objects, pool->blocks,
                   pool->capacity * sizeof(cuda_block_t*));
  pool->blocks = NULL;
  pool->capacity = 0;
}

choir_pool_stats_t choir__cuda_pool_stats(cuda_device_t* device) {
  pthread_mutex_lock(&device->lock);
  const choir_pool_stats_t stats = device->pool.stats;
  pthread_mutex_unlock(&device->lock);
  return stats;
}
