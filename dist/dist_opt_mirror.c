// SPDX-License-Identifier: Apache-2.0
// Gradients and parameters of a device whose memory the host cannot see, on the
// host: for strategies that compute there. Copies go down before such work and
// up after it, as records of the stream that the work is in.
#include "dist/dist_opt_internal.h"

// A stretch of the device's memory and its copy.
typedef struct stretch_s {
  choir_buffer_t* buffer;  // borrowed: of a bucket or a parameter
  size_t offset;
  size_t bytes;
  char* host;
} stretch_t;

struct choir__mirror_s {
  choir_allocator_t allocator;
  int32_t bucket_count;
  int32_t value_count;
  choir_buffer_t** buffers;  // of buckets, in the communicator's memory
  stretch_t* grads;          // [bucket_count]
  stretch_t* values;         // [value_count]
  void* value_memory;
  size_t value_bytes;
};

// ---- Life ----

static choir_status_t allocate(choir__mirror_t* mirror, size_t bytes,
                               void* out_memory) {
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(mirror->allocator, bytes, "copies on the host", &memory));
  *(void**)out_memory = memory;
  return NULL;
}

static choir_status_t mirror_grads(choir__mirror_t* mirror,
                                   const choir__mirrored_t* what) {
  const size_t count = (size_t)what->bucket_count;
  CHOIR_TRY(
      allocate(mirror, count * sizeof(choir_buffer_t*), &mirror->buffers));
  CHOIR_TRY(allocate(mirror, count * sizeof(stretch_t), &mirror->grads));
  for (int32_t b = 0; b < what->bucket_count; ++b) {
    choir_strategy_bucket_t* bucket = &what->buckets[b];
    const size_t bytes =
        (size_t)bucket->count * choir_dtype_bytes(bucket->dtype);
    CHOIR_TRY(choir_comm_buffer_create(what->comm, what->host, bytes,
                                       &mirror->buffers[b]));
    bucket->grads = choir_buffer_data(mirror->buffers[b]);
    mirror->grads[b] = (stretch_t){what->grads[b], 0, bytes, bucket->grads};
  }
  return NULL;
}

static stretch_t value_stretch(choir_tensor_t* value) {
  const choir_view_t* view = choir_tensor_view(value);
  const size_t element = choir_dtype_bytes(view->dtype);
  return (stretch_t){.buffer = view->buffer,
                     .offset = (size_t)view->offset * element,
                     .bytes = (size_t)choir_view_count(view) * element};
}

static choir_status_t mirror_values(choir__mirror_t* mirror,
                                    const choir__mirrored_t* what) {
  const size_t count = (size_t)what->value_count;
  CHOIR_TRY(allocate(mirror, count * sizeof(stretch_t), &mirror->values));
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    mirror->values[i] = value_stretch(what->values[i]);
    bytes += (mirror->values[i].bytes + 63) / 64 * 64;
  }
  CHOIR_TRY(allocate(mirror, bytes, &mirror->value_memory));
  mirror->value_bytes = bytes;
  char* place = mirror->value_memory;
  for (size_t i = 0; i < count; ++i) {
    mirror->values[i].host = place;
    what->pieces[i].value = place;
    place += (mirror->values[i].bytes + 63) / 64 * 64;
  }
  return NULL;
}

choir_status_t choir__mirror_create(choir_allocator_t allocator,
                                    const choir__mirrored_t* what,
                                    choir__mirror_t** out_mirror) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir__mirror_t),
                           "copies on the host", &memory));
  choir__mirror_t* mirror = memory;
  mirror->allocator = allocator;
  mirror->bucket_count = what->bucket_count;
  mirror->value_count = what->value_count;
  *out_mirror = mirror;
  CHOIR_TRY(mirror_grads(mirror, what));
  return mirror_values(mirror, what);
}

void choir__mirror_destroy(choir__mirror_t* mirror) {
  if (!mirror) return;
  const choir_allocator_t allocator = mirror->allocator;
  const size_t buckets = (size_t)mirror->bucket_count;
  for (size_t b = 0; mirror->buffers && b < buckets; ++b)
    choir_buffer_release(mirror->buffers[b]);
  choir_deallocate(allocator, mirror->buffers,
                   buckets * sizeof(choir_buffer_t*));
  choir_deallocate(allocator, mirror->grads, buckets * sizeof(stretch_t));
  choir_deallocate(allocator, mirror->values,
                   (size_t)mirror->value_count * sizeof(stretch_t));
  choir_deallocate(allocator, mirror->value_memory, mirror->value_bytes);
  choir_deallocate(allocator, mirror, sizeof(*mirror));
}

// ---- Copies ----

static choir_status_t copy(const stretch_t* stretch, choir_stream_t* stream,
                           bool is_up) {
  return is_up ? choir_buffer_write(stretch->buffer, stream, stretch->offset,
                                    stretch->host, stretch->bytes)
               : choir_buffer_read(stretch->buffer, stream, stretch->offset,
                                   stretch->host, stretch->bytes);
}

choir_status_t choir__mirror_copy_values(choir__mirror_t* mirror,
                                         choir_stream_t* stream, bool is_up) {
  for (int32_t i = 0; i < mirror->value_count; ++i)
    CHOIR_TRY(copy(&mirror->values[i], stream, is_up));
  return NULL;
}

typedef struct copy_attrs_s {
  choir__mirror_t* mirror;
  int64_t bucket;  // -1: the parameters
} copy_attrs_t;

static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          bool is_up) {
  const copy_attrs_t* attrs = record->attrs;
  choir__mirror_t* mirror = attrs->mirror;
  return attrs->bucket < 0 ? choir__mirror_copy_values(mirror, stream, is_up)
                           : copy(&mirror->grads[attrs->bucket], stream, is_up);
}

static choir_status_t run_down(const choir_record_t* record,
                               choir_stream_t* stream) {
  return run(record, stream, false);
}

static choir_status_t run_up(const choir_record_t* record,
                             choir_stream_t* stream) {
  return run(record, stream, true);
}

static const choir_kernel_t down_kernel = {.name = "read_down/dist_opt",
                                           .run = run_down};
static const choir_kernel_t up_kernel = {.name = "write_up/dist_opt",
                                         .run = run_up};

static choir_status_t submit(choir__mirror_t* mirror, int64_t bucket,
                             choir_stream_t* stream, bool is_up) {
  if (!mirror) return NULL;
  const copy_attrs_t attrs = {.mirror = mirror, .bucket = bucket};
  const choir_record_t record = {.kernel = is_up ? &up_kernel : &down_kernel,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs)};
  return choir_stream_submit(stream, &record);
}

choir_status_t choir__mirror_submit_bucket(choir__mirror_t* mirror,
                                           int32_t bucket,
                                           choir_stream_t* stream, bool is_up) {
  return submit(mirror, bucket, stream, is_up);
}

choir_status_t choir__mirror_submit_values(choir__mirror_t* mirror,
                                           choir_stream_t* stream, bool is_up) {
  return submit(mirror, -1, stream, is_up);
}
