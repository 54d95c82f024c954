// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__CONV2D_STRUCT_DEF("conv2d_grad_weight", "the convolution");

static choir_status_t conv2d_grad_weight_infer(const choir_view_t* srcs,
                                               int32_t src_count,
                                               const void* attrs,
                                               choir_view_t* dsts) {
  (void)src_count;
  choir__conv2d_t conv;
  CHOIR_TRY(choir__conv2d_make("conv2d_grad_weight", &srcs[0], &srcs[1], attrs,
                               &conv));
  CHOIR_TRY(choir__conv2d_check_dy("conv2d_grad_weight", &conv, &srcs[2]));
  CHOIR_TRY(choir__infer_like("conv2d_grad_weight", &srcs[1], &dsts[0]));
  return choir__infer_shape("conv2d_grad_weight", srcs[0].dtype, 1,
                            &conv.filters, &dsts[1]);
}

static void add_product(void* self, int64_t x_place, int64_t w_place,
                        int64_t y_place) {
  choir__dense_t* dense = self;
  dense->dsts[0][w_place] += dense->srcs[0][x_place] * dense->srcs[2][y_place];
}

static choir_status_t conv2d_grad_weight_reference(const choir_record_t* record,
                                                   choir_stream_t* stream) {
  choir__conv2d_t conv = choir__conv2d_of(
      choir_record_src(record, 0), choir_record_src(record, 1), record->attrs);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream,
                               CHOIR__SOURCE(0) | CHOIR__SOURCE(2), &dense));
  choir__conv2d_products(&conv, add_product, &dense);
  const double* dy = dense.srcs[2];  // (batch * filters, image)
  double* db = dense.dsts[1];        // (filters)
  int64_t image = conv.out[0] * conv.out[1];
  for (int64_t row = 0; row < conv.batch * conv.filters; ++row) {
    for (int64_t i = 0; i < image; ++i)
      db[row % conv.filters] += dy[row * image + i];
  }
  return choir__dense_end(&dense, NULL);
}

static void conv2d_grad_weight_cost(const choir_record_t* record,
                                    choir_cost_t* out_cost) {
  choir__conv2d_t conv = choir__conv2d_of(
      choir_record_src(record, 0), choir_record_src(record, 1), record->attrs);
  choir__conv2d_cost(&conv, record, out_cost);
}

CHOIR_OP_DEFINE(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, 3, 2,
                "x, W (its shape only), dy -> dW, db of a convolution",
                .attrs = &attrs_def, .cost = conv2d_grad_weight_cost,
                .shapes_only = 1u << 1, .dtypes = CHOIR_DTYPES_FLOAT,
                .tolerance = 2e-5, .cases = choir__conv2d_grad_cases);
