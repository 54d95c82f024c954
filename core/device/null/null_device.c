// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/device_backend.h"

// The skeleton of a device, to copy for a new one: every slot of the vtable in
// its simplest form. It computes nothing of its own (kernels "none"), so all
// ops reach it through the host reference: read, compute, write. Its memory
// happens to lie in the host's, but nobody may look there (is_host = false):
// what runs here also runs on a device whose memory is out of reach.

typedef struct null_device_s {
  choir_device_t base;
  // A real device keeps its handle here.
} null_device_t;

typedef struct null_stream_s {
  choir_stream_t base;
  // A real device keeps its queue here.
} null_stream_t;

typedef struct null_event_s {
  choir_event_t base;
  // A real device keeps its mark in a queue here.
} null_event_t;

static choir_allocator_t object_allocator(choir_device_t* device) {
  return choir_pool_allocator(device->pool);
}

// ---- Memory ----

static choir_status_t null_alloc(choir_device_t* device, size_t bytes,
                                 void** out_data) {
  choir_allocator_t allocator = object_allocator(device);
  *out_data = allocator.alloc(allocator.self, bytes, 64);
  if (*out_data) return NULL;
  return CHOIR_ERROR(OUT_OF_MEMORY,
                     "null: %zu bytes asked for; the allocator has none left",
                     bytes);
}

static void null_free(choir_device_t* device, void* data, size_t bytes) {
  choir_allocator_t allocator = object_allocator(device);
  allocator.free(allocator.self, data, bytes, 64);
}

// Streams run inside submit, so all earlier work is done already.
static choir_status_t null_read(choir_device_t* device, choir_stream_t* stream,
                                const void* device_src, void* host_dst,
                                size_t bytes) {
  (void)device;
  (void)stream;
  if (bytes > 0) memcpy(host_dst, device_src, bytes);
  return NULL;
}

static choir_status_t null_write(choir_device_t* device, choir_stream_t* stream,
                                 const void* host_src, void* device_dst,
                                 size_t bytes) {
  (void)device;
  (void)stream;
  if (bytes > 0) memcpy(device_dst, host_src, bytes);
  return NULL;
}

// ---- Streams ----

static choir_status_t null_stream_create(choir_device_t* device,
                                         choir_stream_kind_t kind,
                                         choir_stream_t** out_stream) {
  (void)kind;  // both kinds run on the caller's thread
  *out_stream = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(object_allocator(device), sizeof(null_stream_t),
                           "choir_stream_create", &memory));
  *out_stream = &((null_stream_t*)memory)->base;
  return NULL;
}

static void null_stream_destroy(choir_stream_t* stream) {
  choir_deallocate(object_allocator(stream->device), stream,
                   sizeof(null_stream_t));
}

static choir_status_t null_stream_submit(choir_stream_t* stream,
                                         const choir_record_t* record) {
  return choir__record_run(record, stream);
}

static choir_status_t null_stream_synchronize(choir_stream_t* stream) {
  (void)stream;
  return NULL;
}

// ---- Events: reached as soon as they are recorded ----

static choir_status_t null_event_create(choir_device_t* device,
                                        choir_event_t** out_event) {
  *out_event = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(object_allocator(device), sizeof(null_event_t),
                           "choir_event_create", &memory));
  *out_event = &((null_event_t*)memory)->base;
  return NULL;
}

static void null_event_destroy(choir_event_t* event) {
  choir_deallocate(object_allocator(event->device), event,
                   sizeof(null_event_t));
}

static choir_status_t null_event_record(choir_event_t* event,
                                        choir_stream_t* stream) {
  (void)event;
  (void)stream;
  return NULL;
}

static choir_status_t null_stream_wait_event(choir_stream_t* stream,
                                             choir_event_t* event) {
  (void)stream;
  (void)event;
  return NULL;
}

static bool null_event_is_reached(choir_event_t* event) {
  (void)event;
  return true;
}

static choir_status_t null_event_synchronize(choir_event_t* event) {
  (void)event;
  return NULL;
}

// ---- Device ----

static void null_destroy(choir_device_t* device) {
  choir_deallocate(object_allocator(device), device, sizeof(null_device_t));
}

static const choir_device_vtable_t null_vtable = {
    .kernels = "none",
    .reproducible_kernels = "none",
    .is_host = false,
    .destroy = null_destroy,
    .alloc = null_alloc,
    .free = null_free,
    .read = null_read,
    .write = null_write,
    .stream_create = null_stream_create,
    .stream_destroy = null_stream_destroy,
    .stream_submit = null_stream_submit,
    .stream_synchronize = null_stream_synchronize,
    .event_create = null_event_create,
    .event_destroy = null_event_destroy,
    .event_record = null_event_record,
    .stream_wait_event = null_stream_wait_event,
    .event_is_reached = null_event_is_reached,
    .event_synchronize = null_event_synchronize,
};

// The function of this device's line in core/device/devices.def.
choir_status_t choir__null_device_make(const choir_device_options_t* options,
                                       choir_pool_t* pool,
                                       choir_device_t** out_device) {
  (void)options;
  *out_device = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_pool_allocator(pool), sizeof(null_device_t),
                           "choir_device_create", &memory));
  null_device_t* device = memory;
  device->base.vtable = &null_vtable;
  *out_device = &device->base;
  return NULL;
}
