// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d_max_pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__CONV2D_POOL_STRUCT_DEF("conv2d_max_pool2d_grad_data");

static choir_status_t infer(const choir_view_t* srcs, int32_t src_count,
                            const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  choir__conv2d_pool_t pair;
  CHOIR_TRY(choir__conv2d_pool_check_grad("conv2d_max_pool2d_grad_data", srcs,
                                          attrs, &pair));
  CHOIR_TRY(choir__infer_shape("conv2d_max_pool2d_grad_data", srcs[0].dtype, 4,
                               srcs[0].shape, &dsts[0]));
  choir_view_set_channels_last(&dsts[0]);
  return NULL;
}

static void add_product(void* self, int64_t x_place, int64_t w_place,
                        int64_t y_place) {
  const choir__conv2d_pool_products_t* products = self;
  products->dense->dsts[0][x_place] +=
      products->dense->srcs[2][w_place] * products->image[y_place];
}

static choir_status_t reference(const choir_record_t* record,
                                choir_stream_t* stream) {
  return choir__conv2d_pool_grad_reference(
      "conv2d_max_pool2d_grad_data", record, stream, 0, add_product, NULL);
}

const choir_op_def_t choir_op_def_conv2d_max_pool2d_grad_data = {
    .op = CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA,
    .name = "conv2d_max_pool2d_grad_data",
    .doc = "x (its shape only), argmax, W, y, dy -> dx",
    .src_min = 5,
    .src_max = 5,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = infer,
    .reference = reference,
    .cost = choir__conv2d_pool_grad_cost,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR_DTYPE_MASK(U8),
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ARGMAX, CHOIR_DOMAIN_ANY,
                CHOIR_DOMAIN_NO_KINK},
    .tolerance = 1e-5,
    .cases = choir__conv2d_pool_grad_cases,
};
