// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/optimizer_reference.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_rmsprop_update_attrs_t, lr, 0.1, -INFINITY,
                      INFINITY, "step size"),
    CHOIR_FIELD_FLOAT(choir_rmsprop_update_attrs_t, rho, 0.9, 0, 1,
                      "decay of the mean square; below 1"),
    CHOIR_FIELD_FLOAT(choir_rmsprop_update_attrs_t, epsilon, 1e-8, 0, INFINITY,
                      "added to the mean square"),
    CHOIR_FIELD_FLOAT(choir_rmsprop_update_attrs_t, weight_decay, 0, 0,
                      INFINITY, "share of p added to the gradient"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "rmsprop_update", choir_rmsprop_update_attrs_t, fields, "one step");

static choir_status_t rmsprop_update_infer(const choir_view_t* srcs,
                                           int32_t src_count, const void* attrs,
                                           choir_view_t* dsts) {
  static const char* const names[] = {"p", "g", "s"};
  const choir_rmsprop_update_attrs_t* step = attrs;
  if (!(step->rho < 1))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "rmsprop_update: rho is %g; needs a number below 1",
                       step->rho);
  return choir__infer_update("rmsprop_update", names, srcs, src_count, dsts);
}

CHOIR__UPDATE_REFERENCE(rmsprop, 1)

static void rmsprop_update_at_step(void* attrs,
                                   const choir_step_values_t* values) {
  ((choir_rmsprop_update_attrs_t*)attrs)->lr = values->lr;
}

static const choir_op_case_t cases[] = {
    {";;", "lr=0.01"},
    {"1;1;1", NULL},
    {"7;7;7", "rho=0.5 weight_decay=0.0001"},
    {"15;15;15", "lr=-0.5 rho=0.99 epsilon=0.001"},
    {"16;16;16", "rho=0 epsilon=0"},
    {"17;17;17", "lr=0.01"},
    {"33;33;33", NULL},
    {"64;64;64", "rho=0.5 weight_decay=0.0001"},
    {"257;257;257", "lr=-0.5 rho=0.99 epsilon=0.001"},
    {"1025;1025;1025", "rho=0 epsilon=0"},
    {"3,5;3,5;3,5", "lr=0.01"},
    {"1,9;1,9;1,9", NULL},
    {"9,1;9,1;9,1", "rho=0.5 weight_decay=0.0001"},
    {"33,17;33,17;33,17", "lr=-0.5 rho=0.99 epsilon=0.001"},
    {"20,1,5,5;20,1,5,5;20,1,5,5", "rho=0 epsilon=0"},
    {"6,3,5,5;6,3,5,5;6,3,5,5", "lr=0.01"},
    {"16,6,3,3;16,6,3,3;16,6,3,3", NULL},
    {"500,10;500,10;500,10", "rho=0.5 weight_decay=0.0001"},
    {"120,84;120,84;120,84", "lr=-0.5 rho=0.99 epsilon=0.001"},
    {"0;0;0", "rho=0 epsilon=0"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_rmsprop_update = {
    .op = CHOIR_OP_RMSPROP_UPDATE,
    .name = "rmsprop_update",
    .doc = "p, g, s -> p, s: one step of RMSProp, in place",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 2,
    .attrs = &attrs_def,
    .infer = rmsprop_update_infer,
    .reference = rmsprop_update_reference,
    .at_step = rmsprop_update_at_step,
    .inplace = {1, 3},
    .no_accumulate = true,
    .dtypes = CHOIR_DTYPE_MASK(F32) | CHOIR_DTYPE_MASK(F64),
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_POSITIVE},
    .tolerance = 0,
    .cases = cases,
};
