// SPDX-License-Identifier: Apache-2.0
#include "core/device/cuda/cuda_device.h"

// What libraries of others need of a device: its context, streams and memory,
// and a place for their handles.

struct cuda_attached_s {
  cuda_attached_t* next;
  const choir_cuda_attachment_t* what;
  void* state;
};

static cuda_device_t* of_device(choir_device_t* device) {
  return (cuda_device_t*)device;
}

const char* choir__cuda_who(choir_device_t* device) {
  return of_device(device)->who;
}

struct CUstream_st* choir__cuda_stream_handle(choir_stream_t* stream) {
  cuda_stream_t* mine = choir__cuda_stream_of(stream);
  mine->seen.library = true;
  return mine->segments ? choir__cuda_segments_stream(mine->segments)
                        : mine->queue.handle;
}

choir_status_t choir__cuda_begin(choir_device_t* device) {
  return choir__cuda_enter(of_device(device));
}

void choir__cuda_end(choir_device_t* device) {
  choir__cuda_leave(of_device(device));
}

choir_status_t choir__cuda_use(choir_stream_t* stream, const void* address) {
  cuda_stream_t* mine = choir__cuda_stream_of(stream);
  CHOIR_TRY(choir__cuda_see_host(mine));
  return choir__cuda_queue_use(of_device(choir_stream_device(stream)),
                               &mine->queue, address);
}

// ---- Attachments ----

static choir_status_t attach(cuda_device_t* device,
                             const choir_cuda_attachment_t* what,
                             void** out_state) {
  for (cuda_attached_t* one = device->attached; one; one = one->next) {
    if (one->what != what) continue;
    *out_state = one->state;
    return NULL;
  }
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device->objects, sizeof(cuda_attached_t),
                           "a library's part of a GPU", &memory));
  cuda_attached_t* attached = memory;
  *attached = (cuda_attached_t){device->attached, what, NULL};
  choir_status_t status = what->open(&device->base, &attached->state);
  if (status) {
    choir_deallocate(device->objects, attached, sizeof(*attached));
    return status;
  }
  device->attached = attached;
  *out_state = attached->state;
  return NULL;
}

choir_status_t choir__cuda_attach(choir_device_t* device,
                                  const choir_cuda_attachment_t* what,
                                  void** out_state) {
  cuda_device_t* cuda = of_device(device);
  *out_state = NULL;
  pthread_mutex_lock(&cuda->attach_lock);
  choir_status_t status = attach(cuda, what, out_state);
  pthread_mutex_unlock(&cuda->attach_lock);
  return status;
}

void choir__cuda_attached_close(cuda_device_t* device) {
  while (device->attached) {
    cuda_attached_t* attached = device->attached;
    device->attached = attached->next;
    attached->what->close(&device->base, attached->state);
    choir_deallocate(device->objects, attached, sizeof(*attached));
  }
}
