// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pool2d.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INTS(choir_pool2d_attrs_t, kernel, 2, 2, 1, CHOIR__LARGEST_SIZE,
                     "size of the window, height and width"),
    CHOIR__WINDOW_FIELDS(choir_pool2d_attrs_t, 2),
};

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
static choir_status_t check_window(const choir__pool2d_t* pool) {
  for (int32_t i = 0; i < 2; ++i) {
    const char* side = i == 0 ? "rows" : "columns";
    const int64_t padded = pool->size[i] + pool->padding[i] + pool->after[i];
    const int64_t most =
        pool->padding[i] > pool->after[i] ? pool->padding[i] : pool->after[i];
    if (most >= pool->kernel[i])
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "padding is %lld %s for a kernel of %lld; needs "
                         "less than the kernel",
                         (long long)most, side, (long long)pool->kernel[i]);
    if (pool->size[i] < 1 || padded < pool->kernel[i])
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "kernel covers %lld %s; needs to fit the padded "
                         "image of %lld (and an image of at least 1)",
                         (long long)pool->kernel[i], side, (long long)padded);
  }
  return NULL;
}

// Tells the shape of y.
static choir_status_t pool2d_infer(const choir_view_t* x,
                                   const choir_pool2d_attrs_t* attrs,
                                   choir_view_t* y) {
  CHOIR_TRY(choir__need_ndim("x", x, 4));
  // An empty x may have any size; no sum of this one and padding overflows.
  for (int32_t i = 2; i < 4; ++i)
    if (x->shape[i] > INT64_MAX / 2)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "image is %lld x %lld; needs sizes up to %lld",
                         (long long)x->shape[2], (long long)x->shape[3],
                         (long long)(INT64_MAX / 2));
  choir__pool2d_t pool = choir__pool2d_of(x, attrs);
  CHOIR_TRY(check_window(&pool));
  int64_t shape[] = {x->shape[0], x->shape[1], pool.out[0], pool.out[1]};
  CHOIR_TRY(choir__infer_shape(x->dtype, 4, shape, y));
  choir_view_set_channels_last(y);
  return NULL;
}

choir_status_t choir__max_pool2d_infer(const choir_view_t* x,
                                       const choir_pool2d_attrs_t* attrs,
                                       choir_view_t* y) {
  CHOIR_TRY(pool2d_infer(x, attrs, y));
  if (attrs->kernel[0] * attrs->kernel[1] > 255)
    return CHOIR_ERROR(
        INVALID_ARGUMENT, "kernel is %lld x %lld; needs at most 255 elements",
        (long long)attrs->kernel[0], (long long)attrs->kernel[1]);
  return NULL;
}

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const choir_pool2d_attrs_t* attrs = record->attrs;
  const int32_t src_count = record->src_count;
  if (src_count == 1) {
    const bool has_index = record->dst_count > 1;
    CHOIR_TRY(has_index ? choir__max_pool2d_infer(&srcs[0], attrs, &dsts[0])
                        : pool2d_infer(&srcs[0], attrs, &dsts[0]));
    if (!has_index) return NULL;
    dsts[1] = dsts[0];
    dsts[1].dtype = CHOIR_DTYPE_U8;
    return NULL;
  }
  choir_view_t y;
  CHOIR_TRY(pool2d_infer(&srcs[0], attrs, &y));
  choir_view_set_contiguous(&y);
  for (int32_t i = 1; i < src_count; ++i) {
    CHOIR_TRY(choir__need_same_shape(i + 1 < src_count ? "index" : "dy",
                                     &srcs[i], "the pooled x", &y));
  }
  CHOIR_TRY(choir__infer_shape(srcs[0].dtype, 4, srcs[0].shape, &dsts[0]));
  choir_view_set_channels_last(&dsts[0]);
  return NULL;
}

// ---- References: what is done for each window ----

// The part of one window that lies on the image.
typedef struct window_s {
  int64_t top, left;           // of the window; negative in the padding
  int64_t row_begin, row_end;  // rows of the image
  int64_t column_begin, column_end;
} window_t;

