// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_hard_sigmoid_attrs_t, alpha, 0.2, -INFINITY,
                      INFINITY, "slope at 0"),
    CHOIR_FIELD_FLOAT(choir_hard_sigmoid_attrs_t, gamma, 0.5, -INFINITY,
                      INFINITY, "value at 0"),
};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("hard_sigmoid", choir_hard_sigmoid_attrs_t, fields,
                     "a straight line between 0 and 1");

static const choir_op_case_t cases[] = {{"", NULL},
                                        {"7", "alpha=1.3 gamma=0.4"},
                                        {"257", "alpha=-0.7 gamma=0.6"},
                                        {"3,5", NULL},
                                        {"2,0,3", "alpha=1.3 gamma=0.4"},
                                        {"2,3,4", "alpha=-0.7 gamma=0.6"},
                                        {"4,3,7,5", NULL},
                                        {"5,4,3,2,3", "alpha=1.3 gamma=0.4"},
                                        {NULL, NULL}};

CHOIR_UNARY_ATTRS_OP(HARD_SIGMOID, hard_sigmoid,
                     "alpha x + gamma, but at least 0 and at most 1", cases,
                     .tolerance = 1e-6);
