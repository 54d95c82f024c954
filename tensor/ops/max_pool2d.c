// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__POOL2D_STRUCT_DEF("max_pool2d", "windows of images");

static choir_status_t max_pool2d_infer(const choir_view_t* srcs,
                                       int32_t src_count, const void* attrs,
                                       choir_view_t* dsts) {
  (void)src_count;
  const choir_pool2d_attrs_t* pool = attrs;
  CHOIR_TRY(choir__pool2d_infer("max_pool2d", &srcs[0], pool, &dsts[0]));
  if (pool->kernel[0] * pool->kernel[1] > 255)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "max_pool2d: kernel is %lld x %lld; needs at most 255 "
                       "elements",
                       (long long)pool->kernel[0], (long long)pool->kernel[1]);
  dsts[1] = dsts[0];
  dsts[1].dtype = CHOIR_DTYPE_U8;
  return NULL;
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

static choir_status_t max_pool2d_reference(const choir_record_t* record,
                                           choir_stream_t* stream) {
  choir__pool2d_t pool =
      choir__pool2d_of(choir_record_src(record, 0), record->attrs);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  int64_t place = 0;  // in y and in index
  for (int64_t i = 0; i < pool.images; ++i) {
    const double* image = dense.srcs[0] + i * pool.size[0] * pool.size[1];
    for (int64_t row = 0; row < pool.out[0]; ++row) {
      for (int64_t column = 0; column < pool.out[1]; ++column, ++place) {
        choir__window_t window = choir__pool2d_window(&pool, row, column);
        pool_window(&pool, image, &window, &dense.dsts[0][place],
                    &dense.dsts[1][place]);
      }
    }
  }
  return choir__dense_end(&dense, NULL);
}

const choir_op_def_t choir_op_def_max_pool2d = {
    .op = CHOIR_OP_MAX_POOL2D,
    .name = "max_pool2d",
    .doc = "largest of each window, and its place within the window",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 2,
    .attrs = &attrs_def,
    .infer = max_pool2d_infer,
    .reference = max_pool2d_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .no_accumulate = true,
    .domains = {CHOIR_DOMAIN_NO_KINK},
    .tolerance = 0,
    .cases = choir__pool2d_cases,
};
