// SPDX-License-Identifier: Apache-2.0
// Moving elements between layouts, and changing their type on the way.
#include <string.h>

#include "tensor/kernels/cpu/cpu_elementwise.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/half_math.h"

// ---- Copy: bits unchanged ----

// Rows of the destination are columns of the source: done in blocks, so that
// every cache line that is fetched is used up before it is dropped.
#define BLOCK 16
#define COPY_PLANE(type)                                                      \
  static void transpose_##type(const choir__plane_t* plane) {                 \
    type* y = (type*)plane->data[0];                                          \
    const type* x = (const type*)plane->data[1];                              \
    const int64_t ys = plane->row_stride[0], xs = plane->column_stride[1];    \
    for (int64_t r0 = 0; r0 < plane->rows; r0 += BLOCK) {                     \
      const int64_t r1 = r0 + BLOCK < plane->rows ? r0 + BLOCK : plane->rows; \
      for (int64_t c0 = 0; c0 < plane->columns; c0 += BLOCK) {                \
        const int64_t c1 =                                                    \
            c0 + BLOCK < plane->columns ? c0 + BLOCK : plane->columns;        \
        for (int64_t r = r0; r < r1; r++)                                     \
          for (int64_t c = c0; c < c1; c++) y[r * ys + c] = x[r + c * xs];    \
      }                                                                       \
    }                                                                         \
  }                                                                           \
  static void copy_##type(const choir__plane_t* plane) {                      \
    const int64_t n = plane->columns;                                         \
    const int64_t ys = plane->column_stride[0];                               \
    const int64_t xs = plane->column_stride[1];                               \
    if (ys == 1 && xs != 1 && plane->row_stride[1] == 1) {                    \
      transpose_##type(plane);                                                \
      return;                                                                 \
    }                                                                         \
    for (int64_t r = 0; r < plane->rows; r++) {                               \
      type* y = (type*)plane->data[0] + r * plane->row_stride[0];             \
      const type* x = (const type*)plane->data[1] + r * plane->row_stride[1]; \
      if (ys == 1 && xs == 1)                                                 \
        memcpy(y, x, (size_t)n * sizeof(type));                               \
      else if (ys == 1 && xs == 0)                                            \
        for (int64_t i = 0; i < n; i++) y[i] = x[0];                          \
      else                                                                    \
        for (int64_t i = 0; i < n; i++) y[i * ys] = x[i * xs];                \
    }                                                                         \
  }

COPY_PLANE(uint8_t)
COPY_PLANE(uint16_t)
COPY_PLANE(uint32_t)
COPY_PLANE(uint64_t)

CHOIR__BODY void add_plane_body(const choir__plane_t* plane) {
  const int64_t n = plane->columns;
  const int64_t ys = plane->column_stride[0], xs = plane->column_stride[1];
  for (int64_t r = 0; r < plane->rows; r++) {
    float* y = (float*)plane->data[0] + r * plane->row_stride[0];
    const float* x = (const float*)plane->data[1] + r * plane->row_stride[1];
    if (ys == 1 && xs == 1) {
      CHOIR__INDEPENDENT
      for (int64_t i = 0; i < n; i++) y[i] += x[i];
    } else {
      for (int64_t i = 0; i < n; i++) y[i * ys] += x[i * xs];
    }
  }
}
CHOIR__ISA_VARIANTS(add_plane, (const choir__plane_t* plane), (plane))

// Makes the dimension along which the source is dense the rows of the plane,
// when it is not the columns already.
static void prefer_dense_source(choir__nest_t* nest) {
  const int32_t last = nest->ndim - 1, rows = nest->ndim - 2;
  if (nest->strides[1][last] <= 1 || nest->strides[1][rows] == 1) return;
  for (int32_t k = 0; k < rows; k++) {
    if (nest->strides[1][k] != 1) continue;
    const int64_t size = nest->shape[k];
    nest->shape[k] = nest->shape[rows];
    nest->shape[rows] = size;
    for (int32_t i = 0; i < nest->operand_count; i++) {
      const int64_t stride = nest->strides[i][k];
      nest->strides[i][k] = nest->strides[i][rows];
      nest->strides[i][rows] = stride;
    }
    return;
  }
}

static bool copy_nest(const choir_record_t* record, choir__nest_t* nest) {
  const choir_view_t* views[] = {choir_record_dst(record, 0),
                                 choir_record_src(record, 0)};
  return record->src_count == 1 && choir__nest_make(views, 2, nest);
}

static bool copy_supports(const choir_record_t* record) {
  const choir_dtype_t dtype = choir_record_dst(record, 0)->dtype;
  choir__nest_t nest;
  if (choir_record_src(record, 0)->dtype != dtype) return false;
  if (record->accumulate && dtype != CHOIR_DTYPE_F32) return false;
  return copy_nest(record, &nest);
}

static void (*copy_plane(size_t bytes))(const choir__plane_t* plane) {
  switch (bytes) {
    case 1:
      return copy_uint8_t;
    case 2:
      return copy_uint16_t;
    case 8:
      return copy_uint64_t;
    default:
      return copy_uint32_t;
  }
}

