// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pool2d_shared.h"

// Large enough for every image, small enough that no sum of them overflows.
#define LARGEST (1 << 30)

const choir_field_t choir__pool2d_fields[] = {
    CHOIR_FIELD_INTS(choir_pool2d_attrs_t, kernel, 2, 2, 1, LARGEST,
                     "size of the window, height and width"),
    CHOIR_FIELD_INTS(choir_pool2d_attrs_t, stride, 2, 2, 1, LARGEST,
                     "step of the window, height and width"),
    CHOIR_FIELD_INTS(choir_pool2d_attrs_t, padding, 2, 0, 0, LARGEST,
                     "rows and columns added on each side"),
    CHOIR_FIELD_INTS(choir_pool2d_attrs_t, padding_after, 2, 0, 0, LARGEST,
                     "those below and right, where pad_mode is explicit"),
    CHOIR_FIELD_ENUM(choir_pool2d_attrs_t, pad_mode, choir__window_pad_names, 0,
                     "what decides on padding"),
};
_Static_assert(sizeof choir__pool2d_fields / sizeof choir__pool2d_fields[0] ==
                   CHOIR__POOL2D_FIELD_COUNT,
               "CHOIR__POOL2D_FIELD_COUNT counts choir__pool2d_fields");

choir__pool2d_t choir__pool2d_of(const choir_view_t* x,
                                 const choir_pool2d_attrs_t* attrs) {
  choir__pool2d_t pool = {.images = x->shape[0] * x->shape[1]};
  for (int32_t i = 0; i < 2; ++i) {
    pool.size[i] = x->shape[2 + i];
    pool.kernel[i] = attrs->kernel[i];
    pool.stride[i] = attrs->stride[i];
    choir__window_pad(attrs->pad_mode, attrs->padding[i],
                      attrs->padding_after[i], pool.size[i], pool.kernel[i],
                      pool.stride[i], &pool.padding[i], &pool.after[i]);
    pool.out[i] =
        (pool.size[i] + pool.padding[i] + pool.after[i] - pool.kernel[i]) /
            pool.stride[i] +
        1;
  }
  return pool;
}

bool choir__pool2d_is_padded(const int64_t* size,
                             const choir_pool2d_attrs_t* attrs) {
  const choir_view_t x = {.ndim = 4, .shape = {1, 1, size[0], size[1]}};
  const choir__pool2d_t pool = choir__pool2d_of(&x, attrs);
  return pool.padding[0] || pool.padding[1] || pool.after[0] || pool.after[1];
}

// Every window holds at least one element of the image when the padding is
// smaller than the kernel.
static choir_status_t check_window(const char* op,
                                   const choir__pool2d_t* pool) {
  for (int32_t i = 0; i < 2; ++i) {
    const char* side = i == 0 ? "rows" : "columns";
    const int64_t padded = pool->size[i] + pool->padding[i] + pool->after[i];
    const int64_t most =
        pool->padding[i] > pool->after[i] ? pool->padding[i] : pool->after[i];
    if (most >= pool->kernel[i])
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: padding is %lld %s for a kernel of %lld; needs "
                         "less than the kernel",
                         op, (long long)most, side, (long long)pool->kernel[i]);
    if (pool->size[i] < 1 || padded < pool->kernel[i])
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: kernel covers %lld %s; needs to fit the padded "
                         "image of %lld (and an image of at least 1)",
                         op, (long long)pool->kernel[i], side,
                         (long long)padded);
  }
  return NULL;
}

choir_status_t choir__pool2d_infer(const char* op, const choir_view_t* x,
                                   const choir_pool2d_attrs_t* attrs,
                                   choir_view_t* y) {
  CHOIR_TRY(choir__need_ndim(op, "x", x, 4));
  // An empty x may have any size; no sum of this one and padding overflows.
  for (int32_t i = 2; i < 4; ++i)
    if (x->shape[i] > INT64_MAX / 2)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: image is %lld x %lld; needs sizes up to %lld", op,
                         (long long)x->shape[2], (long long)x->shape[3],
                         (long long)(INT64_MAX / 2));
  choir__pool2d_t pool = choir__pool2d_of(x, attrs);
  CHOIR_TRY(check_window(op, &pool));
  int64_t shape[] = {x->shape[0], x->shape[1], pool.out[0], pool.out[1]};
  CHOIR_TRY(choir__infer_shape(op, x->dtype, 4, shape, y));
  choir_view_set_channels_last(y);
  return NULL;
}

