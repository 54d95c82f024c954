// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d.h"
#include "tensor/ops/pool2d.h"

// max_pool2d of conv2d, and its gradients.

// A convolution and the pooling of its result.
typedef struct pair_s {
  choir__conv2d_t conv;
  choir__pool2d_t pool;
  choir_view_t image;   // what conv2d gives, channels-last
  choir_view_t pooled;  // what max_pool2d makes of it, channels-last
} pair_t;

// Checks x and W against each other and the attributes; `op` is for messages.
static choir_status_t make_pair(const choir_view_t* x, const choir_view_t* w,
                                const choir_conv2d_max_pool2d_attrs_t* attrs,
                                pair_t* out_pair) {
  CHOIR_TRY(choir__conv2d_make(x, w, &attrs->conv, &out_pair->conv,
                               &out_pair->image));
  CHOIR_TRY(choir__max_pool2d_infer(&out_pair->image, &attrs->pool,
                                    &out_pair->pooled));
  out_pair->pool = choir__pool2d_of(&out_pair->image, &attrs->pool);
  return NULL;
}

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  pair_t pair;
  CHOIR_TRY(make_pair(&srcs[0], &srcs[1], record->attrs, &pair));
  CHOIR_TRY(choir__need_vector("b", &srcs[2], pair.conv.filters));
  dsts[0] = pair.pooled;
  dsts[1] = pair.pooled;
  dsts[1].dtype = CHOIR_DTYPE_U8;
  return NULL;
}

// Sources x, argmax indices, W, y, dy; results dx, or dW and db.
static choir_status_t infer_grad(const choir_record_t* record,
                                 choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  static const char* const names[] = {"x", "argmax", "W", "y", "dy"};
  pair_t pair;
  CHOIR_TRY(make_pair(&srcs[0], &srcs[2], record->attrs, &pair));
  choir_view_set_contiguous(&pair.pooled);
  for (int32_t i = 1; i < 5; i += i == 1 ? 2 : 1)
    CHOIR_TRY(choir__need_same_shape(names[i], &srcs[i],
                                     "max_pool2d(conv(x, W))", &pair.pooled));
  return choir__conv2d_infer_grad(record, &srcs[0], &srcs[2], dsts);
}

// ---- References ----

// The image between the two ops, or its gradient: row-major.
typedef struct products_s {
  const choir__dense_t* dense;
  double* image;
} products_t;

static void add_image(void* self, int64_t x_place, int64_t w_place,
                      int64_t y_place) {
  const products_t* products = self;
  const choir__dense_t* dense = products->dense;
  products->image[y_place] += dense->srcs[0][x_place] * dense->srcs[1][w_place];
}

static void add_data(void* self, int64_t x_place, int64_t w_place,
                     int64_t y_place) {
  const products_t* products = self;
  products->dense->dsts[0][x_place] +=
      products->dense->srcs[2][w_place] * products->image[y_place];
}

static void add_weight(void* self, int64_t x_place, int64_t w_place,
                       int64_t y_place) {
  const products_t* products = self;
  products->dense->dsts[0][w_place] +=
      products->dense->srcs[0][x_place] * products->image[y_place];
}

// Rounded as conv2d would store it: which of two is larger shall not depend on
// digits that it drops.
static double rounded(double value, choir_dtype_t dtype) {
  double element;
  choir_element_store(&element, dtype, value);
  return choir_element_load(&element, dtype);
}

static choir_status_t forward(const pair_t* pair, products_t* products,
                              bool has_relu) {
  const choir__dense_t* dense = products->dense;
  double* image = products->image;
  choir__conv2d_products(&pair->conv, add_image, products);
  const int64_t size = pair->conv.out[0] * pair->conv.out[1];
  for (int64_t i = 0; i < pair->conv.batch * pair->conv.filters * size; ++i) {
    image[i] = rounded(image[i] + dense->srcs[2][i / size % pair->conv.filters],
                       pair->image.dtype);
    if (has_relu && image[i] < 0) image[i] = 0;
  }
  choir__max_pool2d_images(&pair->pool, image, dense->dsts[0], dense->dsts[1]);
  return NULL;
}

static choir_status_t backward(const char* op, const pair_t* pair,
                               products_t* products, bool has_relu) {
  const choir__dense_t* dense = products->dense;
  const bool of_weight = dense->record->dst_count > 1;
  const int64_t size = pair->pool.out[0] * pair->pool.out[1];
  const int64_t count = choir_view_count(&pair->pooled);
  double* dy = dense->srcs[4];
  for (int64_t i = 0; has_relu && i < count; ++i)
    if (!(dense->srcs[3][i] > 0)) dy[i] = 0;
  CHOIR_TRY(choir__max_pool2d_spread(op, &pair->pool, dense->srcs[1], dy,
                                     products->image));
  choir__conv2d_products(&pair->conv, of_weight ? add_weight : add_data,
                         products);
  for (int64_t i = 0; of_weight && i < count; ++i)
    dense->dsts[1][i / size % pair->conv.filters] += dy[i];
  return NULL;
}

