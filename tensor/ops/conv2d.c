// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__CONV2D_STRUCT_DEF("conv2d", "a convolution of images");

static choir_status_t conv2d_infer(const choir_view_t* srcs, int32_t src_count,
                                   const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  choir__conv2d_t conv;
  CHOIR_TRY(choir__conv2d_make("conv2d", &srcs[0], &srcs[1], attrs, &conv));
  CHOIR_TRY(choir__need_vector("conv2d", "b", &srcs[2], conv.filters));
  int64_t shape[] = {conv.batch, conv.filters, conv.out[0], conv.out[1]};
  CHOIR_TRY(choir__infer_shape("conv2d", srcs[0].dtype, 4, shape, &dsts[0]));
  choir_view_set_channels_last(&dsts[0]);
  return NULL;
}

static void add_product(void* self, int64_t x_place, int64_t w_place,
                        int64_t y_place) {
  choir__dense_t* dense = self;
  dense->dsts[0][y_place] += dense->srcs[0][x_place] * dense->srcs[1][w_place];
}

static choir_status_t conv2d_reference(const choir_record_t* record,
                                       choir_stream_t* stream) {
  const choir_conv2d_attrs_t* attrs = record->attrs;
  choir__conv2d_t conv = choir__conv2d_of(choir_record_src(record, 0),
                                          choir_record_src(record, 1), attrs);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  choir__conv2d_products(&conv, add_product, &dense);
  const double* b = dense.srcs[2];  // (filters)
  double* y = dense.dsts[0];        // (batch * filters, image)
  int64_t image = conv.out[0] * conv.out[1];
  for (int64_t row = 0; row < conv.batch * conv.filters; ++row) {
    for (int64_t i = row * image; i < (row + 1) * image; ++i) {
      y[i] += b[row % conv.filters];
      if (attrs->activation == CHOIR_ACTIVATION_RELU && y[i] < 0) y[i] = 0;
    }
  }
  return choir__dense_end(&dense, NULL);
}

static bool conv2d_is_rectified(const void* attrs) {
  return ((const choir_conv2d_attrs_t*)attrs)->activation ==
         CHOIR_ACTIVATION_RELU;
}

static void conv2d_cost(const choir_record_t* record, choir_cost_t* out_cost) {
  choir__conv2d_t conv = choir__conv2d_of(
      choir_record_src(record, 0), choir_record_src(record, 1), record->attrs);
  choir__conv2d_cost(&conv, record, out_cost);
}

CHOIR_OP_DEFINE(CONV2D, conv2d, 3, 1,
                "activation(convolution of x with W + b); x (n, c, h, w)",
                .attrs = &attrs_def, .cost = conv2d_cost, .is_product = true,
                .is_rectified = conv2d_is_rectified,
                .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 2e-5,
                .cases = choir__conv2d_cases);
