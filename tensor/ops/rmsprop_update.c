// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/optimizer_steps.h"

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

static choir_status_t rmsprop_update_reference(const choir_record_t* record,
                                               choir_stream_t* stream) {
  (void)stream;
  void* p = choir__dst_data(record, 0);
  const void* g = choir__src_data(record, 1);
  void* s = choir__dst_data(record, 1);
  choir__rmsprop_f32_t factors_f32 = choir__rmsprop_make_f32(record->attrs);
  choir__rmsprop_f64_t factors_f64 = choir__rmsprop_make_f64(record->attrs);
  bool is_f64 = choir_record_dst(record, 0)->dtype == CHOIR_DTYPE_F64;
  choir__walk_t walk;
  const choir_view_t* views[] = {choir_record_dst(record, 0),
                                 choir_record_src(record, 1),
                                 choir_record_dst(record, 1)};
  for (bool more = choir__walk_start(&walk, views, 3); more;
       more = choir__walk_next(&walk)) {
    const int64_t* at = walk.offsets;
    if (is_f64)
      choir__rmsprop_step_f64(&factors_f64, (double*)p + at[0],
                              ((const double*)g)[at[1]], (double*)s + at[2]);
    else
      choir__rmsprop_step_f32(&factors_f32, (float*)p + at[0],
                              ((const float*)g)[at[1]], (float*)s + at[2]);
  }
  return NULL;
}

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
