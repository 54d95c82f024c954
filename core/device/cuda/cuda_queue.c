// SPDX-License-Identifier: Apache-2.0
#include "core/device/cuda/cuda_device.h"

choir_status_t choir__cuda_event_open(cuda_device_t* device,
                                      choir__cu_event_t* out_event) {
  return CUDA_CALL(device, cuEventCreate, out_event,
                   CHOIR__CU_EVENT_DISABLE_TIMING);
}

void choir__cuda_event_close(cuda_device_t* device, choir__cu_event_t event) {
  if (!event) return;
  choir__cuda_warn("an event was not released",
                   CUDA_CALL(device, cuEventDestroy_v2, event));
}

static choir_status_t take_slot(cuda_device_t* device, cuda_queue_t* queue) {
  int slot = 0;
  pthread_mutex_lock(&device->lock);
  while (slot < CUDA_QUEUES && device->queues[slot]) ++slot;
  if (slot < CUDA_QUEUES) {
    device->queues[slot] = queue;
    queue->slot = slot;
  }
  pthread_mutex_unlock(&device->lock);
  if (slot < CUDA_QUEUES) return NULL;
  return CHOIR_ERROR(OUT_OF_RANGE,
                     "choir_stream_create: %s has %d streams, one of them for "
                     "copies; needs one released first",
                     device->who, CUDA_QUEUES);
}

choir_status_t choir__cuda_queue_open(cuda_device_t* device,
                                      cuda_queue_t* queue, int priority) {
  *queue = (cuda_queue_t){.slot = -1};
  choir_status_t status =
      CUDA_CALL(device, cuStreamCreateWithPriority, &queue->handle,
                CHOIR__CU_STREAM_NON_BLOCKING, priority);
  if (!status) status = choir__cuda_event_open(device, &queue->fence);
  if (!status) status = take_slot(device, queue);
  if (status) choir__cuda_queue_close(device, queue);
  return status;
}

void choir__cuda_queue_close(cuda_device_t* device, cuda_queue_t* queue) {
  if (queue->handle) {
    choir__cuda_warn(
        "a stream was released with a failure that nobody asked for",
        CUDA_CALL(device, cuStreamSynchronize, queue->handle));
    choir__cuda_warn("a stream was not released",
                     CUDA_CALL(device, cuStreamDestroy_v2, queue->handle));
  }
  choir__cuda_event_close(device, queue->fence);
  if (queue->handle && queue->slot >= 0) {
    pthread_mutex_lock(&device->lock);
    device->queues[queue->slot] = NULL;
    choir__cuda_pool_forget(device, queue->slot);
    pthread_mutex_unlock(&device->lock);
  }
  *queue = (cuda_queue_t){.slot = -1};
}

choir_status_t choir__cuda_queue_synchronize(cuda_device_t* device,
                                             cuda_queue_t* queue) {
  pthread_mutex_lock(&device->lock);
  const uint64_t launched = queue->launched;
  pthread_mutex_unlock(&device->lock);
  CHOIR_TRY(CUDA_CALL(device, cuStreamSynchronize, queue->handle));
  pthread_mutex_lock(&device->lock);
  if (queue->completed < launched) queue->completed = launched;
  pthread_mutex_unlock(&device->lock);
  return NULL;
}

choir_status_t choir__cuda_queue_follow(cuda_device_t* device,
                                        cuda_queue_t* queue,
                                        cuda_queue_t* other, uint64_t number) {
  if (other->fenced < number) {
    CHOIR_TRY(CUDA_CALL(device, cuEventRecord, other->fence, other->handle));
    // Not more than was handed over for certain: the other stream's thread may
    // be about to launch the next record.
    other->fenced = other->launched;
  }
  if (device->driver->cuEventQuery(other->fence) == CHOIR__CU_SUCCESS) {
    if (other->completed < other->fenced) other->completed = other->fenced;
    return NULL;
  }
  return CUDA_CALL(device, cuStreamWaitEvent, queue->handle, other->fence, 0);
}

choir_status_t choir__cuda_queue_use(cuda_device_t* device, cuda_queue_t* queue,
                                     const void* address) {
  choir_status_t status = NULL;
  pthread_mutex_lock(&device->lock);
  cuda_block_t* block = choir__cuda_pool_find(device, address);
  if (block) {
    status = choir__cuda_block_acquire(device, block, queue);
    choir__cuda_block_use(block, queue);
  }
  pthread_mutex_unlock(&device->lock);
  return status;
}
