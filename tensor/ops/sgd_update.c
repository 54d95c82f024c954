// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/optimizer_factors.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_sgd_update_attrs_t, lr, 0.1, -INFINITY, INFINITY,
                      "step size"),
    CHOIR_FIELD_FLOAT(choir_sgd_update_attrs_t, momentum, 0, 0, 1,
                      "share of the last step that is kept"),
    CHOIR_FIELD_FLOAT(choir_sgd_update_attrs_t, dampening, 0, 0, 1,
                      "share of the gradient that the momentum does not see"),
    CHOIR_FIELD_FLOAT(choir_sgd_update_attrs_t, weight_decay, 0, 0, INFINITY,
                      "share of p added to the gradient"),
    CHOIR_FIELD_BOOL(choir_sgd_update_attrs_t, nesterov, false,
                     "look ahead by one step of momentum"),
    CHOIR_FIELD_FLOAT(choir_sgd_update_attrs_t, scale, 1, -INFINITY, INFINITY,
                      "multiplies the gradient first"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "sgd_update", choir_sgd_update_attrs_t, fields, "one step");

static choir_status_t sgd_update_infer(const choir_view_t* srcs,
                                       int32_t src_count, const void* attrs,
                                       choir_view_t* dsts) {
  (void)src_count;
  const choir_sgd_update_attrs_t* sgd = attrs;
  CHOIR_TRY(choir__need_same_shape("sgd_update", "g", &srcs[1], "p", &srcs[0]));
  // Without momentum there is nothing to remember.
  if (sgd->momentum != 0 || choir_view_count(&srcs[2]) > 0) {
    CHOIR_TRY(
        choir__need_same_shape("sgd_update", "v", &srcs[2], "p", &srcs[0]));
  }
  CHOIR_TRY(choir__infer_like("sgd_update", &srcs[0], &dsts[0]));
  return choir__infer_like("sgd_update", &srcs[2], &dsts[1]);
}

static choir_status_t sgd_update_reference(const choir_record_t* record,
                                           choir_stream_t* stream) {
  (void)stream;
  void* p = choir__dst_data(record, 0);
  const void* g = choir__src_data(record, 1);
  void* v = choir__dst_data(record, 1);
  choir__sgd_f32_t factors_f32 = choir__sgd_make_f32(record->attrs);
  choir__sgd_f64_t factors_f64 = choir__sgd_make_f64(record->attrs);
  const choir_view_t* p_view = choir_record_dst(record, 0);
  const choir_view_t* v_view = choir_record_dst(record, 1);
  // An empty v is never touched; the walk goes over p in its place.
  if (choir_view_count(v_view) == 0) v_view = p_view;
  choir__walk_t walk;
  const choir_view_t* views[] = {p_view, choir_record_src(record, 1), v_view};
  for (bool more = choir__walk_start(&walk, views, 3); more;
       more = choir__walk_next(&walk)) {
    const int64_t* at = walk.offsets;
    if (p_view->dtype == CHOIR_DTYPE_F64)
      choir__sgd_step_f64(&factors_f64, (double*)p + at[0],
                          ((const double*)g)[at[1]], (double*)v + at[2]);
    else
      choir__sgd_step_f32(&factors_f32, (float*)p + at[0],
                          ((const float*)g)[at[1]], (float*)v + at[2]);
  }
  return NULL;
}

static void sgd_update_at_step(void* attrs, const choir_step_values_t* values) {
  ((choir_sgd_update_attrs_t*)attrs)->lr = values->lr;
}

static const choir_op_case_t cases[] = {
    {";;", NULL},
    {"1;1;1", "lr=0.01 momentum=0.9"},
    {"7;7;7", "lr=0.05 momentum=0.9 weight_decay=0.0001"},
    {"15;15;15", "lr=0.1 momentum=0.5 nesterov=1 scale=0.25"},
    {"16;16;16", "lr=0.3 momentum=0.9 dampening=0.1 weight_decay=0.01 scale=3"},
    {"17;17;17", NULL},
    {"33;33;33", "lr=0.01 momentum=0.9"},
    {"64;64;64", "lr=0.05 momentum=0.9 weight_decay=0.0001"},
    {"257;257;257", "lr=0.1 momentum=0.5 nesterov=1 scale=0.25"},
    {"1025;1025;1025",
     "lr=0.3 momentum=0.9 dampening=0.1 weight_decay=0.01 scale=3"},
    {"3,5;3,5;3,5", NULL},
    {"1,9;1,9;1,9", "lr=0.01 momentum=0.9"},
    {"9,1;9,1;9,1", "lr=0.05 momentum=0.9 weight_decay=0.0001"},
    {"33,17;33,17;33,17", "lr=0.1 momentum=0.5 nesterov=1 scale=0.25"},
    {"20,1,5,5;20,1,5,5;20,1,5,5",
     "lr=0.3 momentum=0.9 dampening=0.1 weight_decay=0.01 scale=3"},
    {"6,3,5,5;6,3,5,5;6,3,5,5", NULL},
    {"16,6,3,3;16,6,3,3;16,6,3,3", "lr=0.01 momentum=0.9"},
    {"500,10;500,10;500,10", "lr=0.05 momentum=0.9 weight_decay=0.0001"},
    {"120,84;120,84;120,84", "lr=0.1 momentum=0.5 nesterov=1 scale=0.25"},
    {"0;0;0", "lr=0.3 momentum=0.9 dampening=0.1 weight_decay=0.01 scale=3"},
    {"7;7;0", "lr=0.01"},
    {"1025;1025;0", "lr=0.01 weight_decay=0.1"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_sgd_update = {
    .op = CHOIR_OP_SGD_UPDATE,
    .name = "sgd_update",
    .doc = "p, g, v -> p, v: one step of SGD with momentum, in place",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 2,
    .attrs = &attrs_def,
    .infer = sgd_update_infer,
    .reference = sgd_update_reference,
    .at_step = sgd_update_at_step,
    .inplace = {1, 3},
    .no_accumulate = true,
    .dtypes = CHOIR_DTYPE_MASK(F32) | CHOIR_DTYPE_MASK(F64),
    .tolerance = 0,
    .cases = cases,
};
