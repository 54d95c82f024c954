// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/optimizer_steps.h"

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

static choir_status_t adagrad_update_reference(const choir_record_t* record,
                                               choir_stream_t* stream) {
  (void)stream;
  void* p = choir__dst_data(record, 0);
  const void* g = choir__src_data(record, 1);
  void* s = choir__dst_data(record, 1);
  choir__adagrad_f32_t factors_f32 = choir__adagrad_make_f32(record->attrs);
  choir__adagrad_f64_t factors_f64 = choir__adagrad_make_f64(record->attrs);
  bool is_f64 = choir_record_dst(record, 0)->dtype == CHOIR_DTYPE_F64;
  choir__walk_t walk;
  const choir_view_t* views[] = {choir_record_dst(record, 0),
                                 choir_record_src(record, 1),
                                 choir_record_dst(record, 1)};
  for (bool more = choir__walk_start(&walk, views, 3); more;
       more = choir__walk_next(&walk)) {
    const int64_t* at = walk.offsets;
    if (is_f64)
      choir__adagrad_step_f64(&factors_f64, (double*)p + at[0],
                              ((const double*)g)[at[1]], (double*)s + at[2]);
    else
      choir__adagrad_step_f32(&factors_f32, (float*)p + at[0],
                              ((const float*)g)[at[1]], (float*)s + at[2]);
  }
  return NULL;
}

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
