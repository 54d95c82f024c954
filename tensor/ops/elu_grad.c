// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_elu_grad_attrs_t, alpha, 1, -INFINITY, INFINITY,
                      "the value far below 0, with the sign changed"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "elu_grad", choir_elu_grad_attrs_t, fields, "the level below 0");

static const choir_op_case_t cases[] = {{";", NULL},
                                        {"7;7", "alpha=0.3"},
                                        {"257;257", "alpha=2"},
                                        {"3,5;3,5", NULL},
                                        {"2,0,3;2,0,3", "alpha=0.3"},
                                        {"2,3,4;2,3,4", "alpha=2"},
                                        {"4,3,7,5;4,3,7,5", NULL},
                                        {"5,4,3,2,3;5,4,3,2,3", "alpha=0.3"},
                                        {NULL, NULL}};

CHOIR_GRADIENT_ATTRS_OP(ELU_GRAD, elu_grad,
                        "dx = dy above 0, else alpha e^x dy", cases,
                        .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-6);
