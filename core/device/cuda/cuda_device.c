// SPDX-License-Identifier: Apache-2.0
#include "core/device/cuda/cuda_device.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/cuda_backend.h"
#include "core/device/cuda/cuda_gpus.h"
#include "core/log.h"
#include "core/status_backend.h"

// One NVIDIA GPU: docs/gpu.md. Records run on the caller's thread; a kernel for
// the GPU launches and returns.

typedef struct cuda_event_s {
  choir_event_t base;
  choir__cu_event_t handle;
} cuda_event_t;

_Static_assert(offsetof(cuda_device_t, base) == 0, "common head first");
_Static_assert(offsetof(cuda_stream_t, base) == 0, "common head first");
_Static_assert(offsetof(cuda_event_t, base) == 0, "common head first");

static cuda_device_t* of_device(choir_device_t* device) {
  return (cuda_device_t*)device;
}
static cuda_stream_t* of_stream(choir_stream_t* stream) {
  return (cuda_stream_t*)stream;
}
static cuda_event_t* of_event(choir_event_t* event) {
  return (cuda_event_t*)event;
}

cuda_stream_t* choir__cuda_stream_of(choir_stream_t* stream) {
  return of_stream(stream);
}

// ---- Context and failures ----

choir_status_t choir__cuda_enter(cuda_device_t* device) {
  return CUDA_CALL(device, cuCtxPushCurrent_v2, device->context);
}

void choir__cuda_leave(cuda_device_t* device) {
  choir__cu_context_t context = NULL;
  choir__cuda_warn("the context was not given back",
                   CUDA_CALL(device, cuCtxPopCurrent_v2, &context));
}

void choir__cuda_warn(const char* what, choir_status_t status) {
  if (!status) return;
  choir_log(CHOIR_LOG_WARNING, "core", "%s: %s", what,
            choir_status_message(status));
  choir_status_free(status);
}

// CUDA says only that some earlier work failed; the message narrows it down.
choir_status_t choir__cuda_stream_tell(cuda_stream_t* stream,
                                       choir_status_t status) {
  const uint64_t since = stream->since;
  stream->since = 0;
  if (!status || since == 0) return status;
  return choir__status_mark_deferred(choir_status_annotate(
      status, __FILE__, __LINE__,
      "one of %llu records submitted earlier, the last of them %s",
      (unsigned long long)since, stream->last));
}

void choir__cuda_stream_note(cuda_stream_t* stream,
                             const choir_record_t* record) {
  snprintf(stream->last, sizeof(stream->last), "%s%s%s",
           choir_record_name(record), record->label ? " of " : "",
           record->label ? record->label : "");
  ++stream->since;
}

// ---- Memory ----

static choir_status_t cuda_alloc(choir_device_t* device, size_t bytes,
                                 void** out_data) {
  cuda_device_t* cuda = of_device(device);
  *out_data = NULL;
  choir_status_t status;
  CUDA_WITHIN(cuda, status, choir__cuda_pool_alloc(cuda, bytes, out_data));
  return status;
}

static void cuda_free(choir_device_t* device, void* data, size_t bytes) {
  (void)bytes;
  choir__cuda_pool_free(of_device(device), data);
}

static void cuda_trim(choir_device_t* device) {
  cuda_device_t* cuda = of_device(device);
  choir_status_t status = choir__cuda_enter(cuda);
  if (!status) {
    choir__cuda_pool_trim(cuda);
    choir__cuda_leave(cuda);
  }
  choir__cuda_warn("memory was not trimmed", status);
}

static choir_pool_stats_t cuda_memory(choir_device_t* device) {
  return choir__cuda_pool_stats(of_device(device));
}

static choir_status_t cuda_read(choir_device_t* device, choir_stream_t* stream,
                                const void* device_src, void* host_dst,
                                size_t bytes) {
  cuda_device_t* cuda = of_device(device);
  cuda_stream_t* mine = of_stream(stream);
  CHOIR_TRY(choir__cuda_see_host(mine));
  choir_status_t status;
  CUDA_WITHIN(cuda, status,
              bytes > 0 ? choir__cuda_copy_to_host(cuda, &mine->queue,
                                                   device_src, host_dst, bytes)
                        : choir__cuda_queue_synchronize(cuda, &mine->queue));
  return choir__cuda_stream_tell(mine, status);
}

