// SPDX-License-Identifier: Apache-2.0
#include "core/device.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock_internal.h"
#include "core/device_backend.h"
#include "core/log.h"
#include "core/record_internal.h"
#include "core/trace_backend.h"

// The public functions: they check arguments, clear out-parameters, count
// references and call the device's slot. What a device does is in
// core/device/<name>.

// ---- The list ----

typedef struct device_line_s {
  const char* name;
  choir_device_factory_t make;
} device_line_t;

static const device_line_t device_lines[] = {
#define X(name, factory) {#name, factory},
#include "core/device/devices.def"
#undef X
};
enum { DEVICE_LINES = sizeof(device_lines) / sizeof(device_lines[0]) };

// ---- Reference counts ----

static void retain(atomic_int* ref_count) {
  atomic_fetch_add_explicit(ref_count, 1, memory_order_relaxed);
}

// True for the last reference.
static bool release(atomic_int* ref_count) {
  return atomic_fetch_sub_explicit(ref_count, 1, memory_order_acq_rel) == 1;
}

// Destroying a stream joins its thread, and destroying a device joins those of
// its own stream. But the last reference may go on such a thread: a queued
// record can hold the last buffer of a device, or a communicator that owns
// the very stream. A thread cannot join itself, nor wait for a stream that may
// wait for it, so there the work is given to a thread made for it.

static _Thread_local bool runs_records;

void choir__device_thread_begin(void) { runs_records = true; }

static void destroy_outside(void* (*destroy)(void*), void* object,
                            const char* what) {
  if (!runs_records) {
    destroy(object);
    return;
  }
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&thread, &attributes, destroy, object) != 0) {
    choir_log(CHOIR_LOG_WARNING, "core",
              "no thread to release a %s on; its memory is lost", what);
  }
  pthread_attr_destroy(&attributes);
}

// ---- Device ----

// Cores that this process may run on; containers and `taskset` give fewer than
// the machine has. The set grows until the kernel's fits.
static int32_t count_cores(void) {
  for (int cores = 1024; cores <= 1 << 20; cores *= 2) {
    cpu_set_t* set = CPU_ALLOC((size_t)cores);
    if (!set) break;
    size_t bytes = CPU_ALLOC_SIZE((size_t)cores);
    int count =
        sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int32_t)online : 1;
}

static void init_stream(choir_stream_t* stream, choir_device_t* device,
                        choir_stream_kind_t kind, bool is_device_stream);

// Everything made so far goes in reverse; `device` may lack its stream.
static void* destroy_device(void* object) {
  choir_device_t* device = object;
  choir_pool_t* pool = device->pool;
  choir_status_free(choir_trace_stop(device));
  if (device->stream) device->vtable->stream_destroy(device->stream);
  device->vtable->destroy(device);
  choir_pool_destroy(pool);
  return NULL;
}

choir_status_t choir_device_create(const char* name,
                                   const choir_device_options_t* options,
                                   choir_device_t** out_device) {
  *out_device = NULL;
  CHOIR_TRY(choir__check_not_forked("choir_device_create"));
  choir_device_options_t chosen;
  memset(&chosen, 0, sizeof(chosen));
  if (options) chosen = *options;
  if (chosen.threads < 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_device_create: %d threads; needs at least 1, or "
                       "0 for one on each core",
                       chosen.threads);
  }
  if (!chosen.allocator.alloc != !chosen.allocator.free) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_device_create: allocator.%s is NULL; needs both "
                       "callbacks or none",
                       chosen.allocator.alloc ? "free" : "alloc");
  }
  if (!chosen.allocator.alloc) chosen.allocator = choir_allocator_default();
  if (chosen.threads == 0) chosen.threads = count_cores();

  const device_line_t* line = NULL;
  char known[256] = "";
  for (int i = 0; i < DEVICE_LINES; ++i) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
             device_lines[i].name);
    if (name && strcmp(name, device_lines[i].name) == 0)
      line = &device_lines[i];
  }
  if (!line) {
    return CHOIR_ERROR(NOT_FOUND,
                       "choir_device_create: no device is called '%s'; known "
                       "are %s",
                       name ? name : "(null)", known);
  }

  choir_pool_t* pool = NULL;
  CHOIR_TRY(choir_pool_create(chosen.allocator, &pool));
  choir_device_t* device = NULL;
  choir_status_t status = line->make(&chosen, pool, &device);
  if (status) {
    choir_pool_destroy(pool);
    return status;
  }
  atomic_init(&device->ref_count, 1);
  device->name = line->name;
  device->threads = chosen.threads;
  device->pool = pool;
  device->stream = NULL;
  device->is_reproducible = chosen.reproducible;
  device->kernels = chosen.reproducible ? device->vtable->reproducible_kernels
                                        : device->vtable->kernels;
  if (!device->kernels) {
    destroy_device(device);
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "choir_device_create: %s has no kernels whose bits are "
                       "the same everywhere; needs cpu",
                       name);
  }
  choir_stream_t* stream = NULL;
  status = device->vtable->stream_create(device, CHOIR_STREAM_COMPUTE, &stream);
  if (status) {
    destroy_device(device);
    return status;
  }
  init_stream(stream, device, CHOIR_STREAM_COMPUTE, /*is_device_stream=*/true);
  device->stream = stream;
  *out_device = device;
  return NULL;
}

