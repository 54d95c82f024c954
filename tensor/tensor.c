// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <stdatomic.h>
#include <string.h>

#include "core/device_backend.h"
#include "core/random.h"
#include "tensor/ops.h"
#include "tensor/strided_internal.h"
#include "tensor/tensor_def.h"

struct choir_tensor_s {
  atomic_int ref_count;
  choir_view_t view;  // holds a reference to its buffer
};

// Takes over the caller's reference to view->buffer, also after a failure.
static choir_status_t tensor_wrap(choir_device_t* device,
                                  const choir_view_t* view,
                                  choir_tensor_t** out_tensor) {
  void* memory;
  choir_status_t status =
      choir_allocate(choir_device_allocator(device), sizeof(choir_tensor_t),
                     "tensor", &memory);
  if (status) {
    choir_buffer_release(view->buffer);
    return status;
  }
  choir_tensor_t* tensor = memory;
  atomic_init(&tensor->ref_count, 1);
  tensor->view = *view;
  *out_tensor = tensor;
  return NULL;
}

static size_t view_bytes(const choir_view_t* view) {
  return (size_t)choir_view_count(view) * choir_dtype_bytes(view->dtype);
}

choir_status_t choir_tensor_create_layout(choir_device_t* device,
                                          const choir_view_t* layout,
                                          choir_tensor_t** out_tensor) {
  *out_tensor = NULL;
  if (!device || !layout)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tensor: device or layout is NULL; needs both");
  // Only checks dtype, ndim and sizes; the strides are the layout's own.
  choir_view_t view;
  CHOIR_TRY_NOTE(
      choir_view_make(layout->dtype, layout->ndim, layout->shape, &view),
      "tensor");
  if (choir_view_count(&view) > 0) {
    if (!choir_view_is_dense(layout)) {
      char text[200];
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "tensor: layout %s has gaps or repeats; needs dense "
                         "strides",
                         choir_view_print(layout, text, sizeof text));
    }
    memcpy(view.strides, layout->strides, sizeof view.strides);
  }
  CHOIR_TRY(choir_buffer_create(device, view_bytes(&view), &view.buffer));
  return tensor_wrap(device, &view, out_tensor);
}

choir_status_t choir_tensor_create(choir_device_t* device, choir_dtype_t dtype,
                                   int32_t ndim, const int64_t* shape,
                                   choir_tensor_t** out_tensor) {
  *out_tensor = NULL;
  choir_view_t view;
  CHOIR_TRY_NOTE(choir_view_make(dtype, ndim, shape, &view), "tensor");
  return choir_tensor_create_layout(device, &view, out_tensor);
}

choir_status_t choir_tensor_from_view(const choir_view_t* view,
                                      choir_tensor_t** out_tensor) {
  *out_tensor = NULL;
  if (!view || !view->buffer)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tensor: view has no buffer; needs one");
  choir_view_t shape_only;
  CHOIR_TRY_NOTE(
      choir_view_make(view->dtype, view->ndim, view->shape, &shape_only),
      "tensor");
  int64_t element_bytes = (int64_t)choir_dtype_bytes(view->dtype);
  int64_t room = (int64_t)choir_buffer_bytes(view->buffer) / element_bytes;
  bool inside = view->offset >= 0 && view->offset <= room;
  if (inside && choir_view_count(view) > 0) {
    // Size by size, so that no product can overflow.
    int64_t left = room - view->offset - 1;
    inside = left >= 0;
    for (int32_t axis = 0; inside && axis < view->ndim; ++axis) {
      int64_t steps = view->shape[axis] - 1;
      int64_t stride = view->strides[axis];
      inside = stride >= 0 && (steps == 0 || stride <= left / steps);
      if (inside) left -= steps * stride;
    }
  }
  if (!inside) {
    char text[200];
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "tensor: view %s at element %lld reaches outside its "
                       "buffer; needs to stay within its %lld elements",
                       choir_view_print(view, text, sizeof text),
                       (long long)view->offset, (long long)room);
  }
  choir_buffer_retain(view->buffer);
  return tensor_wrap(choir_buffer_device(view->buffer), view, out_tensor);
}

choir_status_t choir_tensor_from_data(choir_device_t* device,
                                      choir_dtype_t dtype, int32_t ndim,
                                      const int64_t* shape, const void* data,
                                      choir_tensor_t** out_tensor) {
  choir_tensor_t* tensor;
  *out_tensor = NULL;
  CHOIR_TRY(choir_tensor_create(device, dtype, ndim, shape, &tensor));
  choir_status_t status =
      choir_tensor_write(tensor, data, view_bytes(&tensor->view));
  if (status) {
    choir_tensor_release(tensor);
    return status;
  }
  *out_tensor = tensor;
  return NULL;
}