static choir_status_t cuda_write(choir_device_t* device, choir_stream_t* stream,
                                 const void* host_src, void* device_dst,
                                 size_t bytes) {
  cuda_device_t* cuda = of_device(device);
  cuda_stream_t* mine = of_stream(stream);
  CHOIR_TRY(choir__cuda_see_host(mine));
  choir_status_t status;
  CUDA_WITHIN(cuda, status,
              bytes > 0 ? choir__cuda_copy_to_device(
                              cuda, &mine->queue, host_src, device_dst, bytes)
                        : choir__cuda_queue_synchronize(cuda, &mine->queue));
  return choir__cuda_stream_tell(mine, status);
}

// ---- Streams ----

static choir_status_t stream_create(choir_device_t* device,
                                    choir_stream_kind_t kind,
                                    choir_stream_t** out_stream) {
  cuda_device_t* cuda = of_device(device);
  *out_stream = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(cuda->objects, sizeof(cuda_stream_t),
                           "choir_stream_create", &memory));
  cuda_stream_t* stream = memory;
  const int priority =
      kind == CHOIR_STREAM_BACKGROUND ? cuda->background_priority : 0;
  choir_status_t status;
  CUDA_WITHIN(cuda, status,
              choir__cuda_queue_open(cuda, &stream->queue, priority));
  if (status) {
    choir_deallocate(cuda->objects, stream, sizeof(*stream));
    return status;
  }
  *out_stream = &stream->base;
  return NULL;
}

static void stream_destroy(choir_stream_t* stream) {
  cuda_device_t* cuda = of_device(stream->device);
  cuda_stream_t* mine = of_stream(stream);
  choir_status_t status = choir__cuda_enter(cuda);
  if (!status) {
    choir__cuda_queue_close(cuda, &mine->queue);
    choir__cuda_leave(cuda);
  }
  choir__cuda_warn("a stream was not released", status);
  choir_deallocate(cuda->objects, mine, sizeof(*mine));
}

choir_status_t choir__cuda_stream_order(cuda_device_t* device,
                                        cuda_stream_t* stream,
                                        const choir_view_t* view,
                                        bool* out_foreign) {
  const choir_buffer_t* buffer = view->buffer;
  if (!buffer || !buffer->data) return NULL;
  cuda_block_t* block = choir__cuda_pool_find(device, buffer->data);
  if (!block) {
    *out_foreign = true;
    return NULL;
  }
  choir_status_t status =
      choir__cuda_block_acquire(device, block, &stream->queue);
  choir__cuda_block_use(block, &stream->queue);
  return status;
}

// *out_foreign: some of the operands' memory is not of the pool.
static choir_status_t order_operands(cuda_device_t* cuda, cuda_stream_t* stream,
                                     const choir_record_t* record,
                                     bool* out_foreign) {
  choir_status_t status = NULL;
  *out_foreign = false;
  pthread_mutex_lock(&cuda->lock);
  const int32_t count = record->src_count + record->dst_count;
  for (int32_t i = 0; i < count && !status; ++i)
    status = choir__cuda_stream_order(cuda, stream, &record->operands[i],
                                      out_foreign);
  pthread_mutex_unlock(&cuda->lock);
  return status;
}

choir_status_t choir__cuda_scratch(choir_stream_t* stream, size_t bytes,
                                   void** out_data) {
  cuda_stream_t* mine = of_stream(stream);
  *out_data = NULL;
  if (bytes == 0) return NULL;
  if (mine->scratch_count == CUDA_SCRATCH_PIECES)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "choir__cuda_scratch: %s was given %d pieces already, "
                       "the most there are",
                       mine->last, CUDA_SCRATCH_PIECES);
  if (mine->segments)
    return choir__cuda_segments_scratch(mine->segments, mine->scratch_count++,
                                        bytes, out_data);
  cuda_device_t* cuda = of_device(choir_stream_device(stream));
  void* data = NULL;
  CHOIR_TRY(choir__cuda_pool_alloc(cuda, bytes, &data));
  mine->seen.scratch[mine->scratch_count] = bytes;
  // Even if the next call fails it is the stream's, which gives it back.
  mine->scratch[mine->scratch_count++] = data;
  CHOIR_TRY(choir__cuda_queue_use(cuda, &mine->queue, data));
  *out_data = data;
  return NULL;
}