void choir_device_retain(choir_device_t* device) {
  if (device) retain(&device->ref_count);
}

void choir_device_release(choir_device_t* device) {
  if (!device || !release(&device->ref_count)) return;
  // The child of a fork has none of the threads that would be waited for; its
  // copy of the memory goes with the process.
  if (choir_process_is_forked_child()) return;
  destroy_outside(destroy_device, device, "device");
}

const char* choir_device_name(const choir_device_t* device) {
  return device->name;
}

const char* choir_device_kernels(const choir_device_t* device) {
  return device->kernels;
}

bool choir_device_is_reproducible(const choir_device_t* device) {
  return device->is_reproducible;
}

int32_t choir_device_threads(const choir_device_t* device) {
  return device->threads;
}

bool choir_device_is_host(const choir_device_t* device) {
  return device->vtable->is_host;
}

choir_allocator_t choir_device_allocator(choir_device_t* device) {
  return choir_pool_allocator(device->pool);
}

void choir_device_trim(choir_device_t* device) {
  if (device->vtable->trim) device->vtable->trim(device);
  choir_pool_trim(device->pool);
}

choir_pool_stats_t choir_device_memory(choir_device_t* device) {
  if (device->vtable->memory) return device->vtable->memory(device);
  return choir_pool_stats(device->pool);
}

choir_status_t choir_device_check_memory(choir_device_t* device,
                                         uint64_t bytes) {
  // Small needs are not worth the look.
  if (!device->vtable->is_host || bytes < ((uint64_t)64 << 20)) return NULL;
  const uint64_t available = choir_memory_available();
  if (bytes <= available) return NULL;
  return CHOIR_ERROR(
      OUT_OF_MEMORY, "%s: %.2f GB are needed and %.2f GB are left",
      device->name, 1e-9 * (double)bytes, 1e-9 * (double)available);
}

choir_stream_t* choir_device_stream(choir_device_t* device) {
  return device->stream;
}

// ---- Buffer ----

static choir_status_t make_buffer(const char* where, choir_device_t* device,
                                  choir_buffer_t** out_buffer) {
  CHOIR_TRY(choir__check_not_forked(where));
  if (!device) {
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: device is NULL; needs a device",
                       where);
  }
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_device_allocator(device),
                           sizeof(choir_buffer_t), where, &memory));
  choir_buffer_t* buffer = memory;
  atomic_init(&buffer->ref_count, 1);
  atomic_init(&buffer->version, 1);
  buffer->device = device;
  *out_buffer = buffer;
  return NULL;
}

// Even an empty buffer has an address, so that no kernel does arithmetic on
// NULL.
static choir_status_t give_memory(choir_buffer_t* buffer) {
  choir_device_t* device = buffer->device;
  CHOIR_TRY_NOTE(device->vtable->alloc(
                     device, buffer->bytes ? buffer->bytes : 1, &buffer->data),
                 "choir_buffer_create");
  return NULL;
}

