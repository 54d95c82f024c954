// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_RECORD_H_
#define CHOIR_CORE_RECORD_H_

#include "core/allocator.h"
#include "core/view.h"

#ifdef __cplusplus
extern "C" {
#endif

// A record is one piece of work as plain data: (kernel entry, source views,
// destination views, attributes). Every computation, collective and optimizer
// update is one; choir_stream_submit (core/device.h) is the only way in. To
// core the kernel is opaque.
//
// Ownership: a record borrows all it points to; choir_record_list_t owns.

struct choir_stream_s;

typedef struct choir_record_s choir_record_t;

typedef struct choir_cost_s {
  double flops;
  double bytes;  // read and written
} choir_cost_t;

typedef struct choir_kernel_s {
  const char* name;  // "relu/cpu", shown by print, profile and errors
  // Does the work. `stream` tells the device and its threads; it is called on
  // the thread that executes, which need not be the submitter's.
  choir_status_t (*run)(const choir_record_t* record,
                        struct choir_stream_s* stream);
  // What it costs; may be NULL.
  void (*cost)(const choir_record_t* record, choir_cost_t* out_cost);
  // For records whose attributes hold a reference (a communicator): called
  // when a record is copied and when the copy goes. May be NULL.
  void (*retain_attrs)(const void* attrs);
  void (*release_attrs)(const void* attrs);
} choir_kernel_t;

// Most operands of a record.
#define CHOIR_MAX_OPERANDS 16

struct choir_record_s {
  const choir_kernel_t* kernel;
  const choir_view_t* operands;  // the sources, then the destinations
  int32_t src_count;
  int32_t dst_count;
  // Add to destination 0 instead of overwriting it.
  bool accumulate;
  const void* attrs;  // plain bytes that only the kernel reads
  size_t attrs_bytes;
  const char* label;  // what it is for ("conv1"); NULL or long-lived
};

static inline const choir_view_t* choir_record_src(const choir_record_t* record,
                                                   int32_t index) {
  return &record->operands[index];
}
static inline const choir_view_t* choir_record_dst(const choir_record_t* record,
                                                   int32_t index) {
  return &record->operands[record->src_count + index];
}

// A list of records that owns copies: a graph. Unique.
typedef struct choir_record_list_s choir_record_list_t;

CHOIR_API choir_status_t choir_record_list_create(
    choir_allocator_t allocator, choir_record_list_t** out_list)
    CHOIR_NODISCARD;
CHOIR_API void choir_record_list_destroy(choir_record_list_t* list);
// Copies the record, its views and attributes, and retains its buffers.
CHOIR_API choir_status_t choir_record_list_append(choir_record_list_t* list,
                                                  const choir_record_t* record)
    CHOIR_NODISCARD;
CHOIR_API size_t choir_record_list_count(const choir_record_list_t* list);
// Lent until the next append or clear.
CHOIR_API const choir_record_t* choir_record_list_get(
    const choir_record_list_t* list, size_t index);
// Forgets all records and keeps the memory for the next ones.
CHOIR_API void choir_record_list_clear(choir_record_list_t* list);
// Submits every record in order.
CHOIR_API choir_status_t choir_record_list_replay(
    const choir_record_list_t* list, struct choir_stream_s* stream)
    CHOIR_NODISCARD;
// 64 bits over kernels' names, shapes, dtypes, strides and the order in which
// buffers appear, not over addresses: equal on every rank for an equal
// program.
CHOIR_API uint64_t choir_record_list_hash(const choir_record_list_t* list);
// One line a record into a malloc'ed text that the caller frees.
CHOIR_API choir_status_t choir_record_list_print(
    const choir_record_list_t* list, char** out_text) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_RECORD_H_