choir_status_t choir__max_pool2d_infer(const char* op, const choir_view_t* x,
                                       const choir_pool2d_attrs_t* attrs,
                                       choir_view_t* y) {
  CHOIR_TRY(choir__pool2d_infer(op, x, attrs, y));
  if (attrs->kernel[0] * attrs->kernel[1] > 255)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: kernel is %lld x %lld; needs at most 255 elements",
                       op, (long long)attrs->kernel[0],
                       (long long)attrs->kernel[1]);
  return NULL;
}

choir_status_t choir__pool2d_grad_infer(const char* op,
                                        const choir_view_t* srcs,
                                        int32_t src_count,
                                        const choir_pool2d_attrs_t* attrs,
                                        choir_view_t* dx) {
  choir_view_t y;
  CHOIR_TRY(choir__pool2d_infer(op, &srcs[0], attrs, &y));
  choir_view_set_contiguous(&y);
  for (int32_t i = 1; i < src_count; ++i) {
    CHOIR_TRY(choir__need_same_shape(op, i + 1 < src_count ? "index" : "dy",
                                     &srcs[i], "the pooled x", &y));
  }
  CHOIR_TRY(choir__infer_shape(op, srcs[0].dtype, 4, srcs[0].shape, dx));
  choir_view_set_channels_last(dx);
  return NULL;
}

choir__window_t choir__pool2d_window(const choir__pool2d_t* pool,
                                     int64_t out_row, int64_t out_column) {
  choir__window_t window;
  window.top = out_row * pool->stride[0] - pool->padding[0];
  window.left = out_column * pool->stride[1] - pool->padding[1];
  int64_t bottom = window.top + pool->kernel[0];
  int64_t right = window.left + pool->kernel[1];
  window.row_begin = window.top < 0 ? 0 : window.top;
  window.row_end = bottom > pool->size[0] ? pool->size[0] : bottom;
  window.column_begin = window.left < 0 ? 0 : window.left;
  window.column_end = right > pool->size[1] ? pool->size[1] : right;
  return window;
}

// The largest element of one window; NaN counts as larger than all, the first
// of equals wins.
static void pool_window(const choir__pool2d_t* pool, const double* image,
                        const choir__window_t* window, double* out_value,
                        double* out_index) {
  bool is_first = true;
  for (int64_t row = window->row_begin; row < window->row_end; ++row) {
    for (int64_t column = window->column_begin; column < window->column_end;
         ++column) {
      double x = image[row * pool->size[1] + column];
      bool is_larger = x > *out_value || (x != x && *out_value == *out_value);
      if (!is_first && !is_larger) continue;
      is_first = false;
      *out_value = x;
      *out_index = (double)((row - window->top) * pool->kernel[1] + column -
                            window->left);
    }
  }
}

void choir__max_pool2d_images(const choir__pool2d_t* pool, const double* x,
                              double* y, double* index) {
  int64_t place = 0;  // in y and in index
  for (int64_t i = 0; i < pool->images; ++i) {
    const double* image = x + i * pool->size[0] * pool->size[1];
    for (int64_t row = 0; row < pool->out[0]; ++row) {
      for (int64_t column = 0; column < pool->out[1]; ++column, ++place) {
        choir__window_t window = choir__pool2d_window(pool, row, column);
        pool_window(pool, image, &window, &y[place], &index[place]);
      }
    }
  }
}

static choir_status_t bad_index(const char* op, const choir__window_t* window,
                                int64_t index, int64_t place) {
  return CHOIR_ERROR(
      OUT_OF_RANGE,
      "%s: index %lld at element %lld; needs a place of its "
      "window that is on the image, rows %lld .. %lld, columns %lld .. %lld",
      op, (long long)index, (long long)place,
      (long long)(window->row_begin - window->top),
      (long long)(window->row_end - window->top - 1),
      (long long)(window->column_begin - window->left),
      (long long)(window->column_end - window->left - 1));
}

