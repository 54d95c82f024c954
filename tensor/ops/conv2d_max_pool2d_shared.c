// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d_max_pool2d_shared.h"

#include <string.h>

static const char* const activation_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_ACTIVATION_LIST(NAME)
#undef NAME
        NULL};

// Large enough for every image, small enough that no sum of them overflows.
#define LARGEST (1 << 30)

#define INTS(field, def, min, doc)                                      \
  CHOIR_FIELD_INTS(choir_conv2d_max_pool2d_attrs_t, field, 2, def, min, \
                   LARGEST, doc)
const choir_field_t choir__conv2d_pool_fields[] = {
    INTS(conv.stride, 1, 1, "step of the convolution's window"),
    INTS(conv.padding, 0, 0, "zeros on each side of x, height and width"),
    INTS(conv.padding_after, 0, 0, "zeros below and right of x"),
    CHOIR_FIELD_ENUM(choir_conv2d_max_pool2d_attrs_t, conv.pad_mode,
                     choir__window_pad_names, 0, "decides on conv.padding"),
    INTS(conv.dilation, 1, 1, "step inside the convolution's window"),
    CHOIR_FIELD_INT(choir_conv2d_max_pool2d_attrs_t, conv.groups, 1, 1, LARGEST,
                    "parts of channels and filters that see only each other"),
    CHOIR_FIELD_ENUM(choir_conv2d_max_pool2d_attrs_t, conv.activation,
                     activation_names, 0, "applied before the pooling"),
    INTS(pool.kernel, 2, 1, "size of the pooling's window"),
    INTS(pool.stride, 2, 1, "step of the pooling's window"),
    INTS(pool.padding, 0, 0, "rows and columns added for the pooling"),
    INTS(pool.padding_after, 0, 0, "those below and right"),
    CHOIR_FIELD_ENUM(choir_conv2d_max_pool2d_attrs_t, pool.pad_mode,
                     choir__window_pad_names, 0, "decides on pool.padding"),
};
_Static_assert(sizeof choir__conv2d_pool_fields /
                       sizeof choir__conv2d_pool_fields[0] ==
                   CHOIR__CONV2D_POOL_FIELD_COUNT,
               "CHOIR__CONV2D_POOL_FIELD_COUNT counts the fields");

choir_status_t choir__conv2d_pool_make(
    const char* op, const choir_view_t* x, const choir_view_t* w,
    const choir_conv2d_max_pool2d_attrs_t* attrs,
    choir__conv2d_pool_t* out_pair) {
  CHOIR_TRY(choir__conv2d_make(op, x, w, &attrs->conv, &out_pair->conv));
  const choir__conv2d_t* conv = &out_pair->conv;
  const int64_t shape[] = {conv->batch, conv->filters, conv->out[0],
                           conv->out[1]};
  CHOIR_TRY(choir__infer_shape(op, x->dtype, 4, shape, &out_pair->image));
  choir_view_set_channels_last(&out_pair->image);
  CHOIR_TRY(choir__max_pool2d_infer(op, &out_pair->image, &attrs->pool,
                                    &out_pair->pooled));
  out_pair->pool = choir__pool2d_of(&out_pair->image, &attrs->pool);
  return NULL;
}

choir_status_t choir__conv2d_pool_check_grad(
    const char* op, const choir_view_t* srcs,
    const choir_conv2d_max_pool2d_attrs_t* attrs,
    choir__conv2d_pool_t* out_pair) {
  static const char* const names[] = {"x", "argmax", "W", "y", "dy"};
  CHOIR_TRY(choir__conv2d_pool_make(op, &srcs[0], &srcs[2], attrs, out_pair));
  choir_view_t pooled = out_pair->pooled;
  choir_view_set_contiguous(&pooled);
  for (int32_t i = 1; i < 5; i += i == 1 ? 2 : 1)
    CHOIR_TRY(choir__need_same_shape(op, names[i], &srcs[i],
                                     "max_pool2d(conv(x, W))", &pooled));
  return NULL;
}