void choir_tensor_retain(choir_tensor_t* tensor) {
  if (!tensor) return;
  atomic_fetch_add_explicit(&tensor->ref_count, 1, memory_order_relaxed);
}

void choir_tensor_release(choir_tensor_t* tensor) {
  if (!tensor || atomic_fetch_sub_explicit(&tensor->ref_count, 1,
                                           memory_order_acq_rel) != 1)
    return;
  // The buffer may hold the last reference to the device, whose pool this
  // tensor's memory has to be back in by then.
  choir_buffer_t* buffer = tensor->view.buffer;
  choir_deallocate(choir_device_allocator(choir_buffer_device(buffer)), tensor,
                   sizeof *tensor);
  choir_buffer_release(buffer);
}

const choir_view_t* choir_tensor_view(const choir_tensor_t* tensor) {
  return &tensor->view;
}

choir_dtype_t choir_tensor_dtype(const choir_tensor_t* tensor) {
  return tensor->view.dtype;
}

int32_t choir_tensor_ndim(const choir_tensor_t* tensor) {
  return tensor->view.ndim;
}

const int64_t* choir_tensor_shape(const choir_tensor_t* tensor) {
  return tensor->view.shape;
}

const int64_t* choir_tensor_strides(const choir_tensor_t* tensor) {
  return tensor->view.strides;
}

int64_t choir_tensor_count(const choir_tensor_t* tensor) {
  return choir_view_count(&tensor->view);
}

choir_device_t* choir_tensor_device(const choir_tensor_t* tensor) {
  return choir_buffer_device(tensor->view.buffer);
}

// ---- Reading and writing ----

static choir_status_t check_host_bytes(const choir_view_t* view,
                                       const char* what, const void* host,
                                       size_t bytes) {
  char text[200];
  if (bytes != view_bytes(view))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tensor %s: host memory has %zu bytes; %s needs %zu",
                       what, bytes, choir_view_print(view, text, sizeof text),
                       view_bytes(view));
  if (!host && bytes > 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tensor %s: host memory is NULL; needs %zu bytes", what,
                       bytes);
  return NULL;
}

// The elements of a view on a device that the host cannot touch, as they lie:
// from the first to the last, gaps included.
typedef struct span_copy_s {
  choir_allocator_t allocator;
  void* data;
  size_t bytes;
  size_t offset_bytes;  // in the buffer
  choir_view_t view;    // offset 0: relative to `data`
} span_copy_t;

static choir_status_t span_make(const choir_view_t* view, span_copy_t* span) {
  size_t element_bytes = choir_dtype_bytes(view->dtype);
  span->allocator = choir_device_allocator(choir_buffer_device(view->buffer));
  span->bytes = (size_t)choir_view_extent(view) * element_bytes;
  span->offset_bytes = (size_t)view->offset * element_bytes;
  span->view = *view;
  span->view.offset = 0;
  return choir_allocate(span->allocator, span->bytes, "copy of a tensor",
                        &span->data);
}

choir_status_t choir_tensor_read(choir_tensor_t* tensor, void* host,
                                 size_t bytes) {
  const choir_view_t* view = &tensor->view;
  CHOIR_TRY(check_host_bytes(view, "read", host, bytes));
  choir_device_t* device = choir_buffer_device(view->buffer);
  choir_stream_t* stream = choir_device_stream(device);
  if (bytes == 0) return choir_stream_synchronize(stream);
  choir_view_t dense = *view;
  dense.offset = 0;
  choir_view_set_contiguous(&dense);
  if (choir_device_is_host(device)) {
    CHOIR_TRY(choir_stream_synchronize(stream));
    CHOIR_TRY(choir__buffer_check_memory(view->buffer));
    choir__strided_copy(view, choir__buffer_place(view->buffer), &dense, host);
    return NULL;
  }
  if (choir_view_is_contiguous(view))
    return choir_buffer_read(
        view->buffer, stream,
        (size_t)view->offset * choir_dtype_bytes(view->dtype), host, bytes);
  span_copy_t span;
  CHOIR_TRY(span_make(view, &span));
  choir_status_t status = choir_buffer_read(
      view->buffer, stream, span.offset_bytes, span.data, span.bytes);
  if (!status) choir__strided_copy(&span.view, span.data, &dense, host);
  choir_deallocate(span.allocator, span.data, span.bytes);
  return status;
}

