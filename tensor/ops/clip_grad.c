// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_clip_grad_attrs_t, low, -INFINITY, -INFINITY,
                      INFINITY, "the least result"),
    CHOIR_FIELD_FLOAT(choir_clip_grad_attrs_t, high, INFINITY, -INFINITY,
                      INFINITY,
                      "the largest one; it wins when it is below low"),
};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("clip_grad", choir_clip_grad_attrs_t, fields, "a range");

static const choir_op_case_t cases[] = {{";", NULL},
                                        {"7;7", "low=-0.7 high=0.9"},
                                        {"257;257", "low=0.5"},
                                        {"3,5;3,5", "high=0.3"},
                                        {"2,0,3;2,0,3", NULL},
                                        {"2,3,4;2,3,4", "low=-0.7 high=0.9"},
                                        {"4,3,7,5;4,3,7,5", "low=0.5"},
                                        {"5,4,3,2,3;5,4,3,2,3", "high=0.3"},
                                        {NULL, NULL}};

CHOIR_GRADIENT_ATTRS_OP(CLIP_GRAD, clip_grad,
                        "dx = dy where low <= x <= high, else 0", cases,
                        .tolerance = 2e-7);
