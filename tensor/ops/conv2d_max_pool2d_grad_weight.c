// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d_max_pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__CONV2D_POOL_STRUCT_DEF("conv2d_max_pool2d_grad_weight");

static choir_status_t infer(const choir_view_t* srcs, int32_t src_count,
                            const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  choir__conv2d_pool_t pair;
  CHOIR_TRY(choir__conv2d_pool_check_grad("conv2d_max_pool2d_grad_weight", srcs,
                                          attrs, &pair));
  CHOIR_TRY(
      choir__infer_like("conv2d_max_pool2d_grad_weight", &srcs[2], &dsts[0]));
  return choir__infer_shape("conv2d_max_pool2d_grad_weight", srcs[0].dtype, 1,
                            &pair.conv.filters, &dsts[1]);
}

static void add_product(void* self, int64_t x_place, int64_t w_place,
                        int64_t y_place) {
  const choir__conv2d_pool_products_t* products = self;
  products->dense->dsts[0][w_place] +=
      products->dense->srcs[0][x_place] * products->image[y_place];
}

static void add_bias(const choir__conv2d_pool_t* pair,
                     const choir__dense_t* dense) {
  const int64_t filters = pair->conv.filters;
  const int64_t size = pair->pool.out[0] * pair->pool.out[1];
  for (int64_t i = 0; i < pair->conv.batch * filters * size; ++i)
    dense->dsts[1][i / size % filters] += dense->srcs[4][i];
}

static choir_status_t reference(const choir_record_t* record,
                                choir_stream_t* stream) {
  return choir__conv2d_pool_grad_reference("conv2d_max_pool2d_grad_weight",
                                           record, stream, 2, add_product,
                                           add_bias);
}

const choir_op_def_t choir_op_def_conv2d_max_pool2d_grad_weight = {
    .op = CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT,
    .name = "conv2d_max_pool2d_grad_weight",
    .doc = "x, argmax, W (its shape only), y, dy -> dW, db",
    .src_min = 5,
    .src_max = 5,
    .dst_count = 2,
    .attrs = &attrs_def,
    .infer = infer,
    .reference = reference,
    .cost = choir__conv2d_pool_grad_cost,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR_DTYPE_MASK(U8),
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ARGMAX, CHOIR_DOMAIN_ANY,
                CHOIR_DOMAIN_NO_KINK},
    .tolerance = 2e-5,
    .cases = choir__conv2d_pool_grad_cases,
};
