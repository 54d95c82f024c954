// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_leaky_relu_grad_attrs_t, alpha, 0.01, -INFINITY,
                      INFINITY, "slope below 0"),
};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("leaky_relu_grad", choir_leaky_relu_grad_attrs_t, fields,
                     "the slope below 0");

static const choir_op_case_t cases[] = {{";", NULL},
                                        {"7;7", "alpha=0.3"},
                                        {"257;257", "alpha=-1"},
                                        {"3,5;3,5", NULL},
                                        {"2,0,3;2,0,3", "alpha=0.3"},
                                        {"2,3,4;2,3,4", "alpha=-1"},
                                        {"4,3,7,5;4,3,7,5", NULL},
                                        {"5,4,3,2,3;5,4,3,2,3", "alpha=0.3"},
                                        {NULL, NULL}};

CHOIR_GRADIENT_ATTRS_OP(LEAKY_RELU_GRAD, leaky_relu_grad,
                        "dx = dy above 0, else alpha dy", cases,
                        .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
