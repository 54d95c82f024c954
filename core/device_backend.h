// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_DEVICE_BACKEND_H_
#define CHOIR_CORE_DEVICE_BACKEND_H_

#include "core/device.h"
#include "core/packed_backend.h"
#include "core/segments_backend.h"
#include "core/stage.h"
#include "core/trace.h"

#ifdef __cplusplus
#include <atomic>
using std::atomic_bool;
using std::atomic_int;
using std::atomic_ullong;
extern "C" {
#else
#include <stdatomic.h>
#endif

// For writers of a device: the vtable and the common heads of its objects.
// Copy core/device/null to start. A device's own struct begins with
// choir_device_t, its stream with choir_stream_t, its event with
// choir_event_t; core fills in the common parts.
//
// Core checks arguments (NULL, ranges, objects of different devices, forked
// processes) before it calls a slot. Slots that destroy are never called on a
// thread that runs records, so they may wait for those.

typedef struct choir_device_vtable_s {
  const char* kernels;  // see choir_device_kernels
  // Of a reproducible device; NULL: it cannot be one.
  const char* reproducible_kernels;
  bool is_host;  // host may touch buffer memory

  // Required. Frees the device struct and what it holds.
  void (*destroy)(choir_device_t* device);
  // Required. Device memory, 64-byte aligned; *out_data not cleared.
  choir_status_t (*alloc)(choir_device_t* device, size_t bytes,
                          void** out_data);
  void (*free)(choir_device_t* device, void* data, size_t bytes);
  // Optional. Figures of device memory, and giving back what is cached; NULL:
  // those of the pool of host objects.
  choir_pool_stats_t (*memory)(choir_device_t* device);
  void (*trim)(choir_device_t* device);
  // Required. Copy between host and device memory, in stream order, blocking.
  choir_status_t (*read)(choir_device_t* device, choir_stream_t* stream,
                         const void* device_src, void* host_dst, size_t bytes);
  choir_status_t (*write)(choir_device_t* device, choir_stream_t* stream,
                          const void* host_src, void* device_dst, size_t bytes);

  // Required. Streams: see device.h for what each call promises.
  choir_status_t (*stream_create)(choir_device_t* device,
                                  choir_stream_kind_t kind,
                                  choir_stream_t** out_stream);
  void (*stream_destroy)(choir_stream_t* stream);
  choir_status_t (*stream_submit)(choir_stream_t* stream,
                                  const choir_record_t* record);
  choir_status_t (*stream_synchronize)(choir_stream_t* stream);

  // Required. Events.
  choir_status_t (*event_create)(choir_device_t* device,
                                 choir_event_t** out_event);
  void (*event_destroy)(choir_event_t* event);
  choir_status_t (*event_record)(choir_event_t* event, choir_stream_t* stream);
  choir_status_t (*stream_wait_event)(choir_stream_t* stream,
                                      choir_event_t* event);
  bool (*event_is_reached)(choir_event_t* event);
  choir_status_t (*event_synchronize)(choir_event_t* event);

  // Optional. Several records of a stream as one launch
  // (core/segments_backend.h); NULL: each is submitted by itself.
  const choir_segments_vtable_t* segments;
} choir_device_vtable_t;

typedef struct choir__trace_s choir__trace_t;

struct choir_device_s {
  atomic_int ref_count;
  const choir_device_vtable_t* vtable;
  const char* name;
  int32_t threads;
  const char* kernels;
  bool is_reproducible;
  choir_pool_t* pool;      // host memory for objects (and buffers on the CPU)
  choir_stream_t* stream;  // the compute stream; holds no reference back
  choir__trace_t* trace;   // NULL: none runs
};

struct choir_stream_s {
  atomic_int ref_count;
  const choir_device_vtable_t* vtable;
  choir_device_t* device;  // retained, except by the device's own stream
  choir_stream_kind_t kind;
  bool is_device_stream;
  const char* label;  // for records that have none
  // core/trace_backend.h.
  const choir_trace_value_t* results;
  size_t result_count;
  choir_stage_t* stages;
  choir_stage_t lowering;   // gives records that name an operation kernels
  choir_stage_t to_device;  // the last stage: gives the record to the device
};

struct choir_event_s {
  atomic_int ref_count;
  const choir_device_vtable_t* vtable;
  choir_device_t* device;  // retained
};

struct choir_buffer_s {
  atomic_int ref_count;
  choir_device_t* device;  // retained
  void* data;
  size_t bytes;
  void (*release)(void* context, void* data);  // set for wrapped memory
  void* context;
  bool wrapped;
  bool is_deferred;               // on a list of buffers without memory
  choir_buffer_t* next_deferred;  // on that list
  // core/packed_backend.h.
  atomic_ullong version;  // from 1 on, grows with each write
  uint64_t asked_for;     // the version of which a form was asked for last
  atomic_bool is_lent;    // somebody has the address, and may write
  atomic_bool has_packed;
  choir__packed_t* packed;
};

// Buffers that are made without memory, because whoever makes them records
// what will be done with them, and some will never need any. Between begin and
// end this holds for the buffers of one device that the calling thread makes;
// the list holds a reference to each. They may nest.
typedef struct choir__deferral_s {
  choir_device_t* device;  // borrowed
  choir_buffer_t* first;   // of the list
  struct choir__deferral_s* outer;
} choir__deferral_t;
void choir__deferral_begin(choir__deferral_t* deferral, choir_device_t* device);
void choir__deferral_end(choir__deferral_t* deferral);
// Gives memory to the buffers that somebody else than the list holds, and
// empties the list. After a failure the others are still on it.
choir_status_t choir__deferral_commit(choir__deferral_t* deferral)
    CHOIR_NODISCARD;
// Bytes that it would give.
uint64_t choir__deferral_bytes(const choir__deferral_t* deferral);
// Empties the list; buffers that somebody holds stay without memory.
void choir__deferral_drop(choir__deferral_t* deferral);
// FAILED_PRECONDITION for such a one: before the host reads or writes it.
choir_status_t choir__buffer_check_memory(const choir_buffer_t* buffer)
    CHOIR_NODISCARD;

// Each device has one line in core/device/devices.def and one function that
// makes its struct from `pool`: it sets the vtable and its own fields, core
// the rest. options is never NULL.
typedef choir_status_t (*choir_device_factory_t)(
    const choir_device_options_t* options, choir_pool_t* pool,
    choir_device_t** out_device);

// The factories of all lines.
#define X(name, factory)                                        \
  choir_status_t factory(const choir_device_options_t* options, \
                         choir_pool_t* pool, choir_device_t** out_device);
#include "core/device/devices.def"
#undef X

// Tells core that the calling thread runs records; called once by each thread
// that a device starts, first thing.
void choir__device_thread_begin(void);

// Runs a record's kernel on the calling thread, timed where a profile runs
// (core/profile.h): what a device calls instead of record->kernel->run.
choir_status_t choir__record_run(const choir_record_t* record,
                                 choir_stream_t* stream) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_DEVICE_BACKEND_H_