double* choir__conv2d_pool_take_image(const choir__conv2d_pool_t* pair,
                                      const choir__dense_t* dense,
                                      size_t* out_bytes) {
  const size_t bytes =
      ((size_t)choir_view_count(&pair->image) + 1) * sizeof(double);
  double* image = dense->allocator.alloc(dense->allocator.self, bytes, 64);
  if (image) memset(image, 0, bytes);
  *out_bytes = bytes;
  return image;
}

choir_status_t choir__conv2d_pool_spread(const char* op,
                                         const choir__conv2d_pool_t* pair,
                                         const choir__dense_t* dense,
                                         double* image) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = dense->record->attrs;
  const int64_t count = choir_view_count(&pair->pooled);
  if (attrs->conv.activation == CHOIR_ACTIVATION_RELU) {
    for (int64_t i = 0; i < count; ++i)
      if (!(dense->srcs[3][i] > 0)) dense->srcs[4][i] = 0;
  }
  return choir__max_pool2d_spread(op, &pair->pool, dense->srcs[1],
                                  dense->srcs[4], image);
}

choir_status_t choir__conv2d_pool_grad_reference(
    const char* op, const choir_record_t* record, choir_stream_t* stream,
    int32_t shape_only,
    void (*add)(void* products, int64_t x_place, int64_t w_place,
                int64_t y_place),
    void (*finish)(const choir__conv2d_pool_t* pair,
                   const choir__dense_t* dense)) {
  choir__conv2d_pool_t pair;
  CHOIR_TRY(choir__conv2d_pool_make(op, choir_record_src(record, 0),
                                    choir_record_src(record, 2), record->attrs,
                                    &pair));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(
      record, stream, CHOIR__ALL_SOURCES & ~CHOIR__SOURCE(shape_only), &dense));
  size_t bytes;
  double* image = choir__conv2d_pool_take_image(&pair, &dense, &bytes);
  if (!image)
    return choir__dense_end(
        &dense, CHOIR_ERROR(OUT_OF_MEMORY, "%s: no %zu bytes for the image", op,
                            bytes));
  choir_status_t status = choir__conv2d_pool_spread(op, &pair, &dense, image);
  choir__conv2d_pool_products_t products = {&dense, image};
  if (!status) choir__conv2d_products(&pair.conv, add, &products);
  if (!status && finish) finish(&pair, &dense);
  dense.allocator.free(dense.allocator.self, image, bytes, 64);
  return choir__dense_end(&dense, status);
}

void choir__conv2d_pool_grad_cost(const choir_record_t* record,
                                  choir_cost_t* out_cost) {
  const choir_view_t* w = choir_record_src(record, 2);
  choir__cost_bytes(record, out_cost);
  out_cost->flops = 2.0 *
                    (double)choir_view_count(choir_record_src(record, 4)) *
                    (double)(w->shape[1] * w->shape[2] * w->shape[3]);
}