// ---- Buffers without memory ----

static _Thread_local choir__deferral_t* deferrals;  // the innermost one

void choir__deferral_begin(choir__deferral_t* deferral,
                           choir_device_t* device) {
  deferral->device = device;
  deferral->outer = deferrals;
  deferrals = deferral;
}

void choir__deferral_end(choir__deferral_t* deferral) {
  choir__deferral_t** place = &deferrals;
  while (*place && *place != deferral) place = &(*place)->outer;
  if (*place) *place = deferral->outer;
}

static choir__deferral_t* find_deferral(const choir_device_t* device) {
  choir__deferral_t* deferral = deferrals;
  while (deferral && deferral->device != device) deferral = deferral->outer;
  return deferral;
}

static void defer(choir__deferral_t* deferral, choir_buffer_t* buffer) {
  choir_buffer_retain(buffer);
  buffer->is_deferred = true;
  buffer->next_deferred = deferral->first;
  deferral->first = buffer;
}

static void take_first(choir__deferral_t* deferral) {
  choir_buffer_t* buffer = deferral->first;
  deferral->first = buffer->next_deferred;
  buffer->is_deferred = false;
  choir_buffer_release(buffer);
}

choir_status_t choir__deferral_commit(choir__deferral_t* deferral) {
  while (deferral->first) {
    choir_buffer_t* buffer = deferral->first;
    if (atomic_load_explicit(&buffer->ref_count, memory_order_acquire) > 1)
      CHOIR_TRY(give_memory(buffer));
    take_first(deferral);
  }
  return NULL;
}

uint64_t choir__deferral_bytes(const choir__deferral_t* deferral) {
  uint64_t bytes = 0;
  for (choir_buffer_t* buffer = deferral->first; buffer;
       buffer = buffer->next_deferred)
    if (atomic_load_explicit(&buffer->ref_count, memory_order_acquire) > 1)
      bytes += buffer->bytes;
  return bytes;
}

void choir__deferral_drop(choir__deferral_t* deferral) {
  while (deferral->first) take_first(deferral);
}

choir_status_t choir_buffer_create(choir_device_t* device, size_t bytes,
                                   choir_buffer_t** out_buffer) {
  *out_buffer = NULL;
  choir_buffer_t* buffer = NULL;
  CHOIR_TRY(make_buffer("choir_buffer_create", device, &buffer));
  buffer->bytes = bytes;
  choir__deferral_t* deferral = find_deferral(device);
  if (deferral) {
    defer(deferral, buffer);
  } else {
    choir_status_t status = give_memory(buffer);
    if (status) {
      choir_deallocate(choir_device_allocator(device), buffer, sizeof(*buffer));
      return status;
    }
  }
  choir_device_retain(device);
  *out_buffer = buffer;
  return NULL;
}

choir_status_t choir_buffer_wrap(choir_device_t* device, void* data,
                                 size_t bytes,
                                 void (*release_data)(void* context,
                                                      void* data),
                                 void* context, choir_buffer_t** out_buffer) {
  *out_buffer = NULL;
  if (!data && bytes > 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_buffer_wrap: data is NULL; needs %zu bytes",
                       bytes);
  }
  choir_buffer_t* buffer = NULL;
  CHOIR_TRY(make_buffer("choir_buffer_wrap", device, &buffer));
  buffer->data = data;
  buffer->bytes = bytes;
  buffer->release = release_data;
  buffer->context = context;
  buffer->wrapped = true;
  choir_device_retain(device);
  *out_buffer = buffer;
  return NULL;
}

void choir_buffer_retain(choir_buffer_t* buffer) {
  if (buffer) retain(&buffer->ref_count);
}

void choir_buffer_release(choir_buffer_t* buffer) {
  if (!buffer || !release(&buffer->ref_count)) return;
  choir_device_t* device = buffer->device;
  choir__packed_drop(buffer);
  if (buffer->wrapped) {
    if (buffer->release) buffer->release(buffer->context, buffer->data);
  } else if (buffer->data && !choir_process_is_forked_child()) {
    device->vtable->free(device, buffer->data,
                         buffer->bytes ? buffer->bytes : 1);
  }
  choir_deallocate(choir_device_allocator(device), buffer, sizeof(*buffer));
  choir_device_release(device);
}

