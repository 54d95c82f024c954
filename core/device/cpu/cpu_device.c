// SPDX-License-Identifier: Apache-2.0
#include "core/device/cpu/cpu_device.h"

#include <string.h>

// The host as a device: memory from the pool, records run by the caller or by
// the stream's thread.

_Static_assert(offsetof(choir_cpu_device_t, base) == 0, "common head first");
_Static_assert(offsetof(choir_cpu_stream_t, base) == 0, "common head first");

typedef struct cpu_event_s {
  choir_event_t base;
  choir_queue_mark_t mark;  // zeroed: reached, or never recorded
} cpu_event_t;

static choir_allocator_t device_allocator(choir_device_t* device) {
  return choir_pool_allocator(device->pool);
}

// ---- Memory ----

enum { BUFFER_ALIGNMENT = 64 };

static choir_status_t cpu_alloc(choir_device_t* device, size_t bytes,
                                void** out_data) {
  choir_allocator_t allocator = device_allocator(device);
  *out_data = allocator.alloc(allocator.self, bytes, BUFFER_ALIGNMENT);
  if (*out_data) return NULL;
  return CHOIR_ERROR(OUT_OF_MEMORY,
                     "%s: %zu bytes asked for; the allocator has none left",
                     device->name, bytes);
}

static void cpu_free(choir_device_t* device, void* data, size_t bytes) {
  choir_allocator_t allocator = device_allocator(device);
  allocator.free(allocator.self, data, bytes, BUFFER_ALIGNMENT);
}

static choir_status_t stream_synchronize(choir_stream_t* stream);

static choir_status_t cpu_read(choir_device_t* device, choir_stream_t* stream,
                               const void* device_src, void* host_dst,
                               size_t bytes) {
  (void)device;
  CHOIR_TRY(stream_synchronize(stream));
  if (bytes > 0) memcpy(host_dst, device_src, bytes);
  return NULL;
}

static choir_status_t cpu_write(choir_device_t* device, choir_stream_t* stream,
                                const void* host_src, void* device_dst,
                                size_t bytes) {
  (void)device;
  CHOIR_TRY(stream_synchronize(stream));
  if (bytes > 0) memcpy(device_dst, host_src, bytes);
  return NULL;
}

// ---- Streams ----

static choir_status_t stream_create(choir_device_t* device,
                                    choir_stream_kind_t kind,
                                    choir_stream_t** out_stream) {
  *out_stream = NULL;
  choir_cpu_device_t* cpu = (choir_cpu_device_t*)device;
  choir_allocator_t allocator = device_allocator(device);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir_cpu_stream_t),
                           "choir_stream_create", &memory));
  choir_cpu_stream_t* stream = memory;
  stream->seed = cpu->seed;
  stream->index = (uint32_t)atomic_fetch_add_explicit(&cpu->stream_count, 1,
                                                      memory_order_relaxed);
  if (kind == CHOIR_STREAM_BACKGROUND || !cpu->runs_inline) {
    choir_status_t status = choir__stream_thread_create(
        allocator, &stream->base, cpu->pace, stream, &stream->thread);
    if (status) {
      choir_deallocate(allocator, stream, sizeof(*stream));
      return status;
    }
  }
  *out_stream = &stream->base;
  return NULL;
}

static void stream_destroy(choir_stream_t* stream) {
  choir_cpu_stream_t* cpu_stream = (choir_cpu_stream_t*)stream;
  choir_allocator_t allocator = device_allocator(stream->device);
  choir__stream_thread_destroy(cpu_stream->thread);
  choir_deallocate(allocator, cpu_stream, sizeof(*cpu_stream));
}

static choir_status_t stream_submit(choir_stream_t* stream,
                                    const choir_record_t* record) {
  choir_stream_thread_t* thread = ((choir_cpu_stream_t*)stream)->thread;
  if (!thread) return choir__record_run(record, stream);
  return choir__stream_thread_submit(thread, record);
}

static choir_status_t stream_synchronize(choir_stream_t* stream) {
  choir_stream_thread_t* thread = ((choir_cpu_stream_t*)stream)->thread;
  return thread ? choir__stream_thread_synchronize(thread) : NULL;
}

// ---- Events ----

static choir_status_t event_create(choir_device_t* device,
                                   choir_event_t** out_event) {
  *out_event = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device_allocator(device), sizeof(cpu_event_t),
                           "choir_event_create", &memory));
  *out_event = &((cpu_event_t*)memory)->base;
  return NULL;
}

static void event_destroy(choir_event_t* event) {
  cpu_event_t* cpu_event = (cpu_event_t*)event;
  choir__queue_mark_clear(&cpu_event->mark);
  choir_deallocate(device_allocator(event->device), cpu_event,
                   sizeof(*cpu_event));
}

static choir_status_t event_record(choir_event_t* event,
                                   choir_stream_t* stream) {
  choir_stream_thread_t* thread = ((choir_cpu_stream_t*)stream)->thread;
  choir_queue_mark_t* mark = &((cpu_event_t*)event)->mark;
  if (thread) {
    choir__stream_thread_mark(thread, mark);
  } else {
    // All work of an inline stream is done by the time submit returns.
    choir__queue_mark_clear(mark);
  }
  return NULL;
}

static choir_status_t stream_wait_event(choir_stream_t* stream,
                                        choir_event_t* event) {
  choir_stream_thread_t* thread = ((choir_cpu_stream_t*)stream)->thread;
  const choir_queue_mark_t* mark = &((cpu_event_t*)event)->mark;
  if (thread) return choir__stream_thread_wait_mark(thread, mark);
  return choir__queue_mark_wait(mark);
}

static bool event_is_reached(choir_event_t* event) {
  return choir__queue_mark_is_reached(&((cpu_event_t*)event)->mark);
}

static choir_status_t event_synchronize(choir_event_t* event) {
  return choir__queue_mark_wait(&((cpu_event_t*)event)->mark);
}

// ---- Device ----

static void cpu_destroy(choir_device_t* device) {
  choir_deallocate(device_allocator(device), device,
                   sizeof(choir_cpu_device_t));
}

static const choir_device_vtable_t cpu_vtable = {
    .kernels = "cpu",
    .reproducible_kernels = "defined",
    .is_host = true,
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .read = cpu_read,
    .write = cpu_write,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_submit = stream_submit,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .stream_wait_event = stream_wait_event,
    .event_is_reached = event_is_reached,
    .event_synchronize = event_synchronize,
};

choir_status_t choir__cpu_device_make_with(bool runs_inline,
                                           choir_queue_pace_t pace,
                                           uint64_t seed, choir_pool_t* pool,
                                           choir_device_t** out_device) {
  *out_device = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_pool_allocator(pool),
                           sizeof(choir_cpu_device_t), "choir_device_create",
                           &memory));
  choir_cpu_device_t* device = memory;
  device->base.vtable = &cpu_vtable;
  device->runs_inline = runs_inline;
  device->pace = pace;
  device->seed = seed;
  atomic_init(&device->stream_count, 0);
  *out_device = &device->base;
  return NULL;
}

choir_status_t choir__cpu_device_make(const choir_device_options_t* options,
                                      choir_pool_t* pool,
                                      choir_device_t** out_device) {
  (void)options;
  return choir__cpu_device_make_with(/*runs_inline=*/true, NULL, 0, pool,
                                     out_device);
}
