// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tensor/ops/elements.h"

static choir_status_t linear_infer(const choir_record_t* record,
                                   choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const choir_view_t* x = &srcs[0];
  const choir_view_t* w = &srcs[1];
  const int32_t last = x->ndim - 1;
  if (last < 1) CHOIR_TRY(choir__need_ndim("x", x, 2));
  CHOIR_TRY(choir__need_ndim("W", w, 2));
  if (x->shape[last] != w->shape[0])
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x has %lld features; W (in, out) needs %lld",
                       (long long)x->shape[last], (long long)w->shape[0]);
  CHOIR_TRY(choir__need_vector("b", &srcs[2], w->shape[1]));
  int64_t shape[CHOIR_MAX_NDIM];
  memcpy(shape, x->shape, sizeof shape);
  shape[last] = w->shape[1];
  return choir__infer_shape(x->dtype, x->ndim, shape, &dsts[0]);
}

static choir_status_t linear_reference(const choir_record_t* record,
                                       choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const choir_view_t* w_view = choir_record_src(record, 1);
  const choir_view_t* x_view = choir_record_src(record, 0);
  int64_t rows = 1;
  for (int32_t k = 0; k < x_view->ndim - 1; ++k) rows *= x_view->shape[k];
  int64_t in = w_view->shape[0];
  int64_t out = w_view->shape[1];
  const double* x = dense.srcs[0];  // (rows, in)
  const double* w = dense.srcs[1];  // (in, out)
  const double* b = dense.srcs[2];  // (out)
  double* y = dense.dsts[0];        // (rows, out)
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < in; ++k) {
      for (int64_t column = 0; column < out; ++column)
        y[row * out + column] += x[row * in + k] * w[k * out + column];
    }
    for (int64_t column = 0; column < out; ++column)
      y[row * out + column] += b[column];
  }
  return choir__dense_end(&dense, NULL);
}

static void linear_cost(const choir_record_t* record, choir_cost_t* out_cost) {
  const choir_view_t* w = choir_record_src(record, 1);
  choir__cost_bytes(record, out_cost);
  out_cost->flops = (2.0 * (double)w->shape[0] + 1) *
                    (double)choir_view_count(choir_record_dst(record, 0));
}

static const choir_op_case_t cases[] = {{"1,1;1,1;1", NULL},
                                        {"2,3;3,4;4", NULL},
                                        {"5,1;1,7;7", NULL},
                                        {"7,9;9,1;1", NULL},
                                        {"17,33;33,9;9", NULL},
                                        {"1,64;64,10;10", NULL},
                                        {"64,65;65,63;63", NULL},
                                        {"16,84;84,10;10", NULL},
                                        {"3,500;500,10;10", NULL},
                                        {"16,9;9,512;512", NULL},
                                        {"8,8;8,8;8", NULL},
                                        {"15,16;16,17;17", NULL},
                                        {"31,7;7,33;33", NULL},
                                        {"2,128;128,2;2", NULL},
                                        {"1,1;1,100;100", NULL},
                                        {"100,1;1,1;1", NULL},
                                        {"6,120;120,84;84", NULL},
                                        {"32,24;24,40;40", NULL},
                                        {"0,4;4,3;3", NULL},
                                        {"3,0;0,4;4", NULL},
                                        {"4,5;5,0;0", NULL},
                                        {"3,4,5;5,7;7", NULL},
                                        {"2,1,3,6;6,4;4", NULL},
                                        {"5,1,8;8,9;9", NULL},
                                        {"2,0,3;3,4;4", NULL},
                                        {"2,70,33;33,40;40", NULL},
                                        {NULL, NULL}};

CHOIR_OP_DEFINE(LINEAR, linear, 3, 1,
                "x W + b with x (..., in), W (in, out), b (out)",
                .cost = linear_cost, .is_product = true,
                .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 1e-5,
                .cases = cases);
