// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_selu_attrs_t, alpha, 1.67326, -INFINITY, INFINITY,
                      "the level below 0, before gamma"),
    CHOIR_FIELD_FLOAT(choir_selu_attrs_t, gamma, 1.0507, -INFINITY, INFINITY,
                      "multiplies all"),
};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("selu", choir_selu_attrs_t, fields, "two factors");

static const choir_op_case_t cases[] = {{"", NULL},
                                        {"7", "alpha=0.5 gamma=2"},
                                        {"257", "gamma=0.7"},
                                        {"3,5", NULL},
                                        {"2,0,3", "alpha=0.5 gamma=2"},
                                        {"2,3,4", "gamma=0.7"},
                                        {"4,3,7,5", NULL},
                                        {"5,4,3,2,3", "alpha=0.5 gamma=2"},
                                        {NULL, NULL}};

// Klambauer et al., "Self-normalizing neural networks", 2017, equation 2, with
// the factors that keep mean 0 and variance 1.
CHOIR_UNARY_ATTRS_OP(SELU, selu, "gamma x above 0, else gamma alpha (e^x - 1)",
                     cases, .domains = {CHOIR_DOMAIN_NO_KINK},
                     .tolerance = 2e-6);