static void give_scratch_back(cuda_device_t* cuda, cuda_stream_t* stream) {
  while (stream->scratch_count > 0)
    choir__cuda_pool_free(cuda, stream->scratch[--stream->scratch_count]);
}

static choir_status_t run(cuda_device_t* cuda, cuda_stream_t* stream,
                          const choir_record_t* record) {
  bool is_foreign = false;
  CHOIR_TRY(order_operands(cuda, stream, record, &is_foreign));
  choir__cuda_stream_note(stream, record);
  // A record within a record's run, or memory that is waited for below.
  const bool is_inner = stream->is_running;
  if (!is_inner) stream->seen = (cuda_seen_t){.host = is_foreign};
  stream->seen.host |= is_inner;
  stream->is_running = true;
  choir_status_t status = choir__record_run(record, &stream->base);
  stream->is_running = is_inner;
  pthread_mutex_lock(&cuda->lock);
  ++stream->queue.launched;
  pthread_mutex_unlock(&cuda->lock);
  give_scratch_back(cuda, stream);
  // The owner of such memory may take it back as soon as the caller lets go,
  // and asks no stream.
  if (is_foreign && !status)
    status = choir__cuda_stream_tell(
        stream, choir__cuda_queue_synchronize(cuda, &stream->queue));
  return status;
}

static choir_status_t stream_submit(choir_stream_t* stream,
                                    const choir_record_t* record) {
  cuda_device_t* cuda = of_device(stream->device);
  if (of_stream(stream)->segments)
    CHOIR_TRY(choir__cuda_see_host(of_stream(stream)));
  choir_status_t status;
  CUDA_WITHIN(cuda, status, run(cuda, of_stream(stream), record));
  return status;
}

static choir_status_t stream_synchronize(choir_stream_t* stream) {
  cuda_device_t* cuda = of_device(stream->device);
  cuda_stream_t* mine = of_stream(stream);
  CHOIR_TRY(choir__cuda_see_host(mine));
  choir_status_t status;
  CUDA_WITHIN(cuda, status, choir__cuda_queue_synchronize(cuda, &mine->queue));
  return choir__cuda_stream_tell(mine, status);
}

// ---- Events ----

static choir_status_t event_create(choir_device_t* device,
                                   choir_event_t** out_event) {
  cuda_device_t* cuda = of_device(device);
  *out_event = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(cuda->objects, sizeof(cuda_event_t),
                           "choir_event_create", &memory));
  cuda_event_t* event = memory;
  choir_status_t status;
  CUDA_WITHIN(cuda, status, choir__cuda_event_open(cuda, &event->handle));
  if (status) {
    choir_deallocate(cuda->objects, event, sizeof(*event));
    return status;
  }
  *out_event = &event->base;
  return NULL;
}

static void event_destroy(choir_event_t* event) {
  cuda_device_t* cuda = of_device(event->device);
  choir_status_t status = choir__cuda_enter(cuda);
  if (!status) {
    choir__cuda_event_close(cuda, of_event(event)->handle);
    choir__cuda_leave(cuda);
  }
  choir__cuda_warn("an event was not released", status);
  choir_deallocate(cuda->objects, event, sizeof(cuda_event_t));
}

static choir_status_t event_record(choir_event_t* event,
                                   choir_stream_t* stream) {
  cuda_device_t* cuda = of_device(event->device);
  CHOIR_TRY(choir__cuda_see_host(of_stream(stream)));
  choir_status_t status;
  CUDA_WITHIN(cuda, status,
              CUDA_CALL(cuda, cuEventRecord, of_event(event)->handle,
                        of_stream(stream)->queue.handle));
  return status;
}

static choir_status_t stream_wait_event(choir_stream_t* stream,
                                        choir_event_t* event) {
  cuda_device_t* cuda = of_device(event->device);
  CHOIR_TRY(choir__cuda_see_host(of_stream(stream)));
  choir_status_t status;
  CUDA_WITHIN(
      cuda, status,
      CUDA_CALL(cuda, cuStreamWaitEvent, of_stream(stream)->queue.handle,
                of_event(event)->handle, 0));
  return status;
}