size_t choir_buffer_bytes(const choir_buffer_t* buffer) {
  return buffer->bytes;
}

choir_device_t* choir_buffer_device(const choir_buffer_t* buffer) {
  return buffer->device;
}

choir_status_t choir__buffer_check_memory(const choir_buffer_t* buffer) {
  if (buffer->data || buffer->bytes == 0) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "buffer of %zu bytes: it has no memory, as the recorded "
                     "step that made it failed before it ran",
                     buffer->bytes);
}

static choir_status_t check_transfer(const char* where,
                                     const choir_buffer_t* buffer,
                                     const choir_stream_t* stream,
                                     size_t offset_bytes, const void* host,
                                     size_t bytes) {
  CHOIR_TRY(choir__check_not_forked(where));
  if (!buffer || !stream || (!host && bytes > 0)) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %s is NULL; needs a buffer, a stream and host "
                       "memory",
                       where,
                       !buffer   ? "buffer"
                       : !stream ? "stream"
                                 : "host");
  }
  if (buffer->device != stream->device) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: the buffer is on '%s' and the stream on '%s'; "
                       "needs both on one device",
                       where, buffer->device->name, stream->device->name);
  }
  if (offset_bytes > buffer->bytes || bytes > buffer->bytes - offset_bytes) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "%s: %zu bytes from byte %zu; needs to stay inside the "
                       "buffer's %zu bytes",
                       where, bytes, offset_bytes, buffer->bytes);
  }
  return NULL;
}

// Tells all stages of a stream of something that is no record. Stages belong to
// the thread that gives the work: what a kernel does on the stream's own thread
// is not for them.
// What a stage keeps those behind it do not hear of.
static choir_status_t tell_stages(choir_stream_t* stream,
                                  const choir_order_t* order,
                                  bool* out_is_kept) {
  *out_is_kept = false;
  if (runs_records) return NULL;
  for (choir_stage_t* stage = stream->stages; stage && !*out_is_kept;
       stage = stage->next)
    if (stage->order)
      CHOIR_TRY(stage->order(stage, stream, order, out_is_kept));
  return NULL;
}

static choir_status_t tell_host_access(choir_stream_t* stream) {
  const choir_order_t order = {.kind = CHOIR_ORDER_HOST};
  bool is_kept = false;
  return tell_stages(stream, &order, &is_kept);
}

choir_status_t choir_buffer_read(choir_buffer_t* buffer, choir_stream_t* stream,
                                 size_t offset_bytes, void* host,
                                 size_t bytes) {
  CHOIR_TRY(check_transfer("choir_buffer_read", buffer, stream, offset_bytes,
                           host, bytes));
  CHOIR_TRY(tell_host_access(stream));
  CHOIR_TRY(choir__buffer_check_memory(buffer));
  char* data = buffer->data;
  return buffer->device->vtable->read(
      buffer->device, stream, bytes ? data + offset_bytes : data, host, bytes);
}

choir_status_t choir_buffer_write(choir_buffer_t* buffer,
                                  choir_stream_t* stream, size_t offset_bytes,
                                  const void* host, size_t bytes) {
  CHOIR_TRY(check_transfer("choir_buffer_write", buffer, stream, offset_bytes,
                           host, bytes));
  CHOIR_TRY(tell_host_access(stream));
  CHOIR_TRY(choir__buffer_check_memory(buffer));
  char* data = buffer->data;
  choir_status_t status = buffer->device->vtable->write(
      buffer->device, stream, host, bytes ? data + offset_bytes : data, bytes);
  choir__buffer_wrote(buffer);
  return status;
}

// ---- Stream ----

static choir_status_t submit_to_device(choir_stage_t* stage,
                                       choir_stream_t* stream,
                                       const choir_record_t* record) {
  (void)stage;
  return stream->vtable->stream_submit(stream, record);
}

static choir_status_t submit_lowered(void* stream_,
                                     const choir_record_t* record) {
  choir_stream_t* stream = stream_;
  return choir_stage_forward(&stream->lowering, stream, record);
}