// Of a view with gaps, which other streams may be writing: the elements go up
// as they lie on the host, and the device puts them into their places.
static choir_status_t write_with_gaps(choir_tensor_t* tensor,
                                      choir_stream_t* stream,
                                      choir_view_t dense, const void* host) {
  choir_device_t* device = choir_stream_device(stream);
  const size_t bytes = view_bytes(&dense);
  choir_tensor_t* src = NULL;
  CHOIR_TRY(choir_buffer_create(device, bytes, &dense.buffer));
  CHOIR_TRY(tensor_wrap(device, &dense, &src));
  choir_status_t status =
      choir_buffer_write(dense.buffer, stream, 0, host, bytes);
  if (!status)
    status = choir_op_run(stream, CHOIR_OP_COPY, &src, 1, NULL, false, &tensor);
  choir_tensor_release(src);
  return status ? status : choir_stream_synchronize(stream);
}

choir_status_t choir_tensor_write(choir_tensor_t* tensor, const void* host,
                                  size_t bytes) {
  const choir_view_t* view = &tensor->view;
  CHOIR_TRY(check_host_bytes(view, "write", host, bytes));
  if (choir__view_repeats(view)) {
    char text[200];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tensor write: %s repeats elements; needs one place for "
                       "each",
                       choir_view_print(view, text, sizeof text));
  }
  choir_device_t* device = choir_buffer_device(view->buffer);
  choir_stream_t* stream = choir_device_stream(device);
  if (bytes == 0) return choir_stream_synchronize(stream);
  choir_view_t dense = *view;
  dense.offset = 0;
  choir_view_set_contiguous(&dense);
  if (choir_device_is_host(device)) {
    CHOIR_TRY(choir_stream_synchronize(stream));
    CHOIR_TRY(choir__buffer_check_memory(view->buffer));
    choir__strided_copy(&dense, host, view, choir__buffer_place(view->buffer));
    choir__buffer_wrote(view->buffer);
    return NULL;
  }
  if (choir_view_is_contiguous(view))
    return choir_buffer_write(
        view->buffer, stream,
        (size_t)view->offset * choir_dtype_bytes(view->dtype), host, bytes);
  if (!choir_view_is_dense(view))
    return write_with_gaps(tensor, stream, dense, host);
  span_copy_t span;
  CHOIR_TRY(span_make(view, &span));
  choir__strided_copy(&dense, host, &span.view, span.data);
  choir_status_t status = choir_buffer_write(
      view->buffer, stream, span.offset_bytes, span.data, span.bytes);
  choir_deallocate(span.allocator, span.data, span.bytes);
  return status;
}

// ---- Places ----

bool choir__tensors_overlap(const choir_tensor_t* a, const choir_tensor_t* b) {
  return choir__views_overlap(&a->view, &b->view);
}

choir_status_t choir__tensor_stretch(choir_tensor_t* tensor, int64_t start,
                                     int64_t count,
                                     choir_tensor_t** out_stretch) {
  choir_view_t view;
  CHOIR_TRY(choir_view_make(tensor->view.dtype, 1, &count, &view));
  view.buffer = tensor->view.buffer;
  view.offset = tensor->view.offset + start;
  return choir_tensor_from_view(&view, out_stretch);
}

choir_status_t choir__tensor_move(choir_tensor_t* tensor,
                                  choir_buffer_t* buffer, int64_t offset) {
  choir_view_t view = tensor->view;
  view.buffer = buffer;
  view.offset = offset;
  choir_tensor_t* moved = NULL;
  CHOIR_TRY(choir_tensor_from_view(&view, &moved));
  choir_status_t status =
      choir_op_run(choir_device_stream(choir_buffer_device(buffer)),
                   CHOIR_OP_COPY, &tensor, 1, NULL, false, &moved);
  if (!status) {
    moved->view = tensor->view;
    tensor->view = view;
  }
  choir_tensor_release(moved);
  return status;
}

// ---- Shards ----

choir_status_t choir_named_tensor_make_whole(const choir_named_tensor_t* named,
                                             choir_tensor_t** out_whole) {
  if (named->shard)
    return choir_tensor_create_layout(choir_tensor_device(named->tensor),
                                      &named->shard->whole, out_whole);
  choir_tensor_retain(named->tensor);
  *out_whole = named->tensor;
  return NULL;
}