// True also for a failure: whoever asks again and again must get on, to the
// call that says what it was.
static bool event_is_reached(choir_event_t* event) {
  cuda_device_t* cuda = of_device(event->device);
  choir_status_t status = choir__cuda_enter(cuda);
  if (status) {
    choir_status_free(status);
    return true;
  }
  const choir__cu_result_t result =
      cuda->driver->cuEventQuery(of_event(event)->handle);
  choir__cuda_leave(cuda);
  return result != CHOIR__CU_NOT_READY;
}

static choir_status_t event_synchronize(choir_event_t* event) {
  cuda_device_t* cuda = of_device(event->device);
  choir_status_t status;
  CUDA_WITHIN(cuda, status,
              CUDA_CALL(cuda, cuEventSynchronize, of_event(event)->handle));
  return status;
}

// ---- Device ----

// Takes a device that was opened in part.
static void close_device(cuda_device_t* cuda) {
  if (cuda->context) {
    choir_status_t status = choir__cuda_enter(cuda);
    if (!status) {
      choir__cuda_copier_close(cuda);
      choir__cuda_attached_close(cuda);
      choir__cuda_modules_close(cuda);
      choir__cuda_pool_close(cuda);
      choir__cuda_leave(cuda);
    }
    choir__cuda_warn("a GPU's memory was not released", status);
    choir__cuda_warn("a GPU was not released",
                     CUDA_CALL(cuda, cuDevicePrimaryCtxRelease_v2, cuda->gpu));
  }
  pthread_mutex_destroy(&cuda->lock);
  pthread_mutex_destroy(&cuda->copy_lock);
  pthread_mutex_destroy(&cuda->attach_lock);
  choir_deallocate(cuda->objects, cuda, sizeof(*cuda));
}

static void cuda_destroy(choir_device_t* device) {
  close_device(of_device(device));
}

static choir_status_t open_device(cuda_device_t* cuda, int32_t index) {
  snprintf(cuda->who, sizeof(cuda->who), "cuda:%d", (int)index);
  CHOIR_TRY(choir__cuda_gpu_open(index, &cuda->driver, &cuda->gpu));
  choir__cu_context_t context = NULL;
  CHOIR_TRY(CUDA_CALL(cuda, cuDevicePrimaryCtxRetain, &context, cuda->gpu));
  cuda->context = context;
  // CUDA has threads now, and does not work in a forked child.
  choir_threads_started();
  CHOIR_TRY(choir__cuda_enter(cuda));
  int least = 0;
  choir_status_t status = CUDA_CALL(cuda, cuCtxGetStreamPriorityRange, &least,
                                    &cuda->background_priority);
  if (!status) status = choir__cuda_copier_open(cuda);
  choir__cuda_leave(cuda);
  return status;
}

static const choir_device_vtable_t cuda_vtable = {
    .kernels = "cuda",
    .is_host = false,
    .destroy = cuda_destroy,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .memory = cuda_memory,
    .trim = cuda_trim,
    .read = cuda_read,
    .write = cuda_write,
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
    .segments = &choir__cuda_segments,
};

// The function of this device's line in core/device/devices.def.
choir_status_t choir__cuda_device_make(const choir_device_options_t* options,
                                       choir_pool_t* pool,
                                       choir_device_t** out_device) {
  *out_device = NULL;
  const choir_allocator_t objects = choir_pool_allocator(pool);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(objects, sizeof(cuda_device_t),
                           "choir_device_create", &memory));
  cuda_device_t* cuda = memory;
  cuda->base.vtable = &cuda_vtable;
  cuda->objects = objects;
  cuda->copier.queue.slot = -1;
  // On Linux these cannot fail: they only write to the struct.
  pthread_mutex_init(&cuda->lock, NULL);
  pthread_mutex_init(&cuda->copy_lock, NULL);
  pthread_mutex_init(&cuda->attach_lock, NULL);
  choir_status_t status = open_device(cuda, options->index);
  if (status) {
    close_device(cuda);
    return status;
  }
  *out_device = &cuda->base;
  return NULL;
}
