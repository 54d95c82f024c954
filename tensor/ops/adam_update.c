// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/optimizer_reference.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_adam_update_attrs_t, lr, 0.001, -INFINITY, INFINITY,
                      "step size"),
    CHOIR_FIELD_FLOAT(choir_adam_update_attrs_t, beta1, 0.9, 0, 1,
                      "decay of the mean; below 1"),
    CHOIR_FIELD_FLOAT(choir_adam_update_attrs_t, beta2, 0.999, 0, 1,
                      "decay of the mean square; below 1"),
    CHOIR_FIELD_FLOAT(choir_adam_update_attrs_t, epsilon, 1e-8, 0, INFINITY,
                      "added to the root of the mean square"),
    CHOIR_FIELD_FLOAT(choir_adam_update_attrs_t, weight_decay, 0, 0, INFINITY,
                      "share of p added to the gradient"),
    CHOIR_FIELD_INT(choir_adam_update_attrs_t, step, 1, 1, INT64_C(1) << 62,
                    "1 for the first"),
    CHOIR_FIELD_FLOAT(choir_adam_update_attrs_t, scale, 1, -INFINITY, INFINITY,
                      "multiplies the gradient first"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "adam_update", choir_adam_update_attrs_t, fields, "one step");

double choir__adam_correction(double beta, int64_t step) {
  double power = 1;
  double square = beta;
  for (; step > 0; step >>= 1) {
    if (step & 1) power *= square;
    square *= square;
  }
  return 1 - power;
}

static choir_status_t adam_update_infer(const choir_view_t* srcs,
                                        int32_t src_count, const void* attrs,
                                        choir_view_t* dsts) {
  static const char* const names[] = {"p", "g", "m", "v"};
  const choir_adam_update_attrs_t* adam = attrs;
  if (!(adam->beta1 < 1 && adam->beta2 < 1))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "adam_update: beta1 is %g and beta2 is %g; needs both "
                       "below 1",
                       adam->beta1, adam->beta2);
  return choir__infer_update("adam_update", names, srcs, src_count, dsts);
}

CHOIR__UPDATE_REFERENCE(adam, 2)

static void adam_update_at_step(void* attrs,
                                const choir_step_values_t* values) {
  choir_adam_update_attrs_t* adam = attrs;
  adam->lr = values->lr;
  adam->step = values->step + 1;
}

static const choir_op_case_t cases[] = {
    {";;;", "lr=0.01"},
    {"1;1;1;1", NULL},
    {"7;7;7;7", "step=7 weight_decay=0.0001"},
    {"15;15;15;15", "beta1=0.8 beta2=0.95 step=1000 scale=0.25"},
    {"16;16;16;16", "epsilon=0.001 step=2"},
    {"17;17;17;17", "step=123456"},
    {"33;33;33;33", "lr=0.01"},
    {"64;64;64;64", NULL},
    {"257;257;257;257", "step=7 weight_decay=0.0001"},
    {"1025;1025;1025;1025", "beta1=0.8 beta2=0.95 step=1000 scale=0.25"},
    {"3,5;3,5;3,5;3,5", "epsilon=0.001 step=2"},
    {"1,9;1,9;1,9;1,9", "step=123456"},
    {"9,1;9,1;9,1;9,1", "lr=0.01"},
    {"33,17;33,17;33,17;33,17", NULL},
    {"20,1,5,5;20,1,5,5;20,1,5,5;20,1,5,5", "step=7 weight_decay=0.0001"},
    {"6,3,5,5;6,3,5,5;6,3,5,5;6,3,5,5",
     "beta1=0.8 beta2=0.95 step=1000 scale=0.25"},
    {"16,6,3,3;16,6,3,3;16,6,3,3;16,6,3,3", "epsilon=0.001 step=2"},
    {"500,10;500,10;500,10;500,10", "step=123456"},
    {"120,84;120,84;120,84;120,84", "lr=0.01"},
    {"0;0;0;0", NULL},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_adam_update = {
    .op = CHOIR_OP_ADAM_UPDATE,
    .name = "adam_update",
    .doc = "p, g, m, v -> p, m, v: one step of Adam, in place",
    .src_min = 4,
    .src_max = 4,
    .dst_count = 3,
    .attrs = &attrs_def,
    .infer = adam_update_infer,
    .reference = adam_update_reference,
    .at_step = adam_update_at_step,
    .inplace = {1, 3, 4},
    .no_accumulate = true,
    .dtypes = CHOIR_DTYPE_MASK(F32) | CHOIR_DTYPE_MASK(F64),
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY,
                CHOIR_DOMAIN_POSITIVE},
    .tolerance = 0,
    .cases = cases,
};
