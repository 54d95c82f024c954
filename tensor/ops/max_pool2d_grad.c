// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__POOL2D_STRUCT_DEF("max_pool2d_grad", "the windows");

static choir_status_t max_pool2d_grad_infer(const choir_view_t* srcs,
                                            int32_t src_count,
                                            const void* attrs,
                                            choir_view_t* dsts) {
  return choir__pool2d_grad_infer("max_pool2d_grad", srcs, src_count, attrs,
                                  &dsts[0]);
}

static choir_status_t bad_index(const choir__window_t* window, int64_t index,
                                int64_t place) {
  return CHOIR_ERROR(
      OUT_OF_RANGE,
      "max_pool2d_grad: index %lld at element %lld; needs a place of its "
      "window that is on the image, rows %lld .. %lld, columns %lld .. %lld",
      (long long)index, (long long)place,
      (long long)(window->row_begin - window->top),
      (long long)(window->row_end - window->top - 1),
      (long long)(window->column_begin - window->left),
      (long long)(window->column_end - window->left - 1));
}

static choir_status_t spread(const choir__pool2d_t* pool, const double* index,
                             const double* dy, double* dx) {
  int64_t place = 0;  // in index and in dy
  for (int64_t i = 0; i < pool->images; ++i) {
    double* image = dx + i * pool->size[0] * pool->size[1];
    for (int64_t out_row = 0; out_row < pool->out[0]; ++out_row) {
      for (int64_t out_column = 0; out_column < pool->out[1];
           ++out_column, ++place) {
        choir__window_t window =
            choir__pool2d_window(pool, out_row, out_column);
        int64_t winner = (int64_t)index[place];
        int64_t row = window.top + winner / pool->kernel[1];
        int64_t column = window.left + winner % pool->kernel[1];
        if (row < window.row_begin || row >= window.row_end ||
            column < window.column_begin || column >= window.column_end)
          return bad_index(&window, winner, place);
        image[row * pool->size[1] + column] += dy[place];
      }
    }
  }
  return NULL;
}

static choir_status_t max_pool2d_grad_reference(const choir_record_t* record,
                                                choir_stream_t* stream) {
  choir__pool2d_t pool =
      choir__pool2d_of(choir_record_src(record, 0), record->attrs);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream,
                               CHOIR__SOURCE(1) | CHOIR__SOURCE(2), &dense));
  return choir__dense_end(
      &dense, spread(&pool, dense.srcs[1], dense.srcs[2], dense.dsts[0]));
}

const choir_op_def_t choir_op_def_max_pool2d_grad = {
    .op = CHOIR_OP_MAX_POOL2D_GRAD,
    .name = "max_pool2d_grad",
    .doc = "x (its shape only), index, dy -> dx",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = max_pool2d_grad_infer,
    .reference = max_pool2d_grad_reference,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR_DTYPE_MASK(U8),
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_WINNER},
    .tolerance = 2e-6,
    .cases = choir__max_pool2d_grad_cases,
};
