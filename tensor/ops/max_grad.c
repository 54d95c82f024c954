// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/reduce.h"

static const choir_field_t fields[] = {CHOIR__REDUCE_FIELDS};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "max_grad", choir_reduce_attrs_t, fields, "what was reduced");

static choir_status_t max_grad_infer(const choir_view_t* srcs,
                                     int32_t src_count, const void* attrs,
                                     choir_view_t* dsts) {
  (void)src_count;
  choir_view_t y;
  CHOIR_TRY(choir__reduce_infer("max_grad", &srcs[0], attrs, srcs[0].dtype,
                                true, &y));
  CHOIR_TRY(choir__need_same_shape("max_grad", "y", &srcs[1], "max(x)", &y));
  CHOIR_TRY(choir__need_same_shape("max_grad", "dy", &srcs[2], "max(x)", &y));
  return choir__infer_like("max_grad", &srcs[0], &dsts[0]);
}

// All of dy goes to the first of the largest, as argmax names it; 0 elsewhere.
static choir_status_t max_grad_reference(const choir_record_t* record,
                                         choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* dy = choir_record_src(record, 2);
  const choir_view_t* dx = choir_record_dst(record, 0);
  const void* x_data = choir__src_data(record, 0);
  const void* dy_data = choir__src_data(record, 2);
  void* dx_data = choir__dst_data(record, 0);
  int64_t axis = ((const choir_reduce_attrs_t*)record->attrs)->axis;
  choir__lanes_t x_lanes, dx_lanes;
  choir__walk_t grads;
  choir__walk_start(&grads, &dy, 1);
  choir__lanes_start(&dx_lanes, dx, axis);
  for (bool more = choir__lanes_start(&x_lanes, x, axis); more;
       more = choir__lanes_next(&x_lanes), choir__lanes_next(&dx_lanes),
            choir__walk_next(&grads)) {
    int64_t argmax_index, offset;
    choir__lane_maximum(&x_lanes.lane, x_data, &argmax_index, &offset);
    double grad = choir__real_load(dy_data, dy->dtype, grads.offsets[0]);
    const choir_view_t* lane = &dx_lanes.lane;
    int64_t place = 0;
    choir__walk_t walk;
    for (bool inside = choir__walk_start(&walk, &lane, 1); inside;
         inside = choir__walk_next(&walk), ++place)
      choir__real_store(dx_data, dx->dtype, walk.offsets[0],
                        place == argmax_index ? grad : 0, record->accumulate);
  }
  return NULL;
}

static const choir_op_case_t cases[] = {
    {";;", NULL},
    {"7;;", NULL},
    {"7;1;1", "axis=0 keep_dims=1"},
    {"3,5;5;5", "axis=0"},
    {"3,5;3;3", "axis=1"},
    {"3,5;1,1;1,1", "keep_dims=1"},
    {"33,17;33,1;33,1", "axis=1 keep_dims=1"},
    {"4,3,7,5;4,1,7,5;4,1,7,5", "axis=1 keep_dims=1"},
    {"4,3,7,5;4,3,7;4,3,7", "axis=3"},
    {"0,3;0;0", "axis=1"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_max_grad = {
    .op = CHOIR_OP_MAX_GRAD,
    .name = "max_grad",
    .doc = "x, y, dy -> dx: dy at the first largest of x, 0 elsewhere",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = max_grad_infer,
    .reference = max_grad_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .domains = {CHOIR_DOMAIN_NO_KINK, CHOIR_DOMAIN_MAXIMUM},
    .tolerance = 2e-7,
    .cases = cases,
};