const choir_op_case_t choir__conv2d_pool_grad_cases[] = {
    {"1,1,6,6;1,1,2,2;1,1,3,3;1,1,2,2;1,1,2,2",
     "pool.kernel=2,2 pool.stride=2,2"},
    {"2,1,8,8;2,3,3,3;3,1,3,3;2,3,3,3;2,3,3,3",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,3,7,5;2,4,3,2;4,3,3,3;2,4,3,2;2,4,3,2",
     "conv.padding=1,1 pool.kernel=2,2 pool.stride=2,2"},
    {"1,1,28,28;1,4,12,12;4,1,5,5;1,4,12,12;1,4,12,12",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,4,12,12;2,5,4,4;5,4,5,5;2,5,4,4;2,5,4,4",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"5,3,9,8;5,6,3,3;6,3,3,3;5,6,3,3;5,6,3,3",
     "pool.kernel=2,2 pool.stride=2,2"},
    {"2,3,10,9;2,6,5,4;6,3,3,2;2,6,5,4;2,6,5,4",
     "conv.padding=1,0 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"1,3,11,9;1,2,2,3;2,3,3,3;1,2,2,3;1,2,2,3",
     "conv.stride=2,1 conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,4,6,6;2,8,3,3;8,4,1,1;2,8,3,3;2,8,3,3",
     "pool.kernel=2,2 pool.stride=2,2"},
    {"1,2,11,11;1,3,3,3;3,2,3,3;1,3,3,3;1,3,3,3",
     "conv.dilation=2,2 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"2,4,6,5;2,6,3,2;6,2,3,3;2,6,3,2;2,6,3,2",
     "conv.padding=1,1 conv.groups=2 conv.activation=relu "
     "pool.kernel=2,2 pool.stride=2,2"},
    {"3,5,5,5;3,7,1,1;7,5,4,4;3,7,1,1;3,7,1,1",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,16,6,6;2,16,3,3;16,16,3,3;2,16,3,3;2,16,3,3",
     "conv.padding=1,1 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"1,8,5,17;1,8,2,8;8,8,1,5;1,8,2,8;1,8,2,8",
     "conv.padding=0,2 pool.kernel=2,2 pool.stride=2,2"},
    {"1,8,17,5;1,8,5,2;8,8,5,1;1,8,5,2;1,8,5,2",
     "conv.padding=2,0 conv.activation=relu pool.kernel=3,2 "
     "pool.stride=3,2"},
    {"2,3,9,9;2,5,4,4;5,3,3,3;2,5,4,4;2,5,4,4",
     "conv.padding=1,1 conv.activation=relu pool.kernel=3,3 "
     "pool.stride=2,2"},
    {"2,2,8,8;2,3,4,4;3,2,3,3;2,3,4,4;2,3,4,4",
     "pool.kernel=3,3 pool.stride=1,1"},
    {"2,2,7,7;2,3,6,6;3,2,2,2;2,3,6,6;2,3,6,6",
     "conv.activation=relu pool.kernel=1,1 pool.stride=1,1"},
    {"2,2,10,10;2,3,3,2;3,2,3,3;2,3,3,2;2,3,3,2",
     "conv.activation=relu pool.kernel=2,3 pool.stride=3,4"},
    {"1,2,9,9;1,2,4,4;2,2,3,3;1,2,4,4;1,2,4,4",
     "conv.activation=relu pool.kernel=3,3 pool.stride=2,2 "
     "pool.padding=1,1"},
    {"0,3,6,6;0,4,2,2;4,3,3,3;0,4,2,2;0,4,2,2",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"2,33,5,5;2,17,2,2;17,33,3,3;2,17,2,2;2,17,2,2",
     "conv.padding=1,1 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"16,1,12,12;16,20,4,4;20,1,5,5;16,20,4,4;16,20,4,4",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {"13,3,6,6;13,4,3,3;4,3,3,3;13,4,3,3;13,4,3,3",
     "conv.padding=1,1 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"16,5,8,8;16,10,4,4;10,5,3,3;16,10,4,4;16,10,4,4",
     "conv.padding=1,1 pool.kernel=2,2 pool.stride=2,2"},
    {"31,2,7,9;31,3,3,4;3,2,3,5;31,3,3,4;31,3,3,4",
     "conv.padding=1,2 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"16,4,5,5;16,6,2,2;6,4,5,5;16,6,2,2;16,6,2,2",
     "conv.padding=2,2 conv.activation=relu pool.kernel=2,2 "
     "pool.stride=2,2"},
    {"33,3,6,6;33,5,2,2;5,3,3,3;33,5,2,2;33,5,2,2",
     "conv.activation=relu pool.kernel=2,2 pool.stride=2,2"},
    {NULL, NULL}};
