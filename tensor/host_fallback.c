// SPDX-License-Identifier: Apache-2.0
#include "tensor/host_fallback_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/strided_internal.h"

static pthread_once_t strict_once = PTHREAD_ONCE_INIT;
static bool strict;

static void read_strict(void) {
  // $CHOIR_STRICT_DEVICE: 1: an op without a kernel for its device fails with
  // UNIMPLEMENTED. Not set: it runs on the host and is counted.
  const char* text = getenv("CHOIR_STRICT_DEVICE");
  strict = text && strcmp(text, "1") == 0;
}

bool choir__host_fallback_is_forbidden(void) {
  (void)pthread_once(&strict_once, read_strict);
  return strict;
}

choir_status_t choir__host_fallback_refusal(choir_op_t op,
                                            const choir_device_t* device,
                                            const choir_record_t* record) {
  char text[160];
  return CHOIR_ERROR(
      UNIMPLEMENTED,
      "%s: device %s has no kernel for %s; CHOIR_STRICT_DEVICE=1 forbids "
      "the run on the host",
      choir_op_name(op), choir_device_name(device),
      choir_view_print(&record->operands[0], text, sizeof text));
}

choir_status_t choir__run_on_host(const choir_record_t* record,
                                  choir_stream_t* stream) {
  const choir_op_t op = choir__record_op(record);
  if (choir__host_fallback_is_forbidden())
    return choir__host_fallback_refusal(op, choir_stream_device(stream),
                                        record);
  return choir__host_kernel(op)->run(record, stream);
}

// What the operands cover of one device buffer, in host memory.
typedef struct host_copy_s {
  choir_buffer_t* device_buffer;
  choir_buffer_t* host_buffer;  // wraps `data`
  size_t start;                 // bytes into the device buffer
  size_t stop;
  bool is_read;  // an operand's elements come down
  void* data;
} host_copy_t;

typedef struct fallback_s {
  choir_stream_t* stream;
  choir_device_t* device;
  choir_allocator_t allocator;
  host_copy_t copies[CHOIR_MAX_OPERANDS];
  int32_t copy_count;
  // By operand; -1: it is empty, or its elements are not used.
  int32_t copy_of[CHOIR_MAX_OPERANDS];
  choir_view_t operands[CHOIR_MAX_OPERANDS];
} fallback_t;

static void view_range(const choir_view_t* view, size_t* start, size_t* stop) {
  size_t bytes = choir_dtype_bytes(view->dtype);
  *start = (size_t)view->offset * bytes;
  *stop = *start + (size_t)choir_view_extent(view) * bytes;
}

// Operands on one buffer share a copy, so that a destination that is also a
// source stays one.
static void plan_host_copies(const choir_record_t* record,
                             fallback_t* fallback) {
  int32_t count = record->src_count + record->dst_count;
  for (int32_t i = 0; i < count; ++i) {
    const choir_view_t* view = &record->operands[i];
    fallback->copy_of[i] = -1;
    const bool reads = choir_record_reads(record, i);
    if (!view->buffer || choir_view_count(view) == 0 ||
        (i < record->src_count && !reads))
      continue;
    size_t start, stop;
    view_range(view, &start, &stop);
    int32_t m = 0;
    while (m < fallback->copy_count &&
           fallback->copies[m].device_buffer != view->buffer)
      ++m;
    host_copy_t* copy = &fallback->copies[m];
    if (m == fallback->copy_count) {
      ++fallback->copy_count;
      *copy = (host_copy_t){
          .device_buffer = view->buffer, .start = start, .stop = stop};
    }
    if (start < copy->start) copy->start = start;
    if (stop > copy->stop) copy->stop = stop;
    copy->is_read |= reads;
    fallback->copy_of[i] = m;
  }
  // Whole elements of every dtype, and aligned as in the device buffer.
  for (int32_t m = 0; m < fallback->copy_count; ++m)
    fallback->copies[m].start &= ~(size_t)63;
}

static choir_status_t device_to_host(fallback_t* fallback) {
  for (int32_t m = 0; m < fallback->copy_count; ++m) {
    host_copy_t* copy = &fallback->copies[m];
    size_t bytes = copy->stop - copy->start;
    CHOIR_TRY(
        choir_allocate(fallback->allocator, bytes, "host copy", &copy->data));
    CHOIR_TRY(choir_buffer_wrap(fallback->device, copy->data, bytes, NULL, NULL,
                                &copy->host_buffer));
    if (copy->is_read)
      CHOIR_TRY(choir_buffer_read(copy->device_buffer, fallback->stream,
                                  copy->start, copy->data, bytes));
  }
  return NULL;
}

static choir_status_t host_to_device(const choir_record_t* record,
                                     fallback_t* fallback) {
  for (int32_t i = 0; i < record->dst_count; ++i) {
    int32_t operand = record->src_count + i;
    if (fallback->copy_of[operand] < 0) continue;
    const host_copy_t* copy = &fallback->copies[fallback->copy_of[operand]];
    CHOIR_TRY(choir__write_elements(&record->operands[operand],
                                    fallback->stream, copy->data, copy->start));
  }
  return NULL;
}

static choir_status_t compute(const choir_op_def_t* def,
                              const choir_record_t* record,
                              fallback_t* fallback) {
  int32_t count = record->src_count + record->dst_count;
  for (int32_t i = 0; i < count; ++i) {
    choir_view_t* view = &fallback->operands[i];
    *view = record->operands[i];
    if (fallback->copy_of[i] < 0) continue;
    const host_copy_t* copy = &fallback->copies[fallback->copy_of[i]];
    view->buffer = copy->host_buffer;
    view->offset -= (int64_t)(copy->start / choir_dtype_bytes(view->dtype));
  }
  choir_record_t host_record = *record;
  host_record.operands = fallback->operands;
  return def->reference(&host_record, fallback->stream);
}

choir_status_t choir__host_fallback(const choir_op_def_t* def,
                                    const choir_record_t* record,
                                    choir_stream_t* stream) {
  fallback_t fallback = {.stream = stream,
                         .device = choir_stream_device(stream)};
  fallback.allocator = choir_device_allocator(fallback.device);
  plan_host_copies(record, &fallback);
  choir_status_t status = device_to_host(&fallback);
  if (!status) status = compute(def, record, &fallback);
  if (!status) status = host_to_device(record, &fallback);
  for (int32_t m = 0; m < fallback.copy_count; ++m) {
    const host_copy_t* copy = &fallback.copies[m];
    choir_buffer_release(copy->host_buffer);
    if (copy->data)
      choir_deallocate(fallback.allocator, copy->data,
                       copy->stop - copy->start);
  }
  if (status)
    return choir_status_annotate(status, __FILE__, __LINE__,
                                 "%s on the host for device %s", def->name,
                                 choir_device_name(fallback.device));
  return NULL;
}