static choir_status_t copy_run(const choir_record_t* record,
                               choir_stream_t* stream) {
  choir__nest_t nest;
  if (!copy_nest(record, &nest))
    return CHOIR_ERROR(INTERNAL, "copy/cpu: operands do not match");
  prefer_dense_source(&nest);
  void* data[] = {choir__view_data(choir_record_dst(record, 0)),
                  choir__view_data(choir_record_src(record, 0))};
  const size_t bytes = choir_dtype_bytes(choir_record_dst(record, 0)->dtype);
  const size_t sizes[] = {bytes, bytes};
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream),
                  record->accumulate ? add_plane : copy_plane(bytes), NULL);
  return NULL;
}
CHOIR__CPU_OP_KERNEL(COPY, copy, "cpu", copy_run, copy_supports)

void choir__cpu_copy_view(const choir_view_t* dst, void* dst_data,
                          const choir_view_t* src, int32_t threads) {
  const choir_view_t* views[] = {dst, src};
  const size_t bytes = choir_dtype_bytes(dst->dtype);
  const size_t sizes[] = {bytes, bytes};
  void* data[] = {dst_data, choir__view_data(src)};
  choir__nest_t nest;
  if (!choir__nest_make(views, 2, &nest)) return;
  prefer_dense_source(&nest);
  choir__nest_run(&nest, data, sizes, threads, copy_plane(bytes), NULL);
}

choir_status_t choir__pixels_take(const choir_view_t* view,
                                  choir_stream_t* stream,
                                  choir__pixels_t* out_pixels) {
  *out_pixels = (choir__pixels_t){.view = *view};
  if (view->strides[1] == 1 || view->shape[1] == 1) {
    out_pixels->data = choir__view_data(view);
    return NULL;
  }
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes =
      (size_t)choir_view_count(view) * choir_dtype_bytes(view->dtype);
  void* copy = pool.alloc(pool.self, bytes, 64);
  if (!copy)
    return CHOIR_ERROR(OUT_OF_MEMORY, "channels-last copy: no %zu bytes",
                       bytes);
  out_pixels->data = out_pixels->copy = copy;
  out_pixels->copy_bytes = bytes;
  choir_view_set_channels_last(&out_pixels->view);
  choir__cpu_copy_view(&out_pixels->view, copy, view,
                       choir__cpu_threads(stream));
  choir__count_reorder(bytes);
  return NULL;
}

void choir__pixels_give(choir__pixels_t* pixels, choir_stream_t* stream) {
  if (!pixels->copy) return;
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  pool.free(pool.self, pixels->copy, pixels->copy_bytes, 64);
  pixels->copy = NULL;
}

choir_status_t choir__floats_take(const choir_view_t* view,
                                  choir_stream_t* stream,
                                  choir__floats_t* out_floats) {
  *out_floats = (choir__floats_t){.data = choir__view_data(view)};
  if (view->dtype == CHOIR_DTYPE_F32) return NULL;
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const int64_t extent = choir_view_extent(view);
  const size_t bytes = (size_t)extent * sizeof(float);
  float* copy = pool.alloc(pool.self, bytes, 64);
  if (!copy)
    return CHOIR_ERROR(OUT_OF_MEMORY, "weights as floats: no %zu bytes", bytes);
  choir__cpu_load_f32(view->dtype, copy, choir__view_data(view), 1, extent);
  *out_floats = (choir__floats_t){copy, copy, bytes};
  return NULL;
}

void choir__floats_give(choir__floats_t* floats, choir_stream_t* stream) {
  if (!floats->copy) return;
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  pool.free(pool.self, floats->copy, floats->copy_bytes, 64);
  floats->copy = NULL;
}

choir_status_t choir__form_take(const choir_record_t* record,
                                choir_buffer_t* buffer, const void* key,
                                size_t key_bytes, size_t bytes,
                                choir_stream_t* stream,
                                choir__form_t* out_form) {
  *out_form = (choir__form_t){.bytes = bytes};
  if (!record->is_part)
    CHOIR_TRY(
        choir__packed_take(buffer, key, key_bytes, bytes, &out_form->packed));
  if (out_form->packed) {
    out_form->data = choir__packed_data(out_form->packed);
    out_form->is_filled = choir__packed_is_kept(out_form->packed);
    return NULL;
  }
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  out_form->data = out_form->copy = pool.alloc(pool.self, bytes, 64);
  return out_form->copy ? NULL
                        : CHOIR_ERROR(OUT_OF_MEMORY,
                                      "a source's form: no %zu bytes", bytes);
}

void choir__form_give(choir__form_t* form, choir_stream_t* stream) {
  choir__packed_release(form->packed);
  form->packed = NULL;
  if (!form->copy) return;
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  pool.free(pool.self, form->copy, form->bytes, 64);
  form->copy = NULL;
}

// ---- Cast ----