choir_status_t choir__max_pool2d_spread(const char* op,
                                        const choir__pool2d_t* pool,
                                        const double* index, const double* dy,
                                        double* dx) {
  int64_t place = 0;  // in index and in dy
  for (int64_t i = 0; i < pool->images; ++i) {
    double* image = dx + i * pool->size[0] * pool->size[1];
    for (int64_t out_row = 0; out_row < pool->out[0]; ++out_row) {
      for (int64_t out_column = 0; out_column < pool->out[1];
           ++out_column, ++place) {
        choir__window_t window =
            choir__pool2d_window(pool, out_row, out_column);
        int64_t argmax_index = (int64_t)index[place];
        int64_t row = window.top + argmax_index / pool->kernel[1];
        int64_t column = window.left + argmax_index % pool->kernel[1];
        if (row < window.row_begin || row >= window.row_end ||
            column < window.column_begin || column >= window.column_end)
          return bad_index(op, &window, argmax_index, place);
        image[row * pool->size[1] + column] += dy[place];
      }
    }
  }
  return NULL;
}

const choir_op_case_t choir__pool2d_cases[] = {
    {"1,1,2,2", "kernel=2,2 stride=2,2"},
    {"2,3,4,4", "kernel=2,2 stride=2,2"},
    {"1,20,24,24", "kernel=2,2 stride=2,2"},
    {"2,5,8,8", "kernel=2,2 stride=2,2"},
    {"2,3,7,5", "kernel=2,2 stride=2,2"},
    {"2,3,7,5", "kernel=3,3 stride=2,2 padding=1,1"},
    {"2,3,7,5", "kernel=3,2 stride=1,2 padding=1,0"},
    {"1,4,9,9", "kernel=3,3 stride=3,3"},
    {"1,4,9,9", "kernel=3,3 stride=1,1 padding=1,1"},
    {"3,1,5,6", "kernel=1,1 stride=1,1"},
    {"3,1,5,6", "kernel=1,1 stride=2,3"},
    {"2,2,6,6", "kernel=6,6 stride=1,1"},
    {"1,2,11,10", "kernel=5,4 stride=2,3 padding=2,1"},
    {"1,2,3,3", "kernel=2,2 stride=3,3 padding=1,1"},
    {"2,16,5,5", "kernel=2,2 stride=1,1"},
    {"1,33,4,4", "kernel=2,2 stride=2,2"},
    {"2,8,12,3", "kernel=4,1 stride=4,1"},
    {"2,8,3,12", "kernel=1,4 stride=1,4"},
    {"1,1,16,15", "kernel=15,15 stride=1,1 padding=7,7"},
    {"4,7,6,8", "kernel=2,2 stride=2,2"},
    {"2,8,5,7", "kernel=2,2 stride=2,2 pad_mode=same_upper"},
    {"2,8,5,7", "kernel=2,2 stride=2,2 pad_mode=same_lower"},
    {"2,8,6,8", "kernel=2,2 stride=2,2 pad_mode=same_lower"},
    {"2,3,5,7",
     "kernel=3,2 stride=1,1 padding=2,0 padding_after=1,1 "
     "pad_mode=explicit"},
    {"0,3,4,4", "kernel=2,2 stride=2,2"},
    {"2,0,4,4", "kernel=2,2 stride=2,2"},
    {NULL, NULL}};

