// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d_max_pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__CONV2D_POOL_STRUCT_DEF("conv2d_max_pool2d");

static choir_status_t conv2d_max_pool2d_infer(const choir_view_t* srcs,
                                              int32_t src_count,
                                              const void* attrs,
                                              choir_view_t* dsts) {
  (void)src_count;
  choir__conv2d_pool_t pair;
  CHOIR_TRY(choir__conv2d_pool_make("conv2d_max_pool2d", &srcs[0], &srcs[1],
                                    attrs, &pair));
  CHOIR_TRY(choir__need_vector("conv2d_max_pool2d", "b", &srcs[2],
                               pair.conv.filters));
  dsts[0] = pair.pooled;
  dsts[1] = pair.pooled;
  dsts[1].dtype = CHOIR_DTYPE_U8;
  return NULL;
}

typedef struct products_s {
  const choir__dense_t* dense;
  double* image;
} products_t;

static void add_product(void* self, int64_t x_place, int64_t w_place,
                        int64_t y_place) {
  const products_t* products = self;
  const choir__dense_t* dense = products->dense;
  products->image[y_place] += dense->srcs[0][x_place] * dense->srcs[1][w_place];
}

// Rounded as conv2d would store it: which of two is larger shall not depend on
// digits that it drops.
static double rounded(double value, choir_dtype_t dtype) {
  double element;
  choir_element_store(&element, dtype, value);
  return choir_element_load(&element, dtype);
}

static choir_status_t conv2d_max_pool2d_reference(const choir_record_t* record,
                                                  choir_stream_t* stream) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  choir__conv2d_pool_t pair;
  CHOIR_TRY(choir__conv2d_pool_make("conv2d_max_pool2d",
                                    choir_record_src(record, 0),
                                    choir_record_src(record, 1), attrs, &pair));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  size_t bytes;
  double* image = choir__conv2d_pool_take_image(&pair, &dense, &bytes);
  if (!image)
    return choir__dense_end(
        &dense,
        CHOIR_ERROR(OUT_OF_MEMORY,
                    "conv2d_max_pool2d: no %zu bytes for the image", bytes));
  products_t products = {&dense, image};
  choir__conv2d_products(&pair.conv, add_product, &products);
  const int64_t size = pair.conv.out[0] * pair.conv.out[1];
  const choir_dtype_t dtype = choir_record_dst(record, 0)->dtype;
  for (int64_t row = 0; row < pair.conv.batch * pair.conv.filters; ++row) {
    for (int64_t i = row * size; i < (row + 1) * size; ++i) {
      image[i] =
          rounded(image[i] + dense.srcs[2][row % pair.conv.filters], dtype);
      if (attrs->conv.activation == CHOIR_ACTIVATION_RELU && image[i] < 0)
        image[i] = 0;
    }
  }
  choir__max_pool2d_images(&pair.pool, image, dense.dsts[0], dense.dsts[1]);
  dense.allocator.free(dense.allocator.self, image, bytes, 64);
  return choir__dense_end(&dense, NULL);
}

static void conv2d_max_pool2d_cost(const choir_record_t* record,
                                   choir_cost_t* out_cost) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const choir__conv2d_t conv = choir__conv2d_of(
      choir_record_src(record, 0), choir_record_src(record, 1), &attrs->conv);
  choir__conv2d_cost(&conv, record, out_cost);
}

// Shapes of x, W, b.
static const choir_op_case_t cases[] = {
    {"1,1,6,6;1,1,3,3;1", "pool.kernel=2,2 pool.stride=2,2"},
    {"2,1,8,8;3,1,3,3;3",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,3,7,5;4,3,3,3;4", "conv.padding=1,1 pool.kernel=2,2 pool.stride=2,2"},
    {"1,1,28,28;4,1,5,5;4",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,4,12,12;5,4,5,5;5",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"5,3,9,8;6,3,3,3;6", "pool.kernel=2,2 pool.stride=2,2"},
    {"2,3,10,9;6,3,3,2;6",
     "conv.padding=1,0 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"1,3,11,9;2,3,3,3;2",
     "conv.stride=2,1 conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,4,6,6;8,4,1,1;8", "pool.kernel=2,2 pool.stride=2,2"},
    {"1,2,11,11;3,2,3,3;3",
     "conv.dilation=2,2 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"2,4,6,5;6,2,3,3;6",
     "conv.padding=1,1 conv.groups=2 conv.activation=relu "
     "pool.kernel=2,2 pool.stride=2,2"},
    {"3,5,5,5;7,5,4,4;7",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,16,6,6;16,16,3,3;16",
     "conv.padding=1,1 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"1,8,5,17;8,8,1,5;8", "conv.padding=0,2 pool.kernel=2,2 pool.stride=2,2"},
    {"1,8,17,5;8,8,5,1;8",
     "conv.padding=2,0 conv.activation=relu pool.kernel=3,2 "
     "pool.stride=3,2"},
    {"2,3,9,9;5,3,3,3;5",
     "conv.padding=1,1 conv.activation=relu pool.kernel=3,3 "
     "pool.stride=2,2"},
    {"2,2,8,8;3,2,3,3;3", "pool.kernel=3,3 pool.stride=1,1"},
    {"2,2,7,7;3,2,2,2;3",
     "conv.activation=relu pool.kernel=1,1 pool.stride=1,1"},
    {"2,2,10,10;3,2,3,3;3",
     "conv.activation=relu pool.kernel=2,3 pool.stride=3,4"},
    {"1,2,9,9;2,2,3,3;2",
     "conv.activation=relu pool.kernel=3,3 pool.stride=2,2 "
     "pool.padding=1,1"},
    {"0,3,6,6;4,3,3,3;4",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,33,5,5;17,33,3,3;17",
     "conv.padding=1,1 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"16,1,12,12;20,1,5,5;20",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"13,3,6,6;4,3,3,3;4",
     "conv.padding=1,1 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"16,5,8,8;10,5,3,3;10",
     "conv.padding=1,1 pool.kernel=2,2 pool.stride=2,2"},
    {"31,2,7,9;3,2,3,5;3",
     "conv.padding=1,2 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"16,4,5,5;6,4,5,5;6",
     "conv.padding=2,2 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"33,3,6,6;5,3,3,3;5",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_conv2d_max_pool2d = {
    .op = CHOIR_OP_CONV2D_MAX_POOL2D,
    .name = "conv2d_max_pool2d",
    .doc = "largest of each window of activation(conv(x, W) + b), its place",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 2,
    .attrs = &attrs_def,
    .infer = conv2d_max_pool2d_infer,
    .reference = conv2d_max_pool2d_reference,
    .cost = conv2d_max_pool2d_cost,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .no_accumulate = true,
    .tolerance = 1e-5,
    .cases = cases,
};
