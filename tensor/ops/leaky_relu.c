// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_leaky_relu_attrs_t, alpha, 0.01, -INFINITY,
                      INFINITY, "slope below 0"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "leaky_relu", choir_leaky_relu_attrs_t, fields, "the slope below 0");

static const choir_op_case_t cases[] = {
    {"", NULL},        {"7", "alpha=0.3"},         {"257", "alpha=-1"},
    {"3,5", NULL},     {"2,0,3", "alpha=0.3"},     {"2,3,4", "alpha=-1"},
    {"4,3,7,5", NULL}, {"5,4,3,2,3", "alpha=0.3"}, {NULL, NULL}};

CHOIR_UNARY_ATTRS_OP(LEAKY_RELU, leaky_relu, "x above 0, else alpha x", cases,
                     .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