choir_status_t choir_named_tensor_take(const choir_named_tensor_t* named,
                                       choir_tensor_t* whole) {
  if (!named->shard) return NULL;
  choir_tensor_t* tensor = named->tensor;
  choir_tensor_t* part = NULL;
  CHOIR_TRY(choir__tensor_stretch(whole, named->shard->start,
                                  choir_tensor_count(tensor), &part));
  choir_status_t status =
      choir_op_run(choir_device_stream(choir_tensor_device(tensor)),
                   CHOIR_OP_COPY, &part, 1, NULL, false, &tensor);
  choir_tensor_release(part);
  return status;
}

// ---- Digest ----

// Odd constants of 64-bit mixers (Steele, Lea and Flood, "Fast Splittable
// Pseudorandom Number Generators", OOPSLA 2014).
#define MIX_MULTIPLIER 0xbf58476d1ce4e5b9ull
#define MIX_FINAL 0x94d049bb133111ebull

static uint64_t mix_word(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * MIX_MULTIPLIER;
  return hash ^ (hash >> 29);
}

// Eight bytes a step in four independent chains: one word a clock, not one
// byte.
static uint64_t mix_bytes(uint64_t hash, const void* data, size_t bytes) {
  const unsigned char* next = data;
  uint64_t lanes[4] = {hash, hash + 1, hash + 2, hash + 3};
  size_t left = bytes;
  uint64_t word;
  for (; left >= 32; left -= 32, next += 32) {
    for (int lane = 0; lane < 4; ++lane) {
      memcpy(&word, next + 8 * lane, 8);
      lanes[lane] = mix_word(lanes[lane], word);
    }
  }
  for (; left >= 8; left -= 8, next += 8) {
    memcpy(&word, next, 8);
    lanes[0] = mix_word(lanes[0], word);
  }
  if (left > 0) {
    word = 0;
    memcpy(&word, next, left);
    lanes[1] = mix_word(lanes[1], word);
  }
  hash = mix_word(lanes[0], bytes);
  for (int lane = 1; lane < 4; ++lane) hash = mix_word(hash, lanes[lane]);
  return hash;
}

static choir_status_t mix_tensor(choir_tensor_t* tensor, uint64_t* hash) {
  const choir_view_t* view = &tensor->view;
  choir_device_t* device = choir_tensor_device(tensor);
  size_t element_bytes = choir_dtype_bytes(view->dtype);
  size_t bytes = view_bytes(view);
  if (choir_device_is_host(device) && choir_view_is_contiguous(view)) {
    CHOIR_TRY(choir_stream_synchronize(choir_device_stream(device)));
    const char* data = choir__buffer_place(view->buffer);
    *hash =
        mix_bytes(*hash, data + (size_t)view->offset * element_bytes, bytes);
    return NULL;
  }
  choir_allocator_t allocator = choir_device_allocator(device);
  size_t room = bytes > 0 ? bytes : 1;
  void* copy;
  CHOIR_TRY(choir_allocate(allocator, room, "copy of a tensor", &copy));
  choir_status_t status = choir_tensor_read(tensor, copy, bytes);
  if (!status) *hash = mix_bytes(*hash, copy, bytes);
  choir_deallocate(allocator, copy, room);
  return status;
}

choir_status_t choir_tensor_digest(const choir_named_tensor_t* tensors,
                                   size_t count, uint64_t* out_digest) {
  *out_digest = 0;
  uint64_t hash = mix_word(CHOIR_HASH_START, count);
  for (size_t i = 0; i < count; ++i) {
    const char* name = tensors[i].name ? tensors[i].name : "";
    if (!tensors[i].tensor)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "tensor digest: tensor %zu \"%s\" is NULL; needs all",
                         i, name);
    if (tensors[i].shard)
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "tensor digest: %s is a shard; needs whole tensors "
                         "(choir_updater_gather)",
                         name);
    const choir_view_t* view = &tensors[i].tensor->view;
    hash = mix_bytes(hash, name, strlen(name));
    hash = mix_word(hash, (uint64_t)view->dtype);
    hash = mix_word(hash, (uint64_t)view->ndim);
    for (int32_t axis = 0; axis < view->ndim; ++axis)
      hash = mix_word(hash, (uint64_t)view->shape[axis]);
    CHOIR_TRY_NOTE(mix_tensor(tensors[i].tensor, &hash), "tensor digest: %s",
                   name);
  }
  hash = (hash ^ (hash >> 31)) * MIX_FINAL;
  *out_digest = hash ^ (hash >> 31);
  return NULL;
}
