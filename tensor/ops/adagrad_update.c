// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/optimizer_reference.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_adagrad_update_attrs_t, lr, 0.1, -INFINITY,
                      INFINITY, "step size"),
    CHOIR_FIELD_FLOAT(choir_adagrad_update_attrs_t, epsilon, 1e-8, 0, INFINITY,
                      "added to the sum of squares"),
    CHOIR_FIELD_FLOAT(choir_adagrad_update_attrs_t, weight_decay, 0, 0,
                      INFINITY, "share of p added to the gradient"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "adagrad_update", choir_adagrad_update_attrs_t, fields, "one step");

static choir_status_t adagrad_update_infer(const choir_view_t* srcs,
                                           int32_t src_count, const void* attrs,
                                           choir_view_t* dsts) {
  static const char* const names[] = {"p", "g", "s"};
  (void)attrs;
  return choir__infer_update("adagrad_update", names, srcs, src_count, dsts);
}

CHOIR__UPDATE_REFERENCE(adagrad, 1)

static void adagrad_update_at_step(void* attrs,
                                   const choir_step_values_t* values) {
  ((choir_adagrad_update_attrs_t*)attrs)->lr = values->lr;
}

static const choir_op_case_t cases[] = {
    {";;", "lr=0.01"},
    {"1;1;1", NULL},
    {"7;7;7", "weight_decay=0.0001"},
    {"15;15;15", "lr=-0.5 epsilon=0.001"},
    {"16;16;16", "epsilon=0"},
    {"17;17;17", "lr=0.01"},
    {"33;33;33", NULL},
    {"64;64;64", "weight_decay=0.0001"},
    {"257;257;257", "lr=-0.5 epsilon=0.001"},
    {"1025;1025;1025", "epsilon=0"},
    {"3,5;3,5;3,5", "lr=0.01"},
    {"1,9;1,9;1,9", NULL},
    {"9,1;9,1;9,1", "weight_decay=0.0001"},
    {"33,17;33,17;33,17", "lr=-0.5 epsilon=0.001"},
    {"20,1,5,5;20,1,5,5;20,1,5,5", "epsilon=0"},
    {"6,3,5,5;6,3,5,5;6,3,5,5", "lr=0.01"},
    {"16,6,3,3;16,6,3,3;16,6,3,3", NULL},
    {"500,10;500,10;500,10", "weight_decay=0.0001"},
    {"120,84;120,84;120,84", "lr=-0.5 epsilon=0.001"},
    {"0;0;0", "epsilon=0"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_adagrad_update = {
    .op = CHOIR_OP_ADAGRAD_UPDATE,
    .name = "adagrad_update",
    .doc = "p, g, s -> p, s: one step of AdaGrad, in place",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 2,
    .attrs = &attrs_def,
    .infer = adagrad_update_infer,
    .reference = adagrad_update_reference,
    .at_step = adagrad_update_at_step,
    .inplace = {1, 3},
    .no_accumulate = true,
    .dtypes = CHOIR_DTYPE_MASK(F32) | CHOIR_DTYPE_MASK(F64),
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_POSITIVE},
    .tolerance = 0,
    .cases = cases,
};
