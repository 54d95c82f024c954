// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_scale_attrs_t, factor, 1, -INFINITY, INFINITY,
                      "multiplies x"),
    CHOIR_FIELD_FLOAT(choir_scale_attrs_t, shift, 0, -INFINITY, INFINITY,
                      "added after"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "scale", choir_scale_attrs_t, fields, "a linear function of x");

static const choir_op_case_t cases[] = {
    {"", NULL},
    {"1", "factor=2"},
    {"7", "factor=-0.3 shift=0.7"},
    {"15", "factor=0.1"},
    {"16", "factor=0 shift=1"},
    {"17", "factor=3 shift=-1"},
    {"64", NULL},
    {"257", "factor=2"},
    {"1025", "factor=-0.3 shift=0.7"},
    {"0", "factor=0.1"},
    {"3,5", "factor=0 shift=1"},
    {"1,9", "factor=3 shift=-1"},
    {"9,1", NULL},
    {"33,17", "factor=2"},
    {"2,0,3", "factor=-0.3 shift=0.7"},
    {"5,1,7", "factor=0.1"},
    {"4,3,7,5", "factor=0 shift=1"},
    {"2,16,5,5", "factor=3 shift=-1"},
    {"2,20,12,12", NULL},
    {"5,4,3,2,3", "factor=2"},
    {"2,1,3,1,2,1,2,2", "factor=-0.3 shift=0.7"},
    {NULL, NULL}};

CHOIR_UNARY_ATTRS_OP(SCALE, scale, "factor * x + shift", cases,
                     .tolerance = 1e-6);