// How a cast adds to its destination; the small floats would need a rounding
// of their own and bools a test, so those records go to the reference.
#define ADD_F32(y, value) (y) += (value)
#define ADD_F64(y, value) (y) += (value)
#define ADD_F16(y, value) (y) = (value)
#define ADD_BF16(y, value) (y) = (value)
#define ADD_BOOL(y, value) (y) = (value)

#define CAST_LIST(X)                                               \
  X(f32_f16, F32, float, F16, uint16_t, choir__f16_from(value))    \
  X(f32_bf16, F32, float, BF16, uint16_t, choir__bf16_from(value)) \
  X(f16_f32, F16, uint16_t, F32, float, choir__f16_to(value))      \
  X(bf16_f32, BF16, uint16_t, F32, float, choir__bf16_to(value))   \
  X(f32_f64, F32, float, F64, double, (double)value)               \
  X(f64_f32, F64, double, F32, float, (float)value)                \
  X(u8_f32, U8, uint8_t, F32, float, (float)value)                 \
  X(bool_f32, BOOL, uint8_t, F32, float, value ? 1.0f : 0.0f)      \
  X(i32_f32, I32, int32_t, F32, float, (float)value)               \
  X(f32_bool, F32, float, BOOL, uint8_t, value != 0.0f)            \
  X(i32_bool, I32, int32_t, BOOL, uint8_t, value != 0)             \
  X(u8_bool, U8, uint8_t, BOOL, uint8_t, value != 0)

#define CAST_PLANE(name, FROM, from, TO, to, expression)                      \
  CHOIR__BODY void name##_plane_body(const choir__plane_t* plane) {           \
    const bool accumulate = *(const bool*)plane->params;                      \
    const int64_t n = plane->columns;                                         \
    const int64_t ys = plane->column_stride[0];                               \
    const int64_t xs = plane->column_stride[1];                               \
    for (int64_t r = 0; r < plane->rows; r++) {                               \
      to* y = (to*)plane->data[0] + r * plane->row_stride[0];                 \
      const from* x = (const from*)plane->data[1] + r * plane->row_stride[1]; \
      if (ys == 1 && xs == 1 && !accumulate) {                                \
        CHOIR__INDEPENDENT                                                    \
        for (int64_t i = 0; i < n; i++) {                                     \
          const from value = x[i];                                            \
          y[i] = expression;                                                  \
        }                                                                     \
      } else {                                                                \
        for (int64_t i = 0; i < n; i++) {                                     \
          const from value = x[i * xs];                                       \
          if (accumulate)                                                     \
            ADD_##TO(y[i * ys], expression);                                  \
          else                                                                \
            y[i * ys] = expression;                                           \
        }                                                                     \
      }                                                                       \
    }                                                                         \
  }                                                                           \
  CHOIR__ISA_VARIANTS(name##_plane, (const choir__plane_t* plane), (plane))
CAST_LIST(CAST_PLANE)

static const struct {
  choir_dtype_t from;
  choir_dtype_t to;
  void (*plane)(const choir__plane_t* plane);
} casts[] = {
#define CAST_ROW(name, FROM, from, TO, to, expression) \
  {CHOIR_DTYPE_##FROM, CHOIR_DTYPE_##TO, name##_plane},
    CAST_LIST(CAST_ROW)};

static void (*find_cast(const choir_record_t* record))(
    const choir__plane_t* plane) {
  const choir_dtype_t from = choir_record_src(record, 0)->dtype;
  const choir_dtype_t to = choir_record_dst(record, 0)->dtype;
  for (size_t i = 0; i < sizeof(casts) / sizeof(casts[0]); i++)
    if (casts[i].from == from && casts[i].to == to) return casts[i].plane;
  return NULL;
}

static bool cast_supports(const choir_record_t* record) {
  choir__nest_t nest;
  const choir_dtype_t to = choir_record_dst(record, 0)->dtype;
  if (copy_supports(record)) return true;
  if (record->accumulate && to != CHOIR_DTYPE_F32 && to != CHOIR_DTYPE_F64)
    return false;
  return find_cast(record) && copy_nest(record, &nest);
}

static choir_status_t cast_run(const choir_record_t* record,
                               choir_stream_t* stream) {
  const choir_view_t* dst = choir_record_dst(record, 0);
  const choir_view_t* src = choir_record_src(record, 0);
  if (dst->dtype == src->dtype) return copy_run(record, stream);
  choir__nest_t nest;
  void (*plane)(const choir__plane_t*) = find_cast(record);
  if (!plane || !copy_nest(record, &nest))
    return CHOIR_ERROR(INTERNAL, "cast/cpu: operands do not match");
  void* data[] = {choir__view_data(dst), choir__view_data(src)};
  const size_t sizes[] = {choir_dtype_bytes(dst->dtype),
                          choir_dtype_bytes(src->dtype)};
  choir__nest_run(&nest, data, sizes, choir__cpu_threads(stream), plane,
                  &record->accumulate);
  return NULL;
}
CHOIR__CPU_OP_KERNEL(CAST, cast, "cpu", cast_run, cast_supports)
