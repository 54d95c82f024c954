// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_DEVICE_H_
#define CHOIR_CORE_DEVICE_H_

#include "core/allocator.h"
#include "core/record.h"
#include "core/view.h"

#ifdef __cplusplus
extern "C" {
#endif

// A device holds memory (buffers) and runs work in order (streams); events
// order work between streams. The device moves bytes and orders work; it
// knows no arithmetic.
//
//   choir_device_t* device;
//   CHOIR_TRY(choir_device_create("cpu", NULL, &device));
//   choir_stream_t* stream = choir_device_stream(device);
//
// Ownership: device, buffer, stream and event are shared; each keeps its
// device alive, so the order of release does not matter. Threads: devices and
// buffers are thread-safe, a stream and an event are used by one thread at a
// time. In a process that was forked after Choir had started threads, every
// call that can fail returns FAILED_PRECONDITION.

typedef struct choir_device_s choir_device_t;
typedef struct choir_stream_s choir_stream_t;
typedef struct choir_event_s choir_event_t;

typedef struct choir_device_options_s {
  // Threads that one kernel may use; 0: one for each core this process may
  // run on.
  int32_t threads;
  // Where buffers come from; all zeros: the process default. The device puts
  // a caching pool on top.
  choir_allocator_t allocator;
  // cpu_async only: seed of the random order in which its streams advance.
  uint64_t seed;
  // cuda only: the GPU's number (core/gpu.h).
  int32_t index;
  // Ops run by kernels whose bits follow from the problem alone, not from
  // threads, batches or the processor, and by references where there are none
  // (docs/reproducible.md). UNIMPLEMENTED for a device that has no such
  // kernels.
  bool reproducible;
} choir_device_options_t;

// Makes the device called `name` ("cpu", "cuda", ...; see
// core/device/devices.def). options may be NULL. Fails with NOT_FOUND for an
// unknown name (the message lists the known ones), with UNAVAILABLE when this
// machine lacks it.
CHOIR_API choir_status_t
choir_device_create(const char* name, const choir_device_options_t* options,
                    choir_device_t** out_device) CHOIR_NODISCARD;
CHOIR_API void choir_device_retain(choir_device_t* device);
CHOIR_API void choir_device_release(choir_device_t* device);

CHOIR_API const char* choir_device_name(const choir_device_t* device);
// Which kernels fit: "cpu", "cuda"; "defined" for a reproducible CPU, "none"
// for a device whose ops all run as the host reference.
CHOIR_API const char* choir_device_kernels(const choir_device_t* device);
// As choir_device_options_t says.
CHOIR_API bool choir_device_is_reproducible(const choir_device_t* device);
CHOIR_API int32_t choir_device_threads(const choir_device_t* device);
// True when the host may read and write buffers through choir_buffer_data.
CHOIR_API bool choir_device_is_host(const choir_device_t* device);
// The device's caching pool of host memory, for the objects around buffers and,
// where the device is the host, for buffers.
CHOIR_API choir_allocator_t choir_device_allocator(choir_device_t* device);
// Figures of the device's memory: of that pool, or of the GPU's own.
CHOIR_API choir_pool_stats_t choir_device_memory(choir_device_t* device);
// Gives the pool's cached blocks back to where they came from.
CHOIR_API void choir_device_trim(choir_device_t* device);
// The device's compute stream, made with it; lent.
// OUT_OF_MEMORY, with what is needed and what is left (choir_memory_available),
// where a host has not got so many bytes: before it is too late, as a kernel
// that gives more than it has ends some process later. Other devices refuse
// what they have not got when they are asked for it.
CHOIR_API choir_status_t choir_device_check_memory(choir_device_t* device,
                                                   uint64_t bytes)
    CHOIR_NODISCARD;
CHOIR_API choir_stream_t* choir_device_stream(choir_device_t* device);

// ---- Buffers ----

// `bytes` uncleared bytes, 64-byte aligned; 0 bytes is a valid buffer.
CHOIR_API choir_status_t choir_buffer_create(choir_device_t* device,
                                             size_t bytes,
                                             choir_buffer_t** out_buffer)
    CHOIR_NODISCARD;
// A buffer over memory that somebody else made; `release` (may be NULL) is
// called once when the last reference goes, on whatever thread that is.
CHOIR_API choir_status_t
choir_buffer_wrap(choir_device_t* device, void* data, size_t bytes,
                  void (*release)(void* context, void* data), void* context,
                  choir_buffer_t** out_buffer) CHOIR_NODISCARD;
CHOIR_API void choir_buffer_retain(choir_buffer_t* buffer);
CHOIR_API void choir_buffer_release(choir_buffer_t* buffer);
CHOIR_API size_t choir_buffer_bytes(const choir_buffer_t* buffer);
CHOIR_API choir_device_t* choir_buffer_device(const choir_buffer_t* buffer);
// The address in the device's memory; the host may use it when
// choir_device_is_host() and no stream has unfinished work on it. NULL for a
// buffer that was made in a step that is recorded and has not run
// (core/graph.h); choir_stream_synchronize runs it.
CHOIR_API void* choir_buffer_data(const choir_buffer_t* buffer);

// Copies between host memory and a buffer, after all work given to `stream`
// so far; block until done. Ranges are checked.
CHOIR_API choir_status_t choir_buffer_read(choir_buffer_t* buffer,
                                           choir_stream_t* stream,
                                           size_t offset_bytes, void* host,
                                           size_t bytes) CHOIR_NODISCARD;
CHOIR_API choir_status_t choir_buffer_write(choir_buffer_t* buffer,
                                            choir_stream_t* stream,
                                            size_t offset_bytes,
                                            const void* host, size_t bytes)
    CHOIR_NODISCARD;

// ---- Streams ----

typedef enum choir_stream_kind_e {
  // Work for the caller's thread: on "cpu" it runs inside submit.
  CHOIR_STREAM_COMPUTE = 0,
  // Work beside it (communication, copies): on "cpu" a thread of its own.
  CHOIR_STREAM_BACKGROUND = 1,
} choir_stream_kind_t;

CHOIR_API choir_status_t choir_stream_create(choir_device_t* device,
                                             choir_stream_kind_t kind,
                                             choir_stream_t** out_stream)
    CHOIR_NODISCARD;
CHOIR_API void choir_stream_retain(choir_stream_t* stream);
// Releasing the last reference waits for the work that was submitted.
CHOIR_API void choir_stream_release(choir_stream_t* stream);
CHOIR_API choir_device_t* choir_stream_device(const choir_stream_t* stream);
CHOIR_API choir_stream_kind_t choir_stream_kind(const choir_stream_t* stream);

// The submit path. Hands one record to the stream's stages, the last of which
// gives it to the device. Records run in order of submission; operands are kept
// alive until then. The record itself is borrowed for the call. A failure of
// an asynchronous record makes the later ones no-ops and is returned by the
// next submit or synchronize; the stream then works again.
CHOIR_API choir_status_t choir_stream_submit(choir_stream_t* stream,
                                             const choir_record_t* record)
    CHOIR_NODISCARD;
// Records submitted without a label get this one, until it is set anew; NULL:
// none. Borrowed as long as it is set.
CHOIR_API void choir_stream_set_label(choir_stream_t* stream,
                                      const char* label);
// Blocks until all submitted work is done; returns the first failure since
// the last call. A kernel may not call it for its own stream
// (FAILED_PRECONDITION). A program waits so before it ends: exit takes
// libraries apart that a kernel on a stream's thread may be using.
CHOIR_API choir_status_t choir_stream_synchronize(choir_stream_t* stream)
    CHOIR_NODISCARD;
// Runs call(self) now, on the caller's thread, and returns its result. It is
// for what the host has to do at a fixed place of a step: a graph that records
// the stream calls it again in each replay (core/graph.h), so `self` must live
// as long as such a graph.
CHOIR_API choir_status_t choir_stream_call(choir_stream_t* stream,
                                           choir_status_t (*call)(void* self),
                                           void* self) CHOIR_NODISCARD;
// Puts a stage (core/stage.h) in front of the others. The stage is borrowed
// until popped.
struct choir_stage_s;
CHOIR_API void choir_stream_push_stage(choir_stream_t* stream,
                                       struct choir_stage_s* stage);
// Takes it away, wherever it stands; nothing happens where it does not.
CHOIR_API void choir_stream_pop_stage(choir_stream_t* stream,
                                      struct choir_stage_s* stage);

// ---- Events ----

CHOIR_API choir_status_t choir_event_create(choir_device_t* device,
                                            choir_event_t** out_event)
    CHOIR_NODISCARD;
CHOIR_API void choir_event_retain(choir_event_t* event);
CHOIR_API void choir_event_release(choir_event_t* event);
// The event is reached when all work now in `stream` is done. An event may be
// recorded again; waits refer to the latest record before them. A wait on an
// event that was never recorded returns at once.
CHOIR_API choir_status_t choir_event_record(choir_event_t* event,
                                            choir_stream_t* stream)
    CHOIR_NODISCARD;
// Later work of `stream` starts after the event. May block the caller when
// the stream runs on the caller's thread.
CHOIR_API choir_status_t choir_stream_wait_event(choir_stream_t* stream,
                                                 choir_event_t* event)
    CHOIR_NODISCARD;
// Whether the event was reached; never blocks.
CHOIR_API bool choir_event_is_reached(choir_event_t* event);
// Blocks the caller until the event is reached.
CHOIR_API choir_status_t choir_event_synchronize(choir_event_t* event)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_DEVICE_H_