static choir_status_t lower(choir_stream_t* stream,
                            const choir_record_t* record) {
  if (record->kernel) return submit_lowered(stream, record);
  const choir_lowering_t lowering = {
      .device = stream->device, .emit = submit_lowered, .self = stream};
  return record->operation->lower(&lowering, record);
}

// What a kernel submits is part of its record.
static choir_status_t see_or_lower(choir_stage_t* stage, choir_stream_t* stream,
                                   const choir_record_t* record) {
  (void)stage;
  return choir__trace_sees_records(stream->device) && !runs_records
             ? choir__trace_record(stream, record, lower)
             : lower(stream, record);
}

static void init_stream(choir_stream_t* stream, choir_device_t* device,
                        choir_stream_kind_t kind, bool is_device_stream) {
  atomic_init(&stream->ref_count, 1);
  stream->vtable = device->vtable;
  stream->device = device;
  stream->kind = kind;
  stream->is_device_stream = is_device_stream;
  stream->to_device = (choir_stage_t){.submit = submit_to_device};
  stream->lowering =
      (choir_stage_t){.submit = see_or_lower, .next = &stream->to_device};
  stream->stages = &stream->lowering;
}

choir_status_t choir_stream_create(choir_device_t* device,
                                   choir_stream_kind_t kind,
                                   choir_stream_t** out_stream) {
  *out_stream = NULL;
  CHOIR_TRY(choir__check_not_forked("choir_stream_create"));
  if (!device) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_stream_create: device is NULL; needs a device");
  }
  if (kind != CHOIR_STREAM_COMPUTE && kind != CHOIR_STREAM_BACKGROUND) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_stream_create: kind is %d; needs "
                       "CHOIR_STREAM_COMPUTE or CHOIR_STREAM_BACKGROUND",
                       (int)kind);
  }
  choir_stream_t* stream = NULL;
  CHOIR_TRY(device->vtable->stream_create(device, kind, &stream));
  init_stream(stream, device, kind, /*is_device_stream=*/false);
  choir_device_retain(device);
  *out_stream = stream;
  return NULL;
}

// The device's own stream lives as long as the device and keeps no count of
// its own: whoever retains it retains the device.
void choir_stream_retain(choir_stream_t* stream) {
  if (!stream) return;
  if (stream->is_device_stream) {
    choir_device_retain(stream->device);
  } else {
    retain(&stream->ref_count);
  }
}

static void* destroy_stream(void* object) {
  choir_stream_t* stream = object;
  choir_device_t* device = stream->device;
  device->vtable->stream_destroy(stream);
  choir_device_release(device);
  return NULL;
}

void choir_stream_release(choir_stream_t* stream) {
  if (!stream) return;
  if (stream->is_device_stream) {
    choir_device_release(stream->device);
    return;
  }
  if (!release(&stream->ref_count)) return;
  if (choir_process_is_forked_child()) return;
  destroy_outside(destroy_stream, stream, "stream");
}

choir_stream_kind_t choir_stream_kind(const choir_stream_t* stream) {
  return stream->kind;
}

choir_device_t* choir_stream_device(const choir_stream_t* stream) {
  return stream->device;
}

choir_status_t choir_stream_submit(choir_stream_t* stream,
                                   const choir_record_t* record) {
  CHOIR_TRY(choir__check_not_forked("choir_stream_submit"));
  if (!stream) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_stream_submit: stream is NULL; needs a stream");
  }
  CHOIR_TRY(choir__record_check("choir_stream_submit", record));
  if (!stream->label || record->label)
    return stream->stages->submit(stream->stages, stream, record);
  choir_record_t labelled = *record;
  labelled.label = stream->label;
  return stream->stages->submit(stream->stages, stream, &labelled);
}

void choir_stream_set_label(choir_stream_t* stream, const char* label) {
  stream->label = label;
}

choir_status_t choir_stream_synchronize(choir_stream_t* stream) {
  CHOIR_TRY(choir__check_not_forked("choir_stream_synchronize"));
  if (!stream) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_stream_synchronize: stream is NULL; needs a "
                       "stream");
  }
  CHOIR_TRY(tell_host_access(stream));
  return stream->vtable->stream_synchronize(stream);
}