static window_t window_of(const choir__pool2d_t* pool, int64_t out_row,
                          int64_t out_column) {
  window_t window;
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

// Row-major arrays: images of x or dx, and elements of y or dy.
typedef struct pass_s {
  const char* op;
  const choir__pool2d_t* pool;
  const double* x;
  double* y;
  double* out_index;
  const double* dy;
  const double* index;
  double* dx;
} pass_t;

// image: where the window's image begins; place: the window's element.
typedef choir_status_t (*visit_t)(const pass_t* pass, const window_t* window,
                                  int64_t image, int64_t place);

static choir_status_t each_window(const pass_t* pass, visit_t visit) {
  const choir__pool2d_t* pool = pass->pool;
  int64_t place = 0;
  for (int64_t i = 0; i < pool->images; ++i) {
    for (int64_t row = 0; row < pool->out[0]; ++row) {
      for (int64_t column = 0; column < pool->out[1]; ++column, ++place) {
        const window_t window = window_of(pool, row, column);
        CHOIR_TRY(
            visit(pass, &window, i * pool->size[0] * pool->size[1], place));
      }
    }
  }
  return NULL;
}

// The largest element; NaN counts as larger than all, the first of equals wins.
static choir_status_t max_pool2d_window(const pass_t* pass,
                                        const window_t* window, int64_t image,
                                        int64_t place) {
  double *y = &pass->y[place], *index = &pass->out_index[place];
  bool is_first = true;
  for (int64_t row = window->row_begin; row < window->row_end; ++row) {
    for (int64_t column = window->column_begin; column < window->column_end;
         ++column) {
      const double x = pass->x[image + row * pass->pool->size[1] + column];
      const bool is_larger = x > *y || (x != x && *y == *y);
      if (!is_first && !is_larger) continue;
      is_first = false;
      *y = x;
      *index = (double)((row - window->top) * pass->pool->kernel[1] + column -
                        window->left);
    }
  }
  return NULL;
}

static choir_status_t max_pool2d_grad_window(const pass_t* pass,
                                             const window_t* window,
                                             int64_t image, int64_t place) {
  const int64_t index = (int64_t)pass->index[place];
  const int64_t row = window->top + index / pass->pool->kernel[1];
  const int64_t column = window->left + index % pass->pool->kernel[1];
  if (row < window->row_begin || row >= window->row_end ||
      column < window->column_begin || column >= window->column_end)
    return CHOIR_ERROR(
        OUT_OF_RANGE,
        "%s: index %lld at element %lld; needs a place of its "
        "window that is on the image, rows %lld .. %lld, columns %lld .. %lld",
        pass->op, (long long)index, (long long)place,
        (long long)(window->row_begin - window->top),
        (long long)(window->row_end - window->top - 1),
        (long long)(window->column_begin - window->left),
        (long long)(window->column_end - window->left - 1));
  pass->dx[image + row * pass->pool->size[1] + column] += pass->dy[place];
  return NULL;
}

static double kernel_size(const pass_t* pass) {
  return (double)(pass->pool->kernel[0] * pass->pool->kernel[1]);
}

static choir_status_t avg_pool2d_window(const pass_t* pass,
                                        const window_t* window, int64_t image,
                                        int64_t place) {
  double sum = 0;
  for (int64_t row = window->row_begin; row < window->row_end; ++row)
    for (int64_t column = window->column_begin; column < window->column_end;
         ++column)
      sum += pass->x[image + row * pass->pool->size[1] + column];
  pass->y[place] = sum / kernel_size(pass);
  return NULL;
}

static choir_status_t avg_pool2d_grad_window(const pass_t* pass,
                                             const window_t* window,
                                             int64_t image, int64_t place) {
  const double share = pass->dy[place] / kernel_size(pass);
  for (int64_t row = window->row_begin; row < window->row_end; ++row)
    for (int64_t column = window->column_begin; column < window->column_end;
         ++column)
      pass->dx[image + row * pass->pool->size[1] + column] += share;
  return NULL;
}

void choir__max_pool2d_images(const choir__pool2d_t* pool, const double* x,
                              double* y, double* index) {
  const pass_t pass = {.pool = pool, .x = x, .y = y, .out_index = index};
  choir_status_free(each_window(&pass, max_pool2d_window));  // cannot fail
}

choir_status_t choir__max_pool2d_spread(const char* op,
                                        const choir__pool2d_t* pool,
                                        const double* index, const double* dy,
                                        double* dx) {
  const pass_t pass = {
      .op = op, .pool = pool, .index = index, .dy = dy, .dx = dx};
  return each_window(&pass, max_pool2d_grad_window);
}

static choir_status_t run(const char* op, const choir_record_t* record,
                          choir_stream_t* stream, visit_t visit) {
  const choir__pool2d_t pool =
      choir__pool2d_of(choir_record_src(record, 0), record->attrs);
  const bool is_grad = record->src_count > 1;  // takes x's shape only
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream,
                               is_grad ? ~CHOIR__SOURCE(0) : CHOIR__ALL_SOURCES,
                               &dense));
  const pass_t pass = {.op = op,
                       .pool = &pool,
                       .x = dense.srcs[0],
                       .y = dense.dsts[0],
                       .out_index = dense.dsts[1],
                       .dy = dense.srcs[record->src_count - 1],
                       .index = dense.srcs[1],
                       .dx = dense.dsts[0]};
  return choir__dense_end(&dense, each_window(&pass, visit));
}

// ---- Definitions ----

