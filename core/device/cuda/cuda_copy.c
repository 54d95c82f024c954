// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/device/cuda/cuda_device.h"

// The GPU copies by itself only from and to pinned memory. Two pieces of it go
// round: while the GPU fills or empties one, the host has the other.

choir_status_t choir__cuda_copier_open(cuda_device_t* device) {
  cuda_copier_t* copier = &device->copier;
  CHOIR_TRY(choir__cuda_queue_open(device, &copier->queue, 0));
  CHOIR_TRY(choir__cuda_event_open(device, &copier->order));
  for (int i = 0; i < CUDA_STAGES; ++i)
    CHOIR_TRY(choir__cuda_event_open(device, &copier->stages[i].event));
  return NULL;
}

void choir__cuda_copier_close(cuda_device_t* device) {
  cuda_copier_t* copier = &device->copier;
  choir__cuda_queue_close(device, &copier->queue);
  choir__cuda_event_close(device, copier->order);
  for (int i = 0; i < CUDA_STAGES; ++i) {
    choir__cuda_event_close(device, copier->stages[i].event);
    if (!copier->stages[i].memory) continue;
    choir__cuda_warn(
        "pinned memory was not released",
        CUDA_CALL(device, cuMemFreeHost, copier->stages[i].memory));
  }
}

// The next copies come after the work of `queue`, whose last record is told,
// and after what others may still do with the memory that they touch.
static choir_status_t order(cuda_device_t* device, cuda_queue_t* queue,
                            const void* address, uint64_t* out_launched) {
  cuda_copier_t* copier = &device->copier;
  for (int i = 0; i < CUDA_STAGES; ++i) {
    if (copier->stages[i].memory) continue;
    void* memory = NULL;
    CHOIR_TRY_NOTE(
        CUDA_CALL(device, cuMemAllocHost_v2, &memory, CUDA_STAGE_BYTES),
        "%d bytes of pinned memory", CUDA_STAGE_BYTES);
    copier->stages[i].memory = memory;
  }
  CHOIR_TRY(CUDA_CALL(device, cuEventRecord, copier->order, queue->handle));
  CHOIR_TRY(CUDA_CALL(device, cuStreamWaitEvent, copier->queue.handle,
                      copier->order, 0));
  choir_status_t status = NULL;
  pthread_mutex_lock(&device->lock);
  *out_launched = queue->launched;
  cuda_block_t* block = choir__cuda_pool_find(device, address);
  if (block) status = choir__cuda_block_acquire(device, block, &copier->queue);
  pthread_mutex_unlock(&device->lock);
  return status;
}

static size_t piece_bytes(size_t bytes, size_t done) {
  const size_t left = bytes - done;
  return left < CUDA_STAGE_BYTES ? left : CUDA_STAGE_BYTES;
}

// Waits until the GPU is done with the stage.
static choir_status_t await_stage(cuda_device_t* device,
                                  const cuda_stage_t* stage) {
  return CUDA_CALL(device, cuEventSynchronize, stage->event);
}

static choir_status_t fetch(cuda_device_t* device, cuda_queue_t* queue,
                            choir__cu_address_t src, char* dst, size_t bytes,
                            uint64_t* out_launched) {
  cuda_copier_t* copier = &device->copier;
  CHOIR_TRY(order(device, queue, (const void*)(uintptr_t)src, out_launched));
  size_t asked = 0;
  size_t done = 0;
  int next = 0;    // the stage that is filled next
  int oldest = 0;  // the one that is emptied next
  while (done < bytes) {
    // All stages are full, or there is nothing more to fill them with.
    if (asked == bytes || (asked > done && next == oldest)) {
      const size_t piece = piece_bytes(bytes, done);
      CHOIR_TRY(await_stage(device, &copier->stages[oldest]));
      memcpy(dst + done, copier->stages[oldest].memory, piece);
      done += piece;
      oldest = (oldest + 1) % CUDA_STAGES;
      continue;
    }
    const size_t piece = piece_bytes(bytes, asked);
    CHOIR_TRY(CUDA_CALL(device, cuMemcpyDtoHAsync_v2,
                        copier->stages[next].memory, src + asked, piece,
                        copier->queue.handle));
    CHOIR_TRY(CUDA_CALL(device, cuEventRecord, copier->stages[next].event,
                        copier->queue.handle));
    asked += piece;
    next = (next + 1) % CUDA_STAGES;
  }
  return NULL;
}

static choir_status_t send(cuda_device_t* device, cuda_queue_t* queue,
                           const char* src, choir__cu_address_t dst,
                           size_t bytes, uint64_t* out_launched) {
  cuda_copier_t* copier = &device->copier;
  CHOIR_TRY(order(device, queue, (const void*)(uintptr_t)dst, out_launched));
  int next = 0;
  for (size_t done = 0; done < bytes;) {
    const cuda_stage_t* stage = &copier->stages[next];
    const size_t piece = piece_bytes(bytes, done);
    CHOIR_TRY(await_stage(device, stage));
    memcpy(stage->memory, src + done, piece);
    CHOIR_TRY(CUDA_CALL(device, cuMemcpyHtoDAsync_v2, dst + done, stage->memory,
                        piece, copier->queue.handle));
    CHOIR_TRY(
        CUDA_CALL(device, cuEventRecord, stage->event, copier->queue.handle));
    done += piece;
    next = (next + 1) % CUDA_STAGES;
  }
  return await_stage(device,
                     &copier->stages[(next + CUDA_STAGES - 1) % CUDA_STAGES]);
}

// The copies are done, and with them what they came after. After a failure none
// may be on its way to a stage that the next one uses.
static void settle(cuda_device_t* device, cuda_queue_t* queue,
                   uint64_t launched, choir_status_t status) {
  if (status) {
    (void)device->driver->cuStreamSynchronize(device->copier.queue.handle);
    return;
  }
  pthread_mutex_lock(&device->lock);
  if (queue->completed < launched) queue->completed = launched;
  pthread_mutex_unlock(&device->lock);
}

choir_status_t choir__cuda_copy_to_host(cuda_device_t* device,
                                        cuda_queue_t* queue,
                                        const void* device_src, void* host_dst,
                                        size_t bytes) {
  uint64_t launched = 0;
  pthread_mutex_lock(&device->copy_lock);
  choir_status_t status =
      fetch(device, queue, (uintptr_t)device_src, host_dst, bytes, &launched);
  settle(device, queue, launched, status);
  pthread_mutex_unlock(&device->copy_lock);
  return status;
}

choir_status_t choir__cuda_copy_to_device(cuda_device_t* device,
                                          cuda_queue_t* queue,
                                          const void* host_src,
                                          void* device_dst, size_t bytes) {
  uint64_t launched = 0;
  pthread_mutex_lock(&device->copy_lock);
  choir_status_t status =
      send(device, queue, host_src, (uintptr_t)device_dst, bytes, &launched);
  settle(device, queue, launched, status);
  pthread_mutex_unlock(&device->copy_lock);
  return status;
}
