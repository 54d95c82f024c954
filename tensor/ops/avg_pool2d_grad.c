// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__POOL2D_STRUCT_DEF("avg_pool2d_grad", "the windows");

static choir_status_t avg_pool2d_grad_infer(const choir_view_t* srcs,
                                            int32_t src_count,
                                            const void* attrs,
                                            choir_view_t* dsts) {
  return choir__pool2d_grad_infer("avg_pool2d_grad", srcs, src_count, attrs,
                                  &dsts[0]);
}

static choir_status_t avg_pool2d_grad_reference(const choir_record_t* record,
                                                choir_stream_t* stream) {
  choir__pool2d_t pool =
      choir__pool2d_of(choir_record_src(record, 0), record->attrs);
  double kernel_size = (double)(pool.kernel[0] * pool.kernel[1]);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__SOURCE(1), &dense));
  int64_t place = 0;  // in dy
  for (int64_t i = 0; i < pool.images; ++i) {
    double* image = dense.dsts[0] + i * pool.size[0] * pool.size[1];
    for (int64_t out_row = 0; out_row < pool.out[0]; ++out_row) {
      for (int64_t out_column = 0; out_column < pool.out[1];
           ++out_column, ++place) {
        choir__window_t window =
            choir__pool2d_window(&pool, out_row, out_column);
        double share = dense.srcs[1][place] / kernel_size;
        for (int64_t row = window.row_begin; row < window.row_end; ++row) {
          for (int64_t column = window.column_begin; column < window.column_end;
               ++column)
            image[row * pool.size[1] + column] += share;
        }
      }
    }
  }
  return choir__dense_end(&dense, NULL);
}

const choir_op_def_t choir_op_def_avg_pool2d_grad = {
    .op = CHOIR_OP_AVG_POOL2D_GRAD,
    .name = "avg_pool2d_grad",
    .doc = "x (its shape only), dy -> dx",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = avg_pool2d_grad_infer,
    .reference = avg_pool2d_grad_reference,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 2e-6,
    .cases = choir__avg_pool2d_grad_cases,
};