// Source `shape_only` (-1: none) is not read.
static choir_status_t run(const char* op, const choir_record_t* record,
                          choir_stream_t* stream, int32_t shape_only) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const bool is_grad = record->src_count > 3;
  const bool has_relu = attrs->conv.activation == CHOIR_ACTIVATION_RELU;
  pair_t pair;
  CHOIR_TRY(make_pair(choir_record_src(record, 0),
                      choir_record_src(record, is_grad ? 2 : 1), attrs, &pair));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(
      record, stream,
      shape_only < 0 ? CHOIR__ALL_SOURCES : ~CHOIR__SOURCE(shape_only),
      &dense));
  const size_t bytes =
      ((size_t)choir_view_count(&pair.image) + 1) * sizeof(double);
  void* memory = NULL;
  choir_status_t status = choir_allocate(dense.allocator, bytes, op, &memory);
  if (!status) {
    products_t products = {&dense, memory};
    status = is_grad ? backward(op, &pair, &products, has_relu)
                     : forward(&pair, &products, has_relu);
    choir_deallocate(dense.allocator, memory, bytes);
  }
  return choir__dense_end(&dense, status);
}

// ---- Definitions ----

static void conv2d_max_pool2d_cost(const choir_record_t* record,
                                   choir_cost_t* out_cost) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const choir__conv2d_t conv = choir__conv2d_of(
      choir_record_src(record, 0), choir_record_src(record, 1), &attrs->conv);
  choir__conv2d_cost(&conv, record, out_cost);
}

// Two flops for each product of a gradient: those of the argmax indices.
static void grad_cost(const choir_record_t* record, choir_cost_t* out_cost) {
  const choir_view_t* w = choir_record_src(record, 2);
  choir__cost_bytes(record, out_cost);
  out_cost->flops = 2.0 *
                    (double)choir_view_count(choir_record_src(record, 4)) *
                    (double)(w->shape[1] * w->shape[2] * w->shape[3]);
}

#define INTS(field, def, min, doc)                                      \
  CHOIR_FIELD_INTS(choir_conv2d_max_pool2d_attrs_t, field, 2, def, min, \
                   CHOIR__LARGEST_SIZE, doc)
static const choir_field_t fields[] = {
    INTS(conv.stride, 1, 1, "step of the convolution's window"),
    INTS(conv.padding, 0, 0, "zeros on each side of x, height and width"),
    INTS(conv.padding_after, 0, 0, "zeros below and right of x"),
    CHOIR_FIELD_ENUM(choir_conv2d_max_pool2d_attrs_t, conv.pad_mode,
                     choir__window_pad_names, 0, "decides on conv.padding"),
    INTS(conv.dilation, 1, 1, "step inside the convolution's window"),
    CHOIR_FIELD_INT(choir_conv2d_max_pool2d_attrs_t, conv.groups, 1, 1,
                    CHOIR__LARGEST_SIZE,
                    "parts of channels and filters that see only each other"),
    CHOIR_FIELD_ENUM(choir_conv2d_max_pool2d_attrs_t, conv.activation,
                     choir__activation_names, 0, "applied before the pooling"),
    INTS(pool.kernel, 2, 1, "size of the pooling's window"),
    INTS(pool.stride, 2, 1, "step of the pooling's window"),
    INTS(pool.padding, 0, 0, "rows and columns added for the pooling"),
    INTS(pool.padding_after, 0, 0, "those below and right"),
    CHOIR_FIELD_ENUM(choir_conv2d_max_pool2d_attrs_t, pool.pad_mode,
                     choir__window_pad_names, 0, "decides on pool.padding"),
};

