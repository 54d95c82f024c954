// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/softmax_shared.h"

#include <math.h>

double choir__softmax_row(const double* x, int64_t classes, double* p,
                          double* out_largest) {
  double largest = -INFINITY;
  for (int64_t i = 0; i < classes; ++i) {
    if (x[i] > largest || x[i] != x[i]) largest = x[i];
  }
  double sum = 0;
  for (int64_t i = 0; i < classes; ++i) sum += exp(x[i] - largest);
  for (int64_t i = 0; p && i < classes; ++i) p[i] = exp(x[i] - largest) / sum;
  if (out_largest) *out_largest = largest;
  return log(sum);
}

choir_status_t choir__softmax_infer(const char* op, const choir_view_t* x,
                                    choir_view_t* y) {
  if (x->ndim < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: source 0 is a scalar; needs 1 or more dimensions",
                       op);
  return choir__infer_like(op, x, y);
}

choir_status_t choir__softmax_grad_infer(const char* op,
                                         const choir_view_t* srcs,
                                         choir_view_t* dx) {
  CHOIR_TRY(choir__softmax_infer(op, &srcs[0], dx));
  return choir__need_same_shape(op, "dy", &srcs[1], "y", &srcs[0]);
}

int64_t choir__softmax_classes(const choir_view_t* x) {
  return x->shape[x->ndim - 1];
}

int64_t choir__softmax_rows(const choir_view_t* x) {
  int64_t classes = choir__softmax_classes(x);
  return classes > 0 ? choir_view_count(x) / classes : 0;
}

const choir_op_case_t choir__softmax_cases[] = {
    {"1", NULL},      {"7", NULL},     {"1,1", NULL},   {"1,10", NULL},
    {"2,2", NULL},    {"3,3", NULL},   {"7,3", NULL},   {"16,10", NULL},
    {"33,17", NULL},  {"5,8", NULL},   {"5,9", NULL},   {"5,15", NULL},
    {"5,16", NULL},   {"4,31", NULL},  {"4,33", NULL},  {"5,100", NULL},
    {"3,1000", NULL}, {"64,10", NULL}, {"2,3,4", NULL}, {"4,3,7,5", NULL},
    {"0,10", NULL},   {NULL, NULL}};

const choir_op_case_t choir__softmax_grad_cases[] = {
    {"1;1", NULL},           {"7;7", NULL},
    {"1,1;1,1", NULL},       {"1,10;1,10", NULL},
    {"2,2;2,2", NULL},       {"3,3;3,3", NULL},
    {"7,3;7,3", NULL},       {"16,10;16,10", NULL},
    {"33,17;33,17", NULL},   {"5,8;5,8", NULL},
    {"5,9;5,9", NULL},       {"5,15;5,15", NULL},
    {"5,16;5,16", NULL},     {"4,31;4,31", NULL},
    {"4,33;4,33", NULL},     {"5,100;5,100", NULL},
    {"3,1000;3,1000", NULL}, {"64,10;64,10", NULL},
    {"2,3,4;2,3,4", NULL},   {"4,3,7,5;4,3,7,5", NULL},
    {"0,10;0,10", NULL},     {NULL, NULL}};
