// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elements.h"

#include <string.h>

double choir__real_load(const void* data, choir_dtype_t dtype, int64_t offset) {
  if (dtype == CHOIR_DTYPE_F32) return ((const float*)data)[offset];
  if (dtype == CHOIR_DTYPE_F64) return ((const double*)data)[offset];
  return choir_element_load(
      (const char*)data + offset * (int64_t)choir_dtype_bytes(dtype), dtype);
}

void choir__real_store(void* data, choir_dtype_t dtype, int64_t offset,
                       double value, bool accumulate) {
  if (accumulate) value += choir__real_load(data, dtype, offset);
  if (dtype == CHOIR_DTYPE_F32) {
    ((float*)data)[offset] = (float)value;
  } else if (dtype == CHOIR_DTYPE_F64) {
    ((double*)data)[offset] = value;
  } else {
    choir_element_store(
        (char*)data + offset * (int64_t)choir_dtype_bytes(dtype), dtype, value);
  }
}

int64_t choir__integer_load(const void* data, choir_dtype_t dtype,
                            int64_t offset) {
  if (dtype == CHOIR_DTYPE_I64) return ((const int64_t*)data)[offset];
  if (dtype == CHOIR_DTYPE_I32) return ((const int32_t*)data)[offset];
  return ((const uint8_t*)data)[offset];
}

void choir__integer_store(void* data, choir_dtype_t dtype, int64_t offset,
                          int64_t value, bool accumulate) {
  if (accumulate)
    value = (int64_t)((uint64_t)value +
                      (uint64_t)choir__integer_load(data, dtype, offset));
  if (dtype == CHOIR_DTYPE_I64) {
    ((int64_t*)data)[offset] = value;
  } else if (dtype == CHOIR_DTYPE_I32) {
    ((int32_t*)data)[offset] = (int32_t)(uint32_t)(uint64_t)value;
  } else if (dtype == CHOIR_DTYPE_U8) {
    ((uint8_t*)data)[offset] = (uint8_t)(uint64_t)value;
  } else {
    ((uint8_t*)data)[offset] = value != 0;
  }
}

void choir__element_copy(const void* src, int64_t from, void* dst, int64_t to,
                         choir_dtype_t dtype, bool accumulate) {
  const int64_t bytes = (int64_t)choir_dtype_bytes(dtype);
  if (!accumulate) {
    memcpy((char*)dst + to * bytes, (const char*)src + from * bytes,
           (size_t)bytes);
  } else if (choir_dtype_is_float(dtype)) {
    choir__real_store(dst, dtype, to, choir__real_load(src, dtype, from), true);
  } else {
    choir__integer_store(dst, dtype, to, choir__integer_load(src, dtype, from),
                         true);
  }
}

// ---- Dense operands ----

static void gather(const choir_view_t* view, double* values) {
  const void* data = choir__buffer_place(view->buffer);
  choir__walk_t walk;
  const choir_view_t* views[] = {view};
  for (bool more = choir__walk_start(&walk, views, 1); more;
       more = choir__walk_next(&walk))
    *values++ = choir__real_load(data, view->dtype, walk.offsets[0]);
}

static void scatter(const double* values, const choir_view_t* view,
                    bool accumulate) {
  void* data = choir__buffer_place(view->buffer);
  choir__walk_t walk;
  const choir_view_t* views[] = {view};
  for (bool more = choir__walk_start(&walk, views, 1); more;
       more = choir__walk_next(&walk))
    choir__real_store(data, view->dtype, walk.offsets[0], *values++,
                      accumulate);
}