choir_status_t choir_stream_call(choir_stream_t* stream,
                                 choir_status_t (*call)(void* self),
                                 void* self) {
  CHOIR_TRY(choir__check_not_forked("choir_stream_call"));
  if (!stream || !call) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_stream_call: %s is NULL; needs a stream and a "
                       "function",
                       stream ? "call" : "stream");
  }
  const choir_order_t order = {
      .kind = CHOIR_ORDER_CALL, .call = call, .self = self};
  bool is_kept = false;
  CHOIR_TRY(tell_stages(stream, &order, &is_kept));
  return is_kept ? NULL : call(self);
}

void choir_stream_push_stage(choir_stream_t* stream, choir_stage_t* stage) {
  choir_stage_t** place =
      stage->sees_kernels ? &stream->lowering.next : &stream->stages;
  stage->next = *place;
  *place = stage;
}

void choir_stream_pop_stage(choir_stream_t* stream, choir_stage_t* stage) {
  choir_stage_t** place = &stream->stages;
  while (*place && *place != stage) place = &(*place)->next;
  if (!*place) return;
  *place = stage->next;
  stage->next = NULL;
}

// ---- Event ----

choir_status_t choir_event_create(choir_device_t* device,
                                  choir_event_t** out_event) {
  *out_event = NULL;
  CHOIR_TRY(choir__check_not_forked("choir_event_create"));
  if (!device) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_event_create: device is NULL; needs a device");
  }
  choir_event_t* event = NULL;
  CHOIR_TRY(device->vtable->event_create(device, &event));
  atomic_init(&event->ref_count, 1);
  event->vtable = device->vtable;
  event->device = device;
  choir_device_retain(device);
  *out_event = event;
  return NULL;
}

void choir_event_retain(choir_event_t* event) {
  if (event) retain(&event->ref_count);
}

void choir_event_release(choir_event_t* event) {
  if (!event || !release(&event->ref_count)) return;
  if (choir_process_is_forked_child()) return;
  choir_device_t* device = event->device;
  event->vtable->event_destroy(event);
  choir_device_release(device);
}

static choir_status_t check_event(const char* where, const choir_event_t* event,
                                  const choir_stream_t* stream) {
  CHOIR_TRY(choir__check_not_forked(where));
  if (!event || !stream) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: %s is NULL; needs an event and a stream", where,
                       !event ? "event" : "stream");
  }
  if (event->device != stream->device) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: the event is of '%s' and the stream of '%s'; needs "
                       "both of one device",
                       where, event->device->name, stream->device->name);
  }
  return NULL;
}

choir_status_t choir_event_record(choir_event_t* event,
                                  choir_stream_t* stream) {
  CHOIR_TRY(check_event("choir_event_record", event, stream));
  const choir_order_t order = {.kind = CHOIR_ORDER_EVENT, .event = event};
  bool is_kept = false;
  CHOIR_TRY(tell_stages(stream, &order, &is_kept));
  return is_kept ? NULL : event->vtable->event_record(event, stream);
}

choir_status_t choir_stream_wait_event(choir_stream_t* stream,
                                       choir_event_t* event) {
  CHOIR_TRY(check_event("choir_stream_wait_event", event, stream));
  const choir_order_t order = {.kind = CHOIR_ORDER_WAIT, .event = event};
  bool is_kept = false;
  CHOIR_TRY(tell_stages(stream, &order, &is_kept));
  return is_kept ? NULL : event->vtable->stream_wait_event(stream, event);
}

bool choir_event_is_reached(choir_event_t* event) {
  // In a forked child nothing will ever be reached; a loop around this must
  // end, and the call after it says why.
  if (choir_process_is_forked_child()) return true;
  return event->vtable->event_is_reached(event);
}

choir_status_t choir_event_synchronize(choir_event_t* event) {
  CHOIR_TRY(choir__check_not_forked("choir_event_synchronize"));
  if (!event) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_event_synchronize: event is NULL; needs an "
                       "event");
  }
  return event->vtable->event_synchronize(event);
}