// S(x, W, b, y)
#define TWO "pool.kernel=2,2 pool.stride=2,2"
#define RELU "conv.activation=relu"
#define CASES(S)                                                               \
  {S("1,1,6,6", "1,1,3,3", "1", "1,1,2,2"), TWO},                              \
      {S("2,1,8,8", "3,1,3,3", "3", "2,3,3,3"), RELU " " TWO},                 \
      {S("2,3,7,5", "4,3,3,3", "4", "2,4,3,2"), "conv.padding=1,1 " TWO},      \
      {S("1,1,28,28", "4,1,5,5", "4", "1,4,12,12"), RELU " " TWO},             \
      {S("2,4,12,12", "5,4,5,5", "5", "2,5,4,4"), RELU " " TWO},               \
      {S("5,3,9,8", "6,3,3,3", "6", "5,6,3,3"), TWO},                          \
      {S("2,3,10,9", "6,3,3,2", "6", "2,6,5,4"),                               \
       "conv.padding=1,0 conv.activation=relu " TWO},                          \
      {S("1,3,11,9", "2,3,3,3", "2", "1,2,2,3"),                               \
       "conv.stride=2,1 conv.activation=relu " TWO},                           \
      {S("2,4,6,6", "8,4,1,1", "8", "2,8,3,3"), TWO},                          \
      {S("1,2,11,11", "3,2,3,3", "3", "1,3,3,3"),                              \
       "conv.dilation=2,2 conv.activation=relu " TWO},                         \
      {S("2,4,6,5", "6,2,3,3", "6", "2,6,3,2"),                                \
       "conv.padding=1,1 conv.groups=2 conv.activation=relu " TWO},            \
      {S("3,5,5,5", "7,5,4,4", "7", "3,7,1,1"), RELU " " TWO},                 \
      {S("2,16,6,6", "16,16,3,3", "16", "2,16,3,3"),                           \
       "conv.padding=1,1 conv.activation=relu " TWO},                          \
      {S("1,8,5,17", "8,8,1,5", "8", "1,8,2,8"), "conv.padding=0,2 " TWO},     \
      {S("1,8,17,5", "8,8,5,1", "8", "1,8,5,2"),                               \
       "conv.padding=2,0 conv.activation=relu pool.kernel=3,2 "                \
       "pool.stride=3,2"},                                                     \
      {S("2,3,9,9", "5,3,3,3", "5", "2,5,4,4"),                                \
       "conv.padding=1,1 conv.activation=relu pool.kernel=3,3 "                \
       "pool.stride=2,2"},                                                     \
      {S("2,2,8,8", "3,2,3,3", "3", "2,3,4,4"),                                \
       "pool.kernel=3,3 pool.stride=1,1"},                                     \
      {S("2,2,7,7", "3,2,2,2", "3", "2,3,6,6"),                                \
       "conv.activation=relu pool.kernel=1,1 pool.stride=1,1"},                \
      {S("2,2,10,10", "3,2,3,3", "3", "2,3,3,2"),                              \
       "conv.activation=relu pool.kernel=2,3 pool.stride=3,4"},                \
      {S("1,2,9,9", "2,2,3,3", "2", "1,2,4,4"),                                \
       "conv.activation=relu pool.kernel=3,3 pool.stride=2,2 "                 \
       "pool.padding=1,1"},                                                    \
      {S("0,3,6,6", "4,3,3,3", "4", "0,4,2,2"), RELU " " TWO},                 \
      {S("2,33,5,5", "17,33,3,3", "17", "2,17,2,2"),                           \
       "conv.padding=1,1 conv.activation=relu " TWO},                          \
      {S("16,1,12,12", "20,1,5,5", "20", "16,20,4,4"), RELU " " TWO},          \
      {S("13,3,6,6", "4,3,3,3", "4", "13,4,3,3"),                              \
       "conv.padding=1,1 conv.activation=relu " TWO},                          \
      {S("16,5,8,8", "10,5,3,3", "10", "16,10,4,4"), "conv.padding=1,1 " TWO}, \
      {S("31,2,7,9", "3,2,3,5", "3", "31,3,3,4"),                              \
       "conv.padding=1,2 conv.activation=relu " TWO},                          \
      {S("16,4,5,5", "6,4,5,5", "6", "16,6,2,2"),                              \
       "conv.padding=2,2 conv.activation=relu " TWO},                          \
      {S("33,3,6,6", "5,3,3,3", "5", "33,5,2,2"), RELU " " TWO}, {             \
    NULL, NULL                                                                 \
  }
#define FORWARD(x, w, b, y) x ";" w ";" b
#define BACKWARD(x, w, b, y) x ";" y ";" w ";" y ";" y
static const choir_op_case_t cases[] = {CASES(FORWARD)};
static const choir_op_case_t grad_cases[] = {CASES(BACKWARD)};

#define DEFINE(ENUM, id, least, results, infer, shape_only, cost_, ...)    \
  static choir_status_t id##_reference(const choir_record_t* record,       \
                                       choir_stream_t* stream) {           \
    return run(#id, record, stream, shape_only);                           \
  }                                                                        \
  CHOIR_OP_DEFINE_BY(                                                      \
      ENUM, id, least, least, results, infer, id##_reference, __VA_ARGS__, \
      CHOIR_OP_ATTRS(id, fields,                                           \
                     "the convolution and the windows on its result"),     \
      .cost = cost_, .dtypes = CHOIR_DTYPES_FLOAT)
#define GRAD_FIELDS                                                    \
  .second_dtypes = CHOIR_DTYPE_MASK(U8), .cases = grad_cases,          \
  .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ARGMAX, CHOIR_DOMAIN_ANY, \
              CHOIR_DOMAIN_NO_KINK}

DEFINE(CONV2D_MAX_POOL2D, conv2d_max_pool2d, 3, 2, infer, -1,
       conv2d_max_pool2d_cost,
       "largest of each window of activation(conv(x, W) + b), its place",
       .no_accumulate = true, .tolerance = 1e-5, .cases = cases);
DEFINE(CONV2D_MAX_POOL2D_GRAD_DATA, conv2d_max_pool2d_grad_data, 5, 1,
       infer_grad, 0, grad_cost, "x (its shape only), argmax, W, y, dy -> dx",
       .tolerance = 1e-5, GRAD_FIELDS);
DEFINE(CONV2D_MAX_POOL2D_GRAD_WEIGHT, conv2d_max_pool2d_grad_weight, 5, 2,
       infer_grad, 2, grad_cost,
       "x, argmax, W (its shape only), y, dy -> dW, db", .tolerance = 2e-5,
       GRAD_FIELDS);
