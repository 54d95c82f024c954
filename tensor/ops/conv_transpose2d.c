// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/conv2d.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INTS(choir_conv_transpose2d_attrs_t, stride, 2, 1, 1,
                     CHOIR__LARGEST_SIZE,
                     "rows and columns of y for each of x"),
    CHOIR_FIELD_INTS(choir_conv_transpose2d_attrs_t, padding, 2, 0, 0,
                     CHOIR__LARGEST_SIZE,
                     "rows and columns left out on each side of y"),
    CHOIR_FIELD_INTS(choir_conv_transpose2d_attrs_t, output_padding, 2, 0, 0,
                     CHOIR__LARGEST_SIZE, "more rows below and columns right"),
    CHOIR_FIELD_INTS(choir_conv_transpose2d_attrs_t, dilation, 2, 1, 1,
                     CHOIR__LARGEST_SIZE,
                     "step inside the window, height and width"),
    CHOIR_FIELD_INT(
        choir_conv_transpose2d_attrs_t, groups, 1, 1, CHOIR__LARGEST_SIZE,
        "parts of the channels of x and y that see only each other"),
};
static choir_conv2d_attrs_t conv_attrs_of(
    const choir_conv_transpose2d_attrs_t* attrs) {
  choir_conv2d_attrs_t conv = {.groups = attrs->groups};
  for (int32_t k = 0; k < 2; ++k) {
    conv.stride[k] = attrs->stride[k];
    conv.padding[k] = attrs->padding[k];
    conv.dilation[k] = attrs->dilation[k];
  }
  return conv;
}

void choir__conv_transpose2d_inside(const choir_record_t* record,
                                    choir__conv2d_inside_t* out_inside) {
  out_inside->attrs = conv_attrs_of(record->attrs);
  out_inside->operands[0] = *choir_record_dst(record, 0);
  out_inside->operands[1] = *choir_record_src(record, 1);
  out_inside->operands[2] = *choir_record_src(record, 0);
  out_inside->operands[3] = *choir_record_dst(record, 0);
  out_inside->record = *record;
  out_inside->record.operation = choir__operation(CHOIR_OP_CONV2D_GRAD_DATA);
  out_inside->record.operands = out_inside->operands;
  out_inside->record.src_count = 3;
  out_inside->record.attrs = &out_inside->attrs;
  out_inside->record.attrs_bytes = sizeof(out_inside->attrs);
}

choir_status_t choir__conv_transpose2d_run(const choir_record_t* record,
                                           choir_stream_t* stream) {
  choir__conv2d_inside_t inside;
  choir__conv_transpose2d_inside(record, &inside);
  return choir__run_inside(CHOIR_OP_CONV2D_GRAD_DATA, &inside.record, stream);
}

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const choir_conv_transpose2d_attrs_t* own = record->attrs;
  const choir_view_t *x = &srcs[0], *w = &srcs[1];
  CHOIR_TRY(choir__need_ndim("x", x, 4));
  CHOIR_TRY(choir__need_ndim("W", w, 4));
  if (w->shape[1] > CHOIR__LARGEST_SIZE)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "W has %lld channels; needs at "
                       "most %d",
                       (long long)w->shape[1], CHOIR__LARGEST_SIZE);
  int64_t shape[] = {x->shape[0], w->shape[1] * own->groups, 0, 0};
  for (int32_t k = 0; k < 2; ++k) {
    const int64_t size = x->shape[2 + k], kernel = w->shape[2 + k];
    if (size < 1 || size > CHOIR__LARGEST_SIZE || kernel < 1 ||
        kernel > CHOIR__LARGEST_SIZE)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "image is %lld x %lld, kernel %lld x %lld; needs "
                         "sizes from 1 to %d",
                         (long long)x->shape[2], (long long)x->shape[3],
                         (long long)w->shape[2], (long long)w->shape[3],
                         CHOIR__LARGEST_SIZE);
    if (own->output_padding[k] >= own->stride[k])
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "output_padding is %lld with a stride of %lld; "
                         "needs less than the stride",
                         (long long)own->output_padding[k],
                         (long long)own->stride[k]);
    shape[2 + k] = (size - 1) * own->stride[k] - 2 * own->padding[k] +
                   own->dilation[k] * (kernel - 1) + 1 + own->output_padding[k];
    if (shape[2 + k] < 1)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "the result would have %lld %s; needs 1 or more",
                         (long long)shape[2 + k], k == 0 ? "rows" : "columns");
  }
  CHOIR_TRY(choir__infer_shape(x->dtype, 4, shape, &dsts[0]));
  choir_view_set_channels_last(&dsts[0]);
  const choir_conv2d_attrs_t conv_attrs = conv_attrs_of(own);
  choir__conv2d_t conv;
  choir_view_t like_x;
  CHOIR_TRY(choir__conv2d_make(&dsts[0], w, &conv_attrs, &conv, &like_x));
  if (x->shape[1] != conv.filters)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x has %lld channels; needs %lld, as W has",
                       (long long)x->shape[1], (long long)conv.filters);
  return NULL;
}