// S(images, size of x, size of y)
#define CASES(S)                                                           \
  {S("1,1", "2,2", "1,1"), "kernel=2,2 stride=2,2"},                       \
      {S("2,3", "4,4", "2,2"), "kernel=2,2 stride=2,2"},                   \
      {S("1,20", "24,24", "12,12"), "kernel=2,2 stride=2,2"},              \
      {S("2,5", "8,8", "4,4"), "kernel=2,2 stride=2,2"},                   \
      {S("2,3", "7,5", "3,2"), "kernel=2,2 stride=2,2"},                   \
      {S("2,3", "7,5", "4,3"), "kernel=3,3 stride=2,2 padding=1,1"},       \
      {S("2,3", "7,5", "7,2"), "kernel=3,2 stride=1,2 padding=1,0"},       \
      {S("1,4", "9,9", "3,3"), "kernel=3,3 stride=3,3"},                   \
      {S("1,4", "9,9", "9,9"), "kernel=3,3 stride=1,1 padding=1,1"},       \
      {S("3,1", "5,6", "5,6"), "kernel=1,1 stride=1,1"},                   \
      {S("3,1", "5,6", "3,2"), "kernel=1,1 stride=2,3"},                   \
      {S("2,2", "6,6", "1,1"), "kernel=6,6 stride=1,1"},                   \
      {S("1,2", "11,10", "6,3"), "kernel=5,4 stride=2,3 padding=2,1"},     \
      {S("1,2", "3,3", "2,2"), "kernel=2,2 stride=3,3 padding=1,1"},       \
      {S("2,16", "5,5", "4,4"), "kernel=2,2 stride=1,1"},                  \
      {S("1,33", "4,4", "2,2"), "kernel=2,2 stride=2,2"},                  \
      {S("2,8", "12,3", "3,3"), "kernel=4,1 stride=4,1"},                  \
      {S("2,8", "3,12", "3,3"), "kernel=1,4 stride=1,4"},                  \
      {S("1,1", "16,15", "16,15"), "kernel=15,15 stride=1,1 padding=7,7"}, \
      {S("4,7", "6,8", "3,4"), "kernel=2,2 stride=2,2"},                   \
      {S("2,8", "5,7", "3,4"),                                             \
       "kernel=2,2 stride=2,2 padding_after=1,1 pad_mode=explicit"},       \
      {S("2,8", "5,7", "3,4"),                                             \
       "kernel=2,2 stride=2,2 padding=1,1 pad_mode=explicit"},             \
      {S("2,3", "5,7", "6,7"),                                             \
       "kernel=3,2 stride=1,1 padding=2,0 padding_after=1,1 "              \
       "pad_mode=explicit"},                                               \
      {S("0,3", "4,4", "2,2"), "kernel=2,2 stride=2,2"},                   \
      {S("2,0", "4,4", "2,2"), "kernel=2,2 stride=2,2"}, {                 \
    NULL, NULL                                                             \
  }
// Modes that follow the image; inputs of max_pool2d_grad do not know them.
#define MODE_CASES(S)                                                          \
  {S("2,8", "5,7", "3,4"), "kernel=2,2 stride=2,2 pad_mode=same_upper"},       \
      {S("2,8", "5,7", "3,4"), "kernel=2,2 stride=2,2 pad_mode=same_lower"}, { \
    S("2,8", "6,8", "3,4"), "kernel=2,2 stride=2,2 pad_mode=same_lower"        \
  }
#define OF_X(n, x, y) n "," x
#define OF_X_DY(n, x, y) n "," x ";" n "," y
#define OF_X_INDEX_DY(n, x, y) OF_X_DY(n, x, y) ";" n "," y
static const choir_op_case_t cases[] = {MODE_CASES(OF_X), CASES(OF_X)};
static const choir_op_case_t avg_grad_cases[] = {MODE_CASES(OF_X_DY),
                                                 CASES(OF_X_DY)};
static const choir_op_case_t max_grad_cases[] = {CASES(OF_X_INDEX_DY)};

#define DEFINE(ENUM, id, sources, results, ...)                       \
  static choir_status_t id##_reference(const choir_record_t* record,  \
                                       choir_stream_t* stream) {      \
    return run(#id, record, stream, id##_window);                     \
  }                                                                   \
  CHOIR_OP_DEFINE_BY(ENUM, id, sources, sources, results, infer,      \
                     id##_reference, __VA_ARGS__,                     \
                     CHOIR_OP_ATTRS(id, fields, "windows of images"), \
                     .dtypes = CHOIR_DTYPES_FLOAT)

DEFINE(MAX_POOL2D, max_pool2d, 1, 2,
       "largest of each window, and its place within the window",
       .no_accumulate = true, .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 0,
       .cases = cases);
DEFINE(MAX_POOL2D_GRAD, max_pool2d_grad, 3, 1,
       "x (its shape only), index, dy -> dx", .shapes_only = 1u << 0,
       .second_dtypes = CHOIR_DTYPE_MASK(U8),
       .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ARGMAX}, .tolerance = 2e-6,
       .cases = max_grad_cases);
CHOIR_OP_GRADIENT(avg_pool2d, AVG_POOL2D_GRAD, 0, CHOIR_DY);
DEFINE(AVG_POOL2D, avg_pool2d, 1, 1,
       "mean of each window, padding counted as zeros", .tolerance = 2e-6,
       .cases = cases);
DEFINE(AVG_POOL2D_GRAD, avg_pool2d_grad, 2, 1, "x (its shape only), dy -> dx",
       .shapes_only = 1u << 0, .tolerance = 2e-6, .cases = avg_grad_cases);
