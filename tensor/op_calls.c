// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tensor/op_calls_internal.h"
#include "tensor/strided_internal.h"

// Calls that will be one record. All sources come first, with room for so many
// calls', then all destinations.
struct choir_op_waiting_s {
  size_t bytes;
  const choir_op_def_t* def;
  const choir_calls_kernel_t* kernel;
  void* attrs;  // NULL: none
  choir_scalar_t* scalar;
  int32_t count;
  int32_t room;
  int32_t src_count;  // of one call
  int32_t dst_count;
  choir_view_t operands[];  // then the attributes
};

static choir_allocator_t allocator_of(const choir_op_calls_t* calls) {
  return choir_device_allocator(choir_stream_device(calls->stream));
}

// ---- What waits ----

static choir_view_t* sources_of(choir_op_waiting_t* waiting, int32_t call) {
  return waiting->operands + call * waiting->src_count;
}

static choir_view_t* destinations_of(choir_op_waiting_t* waiting,
                                     int32_t call) {
  return sources_of(waiting, waiting->room) + call * waiting->dst_count;
}

static choir_status_t make_waiting(choir_op_calls_t* calls,
                                   const choir_calls_kernel_t* kernel,
                                   const choir_record_t* record) {
  const size_t operands = (size_t)kernel->max_calls *
                          (size_t)(record->src_count + record->dst_count);
  const size_t attrs_at =
      sizeof(choir_op_waiting_t) + operands * sizeof(choir_view_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator_of(calls), attrs_at + record->attrs_bytes,
                           "calls that wait", &memory));
  choir_op_waiting_t* waiting = memory;
  waiting->bytes = attrs_at + record->attrs_bytes;
  waiting->def = choir__op_def(kernel->op);
  waiting->kernel = kernel;
  waiting->room = kernel->max_calls;
  waiting->src_count = record->src_count;
  waiting->dst_count = record->dst_count;
  waiting->scalar = record->scalar;
  if (record->attrs_bytes > 0) {
    waiting->attrs = (char*)memory + attrs_at;
    memcpy(waiting->attrs, record->attrs, record->attrs_bytes);
  }
  calls->waiting = waiting;
  return NULL;
}

// The caller may let go of a call's tensors before it runs.
static void keep(choir_view_t* to, const choir_view_t* from, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    to[i] = from[i];
    choir_buffer_retain(to[i].buffer);
  }
}

static void let_go(const choir_view_t* views, int32_t count) {
  for (int32_t i = 0; i < count; ++i) choir_buffer_release(views[i].buffer);
}

static void forget(choir_op_calls_t* calls) {
  choir_op_waiting_t* waiting = calls->waiting;
  if (!waiting) return;
  let_go(sources_of(waiting, 0), waiting->count * waiting->src_count);
  let_go(destinations_of(waiting, 0), waiting->count * waiting->dst_count);
  choir_deallocate(allocator_of(calls), waiting, waiting->bytes);
  calls->waiting = NULL;
}

static bool goes_with(const choir_op_waiting_t* waiting,
                      const choir_calls_kernel_t* kernel,
                      const choir_record_t* record) {
  const choir_struct_def_t* attrs = waiting->def->attrs;
  return waiting->kernel == kernel && waiting->count < waiting->room &&
         waiting->src_count == record->src_count &&
         waiting->scalar == record->scalar &&
         (!attrs || choir_struct_equal(attrs, waiting->attrs, record->attrs));
}

// The kernel that would run this call with others; NULL: none.
static const choir_calls_kernel_t* kernel_for(const choir_op_calls_t* calls,
                                              const choir_record_t* record) {
  const choir_op_t op = choir__record_op(record);
  for (int i = 0; calls->kernels && calls->kernels[i]; ++i)
    if (calls->kernels[i]->op == op && calls->kernels[i]->supports(record))
      return calls->kernels[i];
  return NULL;
}

choir_status_t choir__op_calls_take(choir_op_calls_t* calls,
                                    choir_record_t* record) {
  record->scalar = calls->scalar;
  record->scalar_offset = calls->scalar_offset;
  const choir_calls_kernel_t* kernel = kernel_for(calls, record);
  if (!kernel) {
    CHOIR_TRY(choir_stream_submit(calls->stream, record));
    calls->has_submitted = true;
    return NULL;
  }
  if (calls->waiting && !goes_with(calls->waiting, kernel, record))
    CHOIR_TRY(choir__op_calls_flush(calls));
  if (!calls->waiting) CHOIR_TRY(make_waiting(calls, kernel, record));
  choir_op_waiting_t* waiting = calls->waiting;
  keep(sources_of(waiting, waiting->count), record->operands,
       record->src_count);
  keep(destinations_of(waiting, waiting->count), choir_record_dst(record, 0),
       record->dst_count);
  ++waiting->count;
  return NULL;
}

// ---- From begin to end ----

void choir__op_calls_begin(choir_op_calls_t* calls, choir_stream_t* stream,
                           const char* label) {
  *calls = (choir_op_calls_t){
      .stream = stream,
      .label = label,
      .kernels = choir__calls_kernels(choir_stream_device(stream))};
}

choir_status_t choir__op_calls_run(choir_op_calls_t* calls, choir_op_t op,
                                   choir_tensor_t* const* srcs,
                                   int32_t src_count, const void* attrs,
                                   choir_tensor_t** dsts) {
  return choir__op_run(calls->stream, calls, op, srcs, src_count, attrs, false,
                       0, dsts);
}

choir_status_t choir__op_calls_flush(choir_op_calls_t* calls) {
  choir_op_waiting_t* waiting = calls->waiting;
  if (!waiting) return NULL;
  const choir_op_def_t* def = waiting->def;
  const int32_t dst_count = waiting->count * waiting->dst_count;
  const choir_view_t* dsts = destinations_of(waiting, 0);
  waiting->room = waiting->count;
  memmove(destinations_of(waiting, 0), dsts,
          (size_t)dst_count * sizeof(choir_view_t));
  const choir_record_t record = {
      .kernel = &waiting->kernel->kernel,
      .operands = waiting->operands,
      .src_count = waiting->count * waiting->src_count,
      .dst_count = dst_count,
      .attrs = waiting->attrs,
      .attrs_bytes = def->attrs ? def->attrs->bytes : 0,
      .at_step = def->at_step,
      .scalar = waiting->scalar,
      .scalar_offset = calls->scalar_offset,
      .label = calls->label};
  const int32_t count = waiting->count;
  choir_status_t status = choir_stream_submit(calls->stream, &record);
  forget(calls);
  CHOIR_TRY_NOTE(status, "%d calls of %s", (int)count, def->name);
  calls->has_submitted = true;
  return NULL;
}

choir_status_t choir__op_calls_end(choir_op_calls_t* calls,
                                   choir_status_t status) {
  if (!status) return choir__op_calls_flush(calls);
  forget(calls);
  return status;
}