choir_status_t choir__dense_begin(const choir_record_t* record,
                                  choir_stream_t* stream, uint32_t needed,
                                  choir__dense_t* dense) {
  memset(dense, 0, sizeof *dense);
  dense->record = record;
  dense->allocator = choir_device_allocator(choir_stream_device(stream));
  // One element more for each, so that no array is NULL for being empty.
  int64_t count = 0;
  for (int32_t i = 0; i < record->src_count; ++i) {
    if (needed >> i & 1)
      count += choir_view_count(choir_record_src(record, i)) + 1;
  }
  for (int32_t i = 0; i < record->dst_count; ++i)
    count += choir_view_count(choir_record_dst(record, i)) + 1;
  dense->bytes = (size_t)count * sizeof(double);
  CHOIR_TRY(choir_allocate(dense->allocator, dense->bytes, "reference kernel",
                           &dense->memory));
  double* next = dense->memory;
  for (int32_t i = 0; i < record->src_count; ++i) {
    if (!(needed >> i & 1)) continue;
    const choir_view_t* src = choir_record_src(record, i);
    dense->srcs[i] = next;
    if (choir_view_count(src) > 0) gather(src, next);
    next += choir_view_count(src) + 1;
  }
  for (int32_t i = 0; i < record->dst_count; ++i) {
    dense->dsts[i] = next;
    next += choir_view_count(choir_record_dst(record, i)) + 1;
  }
  return NULL;
}

choir_status_t choir__dense_end(choir__dense_t* dense, choir_status_t status) {
  const choir_record_t* record = dense->record;
  for (int32_t i = 0; !status && i < record->dst_count; ++i) {
    const choir_view_t* dst = choir_record_dst(record, i);
    if (choir_view_count(dst) > 0)
      scatter(dense->dsts[i], dst, record->accumulate);
  }
  choir_deallocate(dense->allocator, dense->memory, dense->bytes);
  return status;
}

// ---- Shape rules ----

choir_status_t choir__infer_shape(choir_dtype_t dtype, int32_t ndim,
                                  const int64_t* shape, choir_view_t* dst) {
  return choir_view_make(dtype, ndim, shape, dst);
}

choir_status_t choir__infer_like(const choir_view_t* like, choir_view_t* dst) {
  CHOIR_TRY(choir__infer_shape(like->dtype, like->ndim, like->shape, dst));
  choir_view_set_layout_like(dst, like);
  return NULL;
}

choir_status_t choir__infer_as_source(const choir_record_t* record,
                                      choir_view_t* dsts) {
  return choir__infer_like(choir_record_src(record, 0), &dsts[0]);
}

choir_status_t choir__need_ndim(const char* what, const choir_view_t* view,
                                int32_t ndim) {
  if (view->ndim == ndim) return NULL;
  char text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s is %s; needs %d dimension%s", what,
                     choir_view_print(view, text, sizeof text), (int)ndim,
                     ndim == 1 ? "" : "s");
}

choir_status_t choir__need_same_shape(const char* what,
                                      const choir_view_t* view,
                                      const char* other_what,
                                      const choir_view_t* other) {
  if (choir_view_same_shape(view, other)) return NULL;
  char text[160], other_text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s is %s; needs the shape of %s, %s",
                     what, choir_view_print(view, text, sizeof text),
                     other_what,
                     choir_view_print(other, other_text, sizeof other_text));
}

choir_status_t choir__need_vector(const char* what, const choir_view_t* view,
                                  int64_t size) {
  if (view->ndim == 1 && view->shape[0] == size) return NULL;
  char text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s is %s; needs shape (%lld)", what,
                     choir_view_print(view, text, sizeof text),
                     (long long)size);
}

choir_status_t choir__broadcast_infer(const choir_view_t* srcs,
                                      int32_t src_count, choir_view_t* dst) {
  *dst = srcs[0];
  for (int32_t i = 0; i < src_count; ++i) {
    int32_t ndim;
    int64_t shape[CHOIR_MAX_NDIM];
    CHOIR_TRY(choir_view_broadcast_shape(dst, &srcs[i], &ndim, shape));
    CHOIR_TRY(choir__infer_shape(srcs[0].dtype, ndim, shape, dst));
  }
  for (int32_t i = 0; i < src_count; ++i) {
    if (!choir_view_same_shape(&srcs[i], dst)) continue;
    choir_view_set_layout_like(dst, &srcs[i]);
    break;
  }
  return NULL;
}