const choir_op_case_t choir__max_pool2d_grad_cases[] = {
    {"1,1,2,2;1,1,1,1;1,1,1,1", "kernel=2,2 stride=2,2"},
    {"2,3,4,4;2,3,2,2;2,3,2,2", "kernel=2,2 stride=2,2"},
    {"1,20,24,24;1,20,12,12;1,20,12,12", "kernel=2,2 stride=2,2"},
    {"2,5,8,8;2,5,4,4;2,5,4,4", "kernel=2,2 stride=2,2"},
    {"2,3,7,5;2,3,3,2;2,3,3,2", "kernel=2,2 stride=2,2"},
    {"2,3,7,5;2,3,4,3;2,3,4,3", "kernel=3,3 stride=2,2 padding=1,1"},
    {"2,3,7,5;2,3,7,2;2,3,7,2", "kernel=3,2 stride=1,2 padding=1,0"},
    {"1,4,9,9;1,4,3,3;1,4,3,3", "kernel=3,3 stride=3,3"},
    {"1,4,9,9;1,4,9,9;1,4,9,9", "kernel=3,3 stride=1,1 padding=1,1"},
    {"3,1,5,6;3,1,5,6;3,1,5,6", "kernel=1,1 stride=1,1"},
    {"3,1,5,6;3,1,3,2;3,1,3,2", "kernel=1,1 stride=2,3"},
    {"2,2,6,6;2,2,1,1;2,2,1,1", "kernel=6,6 stride=1,1"},
    {"1,2,11,10;1,2,6,3;1,2,6,3", "kernel=5,4 stride=2,3 padding=2,1"},
    {"1,2,3,3;1,2,2,2;1,2,2,2", "kernel=2,2 stride=3,3 padding=1,1"},
    {"2,16,5,5;2,16,4,4;2,16,4,4", "kernel=2,2 stride=1,1"},
    {"1,33,4,4;1,33,2,2;1,33,2,2", "kernel=2,2 stride=2,2"},
    {"2,8,12,3;2,8,3,3;2,8,3,3", "kernel=4,1 stride=4,1"},
    {"2,8,3,12;2,8,3,3;2,8,3,3", "kernel=1,4 stride=1,4"},
    {"1,1,16,15;1,1,16,15;1,1,16,15", "kernel=15,15 stride=1,1 padding=7,7"},
    {"4,7,6,8;4,7,3,4;4,7,3,4", "kernel=2,2 stride=2,2"},
    {"2,8,5,7;2,8,3,4;2,8,3,4",
     "kernel=2,2 stride=2,2 padding_after=1,1 pad_mode=explicit"},
    {"2,8,5,7;2,8,3,4;2,8,3,4",
     "kernel=2,2 stride=2,2 padding=1,1 pad_mode=explicit"},
    {"2,3,5,7;2,3,6,7;2,3,6,7",
     "kernel=3,2 stride=1,1 padding=2,0 padding_after=1,1 pad_mode=explicit"},
    {"0,3,4,4;0,3,2,2;0,3,2,2", "kernel=2,2 stride=2,2"},
    {"2,0,4,4;2,0,2,2;2,0,2,2", "kernel=2,2 stride=2,2"},
    {NULL, NULL}};

const choir_op_case_t choir__avg_pool2d_grad_cases[] = {
    {"1,1,2,2;1,1,1,1", "kernel=2,2 stride=2,2"},
    {"2,3,4,4;2,3,2,2", "kernel=2,2 stride=2,2"},
    {"1,20,24,24;1,20,12,12", "kernel=2,2 stride=2,2"},
    {"2,5,8,8;2,5,4,4", "kernel=2,2 stride=2,2"},
    {"2,3,7,5;2,3,3,2", "kernel=2,2 stride=2,2"},
    {"2,3,7,5;2,3,4,3", "kernel=3,3 stride=2,2 padding=1,1"},
    {"2,3,7,5;2,3,7,2", "kernel=3,2 stride=1,2 padding=1,0"},
    {"1,4,9,9;1,4,3,3", "kernel=3,3 stride=3,3"},
    {"1,4,9,9;1,4,9,9", "kernel=3,3 stride=1,1 padding=1,1"},
    {"3,1,5,6;3,1,5,6", "kernel=1,1 stride=1,1"},
    {"3,1,5,6;3,1,3,2", "kernel=1,1 stride=2,3"},
    {"2,2,6,6;2,2,1,1", "kernel=6,6 stride=1,1"},
    {"1,2,11,10;1,2,6,3", "kernel=5,4 stride=2,3 padding=2,1"},
    {"1,2,3,3;1,2,2,2", "kernel=2,2 stride=3,3 padding=1,1"},
    {"2,16,5,5;2,16,4,4", "kernel=2,2 stride=1,1"},
    {"1,33,4,4;1,33,2,2", "kernel=2,2 stride=2,2"},
    {"2,8,12,3;2,8,3,3", "kernel=4,1 stride=4,1"},
    {"2,8,3,12;2,8,3,3", "kernel=1,4 stride=1,4"},
    {"1,1,16,15;1,1,16,15", "kernel=15,15 stride=1,1 padding=7,7"},
    {"4,7,6,8;4,7,3,4", "kernel=2,2 stride=2,2"},
    {"2,8,5,7;2,8,3,4", "kernel=2,2 stride=2,2 pad_mode=same_upper"},
    {"2,8,5,7;2,8,3,4", "kernel=2,2 stride=2,2 pad_mode=same_lower"},
    {"2,3,5,7;2,3,6,7",
     "kernel=3,2 stride=1,1 padding=2,0 padding_after=1,1 pad_mode=explicit"},
    {"0,3,4,4;0,3,2,2", "kernel=2,2 stride=2,2"},
    {"2,0,4,4;2,0,2,2", "kernel=2,2 stride=2,2"},
    {NULL, NULL}};