static choir_status_t reference(const choir_record_t* record,
                                choir_stream_t* stream) {
  choir__conv2d_inside_t inside;
  choir__conv_transpose2d_inside(record, &inside);
  return choir_op_def_conv2d_grad_data.reference(&inside.record, stream);
}

static void cost(const choir_record_t* record, choir_cost_t* out_cost) {
  choir__conv2d_inside_t inside;
  choir__conv_transpose2d_inside(record, &inside);
  choir_op_def_conv2d_grad_data.cost(&inside.record, out_cost);
}

// Shapes of x, W.
static const choir_op_case_t cases[] = {
    {"1,1,1,1;1,1,1,1", NULL},
    {"2,3,4,5;3,4,3,3", NULL},
    {"2,3,4,5;3,4,3,3", "padding=1,1"},
    {"2,3,4,5;3,6,3,2", "stride=2,2 padding=1,0 output_padding=1,0"},
    {"2,4,4,3;4,3,3,3", "stride=2,3 output_padding=1,2 groups=2"},
    {"1,4,3,3;4,1,2,2", "stride=2,2 groups=4"},
    {"1,3,5,4;3,2,3,3", "dilation=2,2 padding=1,2"},
    {"16,8,5,5;8,5,5,5", "padding=2,2"},
    {"16,16,4,4;16,16,3,3", "stride=2,2 padding=1,1 output_padding=1,1"},
    {"2,33,3,3;33,17,4,4", "stride=2,2 padding=1,1"},
    {"0,3,4,4;3,2,3,3", NULL},
    {"2,4,6,6;4,8,1,1", NULL},
    {"2,4,4,4;4,8,1,1", "stride=2,2 output_padding=1,1"},
    {"5,2,2,2;2,3,2,2", "stride=2,2"},
    {"1,8,3,17;8,8,1,5", "padding=0,2"},
    {"1,8,17,3;8,8,5,1", "padding=2,0"},
    {"1,6,3,3;6,3,3,3", "stride=2,2 groups=3"},
    {"16,20,12,12;20,1,5,5", NULL},
    {"31,3,7,9;3,2,3,5", "padding=1,2"},
    {"17,3,2,2;3,2,3,3", "stride=2,2"},
    {"16,5,6,5;5,20,3,3", "padding=1,1"},
    {"2,16,6,6;16,16,3,3", "padding=1,1"},
    {NULL, NULL}};

CHOIR_OP_DEFINE_BY(CONV_TRANSPOSE2D, conv_transpose2d, 2, 2, 1, infer,
                   reference,
                   "transposed convolution of x with W; x (n, c, h, w)",
                   CHOIR_OP_ATTRS(conv_transpose2d, fields,
                                  "a transposed convolution of images"),
                   .cost = cost, .is_product = true,
                   .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 2e-5,
                   .cases = cases);
