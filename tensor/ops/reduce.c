// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/reduce.h"

static void set_lane(choir__lanes_t* lanes) {
  lanes->lane.offset = lanes->walk.offsets[0];
}

bool choir__lanes_start(choir__lanes_t* lanes, const choir_view_t* src,
                        int64_t axis) {
  lanes->lane = *src;
  lanes->starts = *src;
  if (axis < 0) {
    lanes->starts.ndim = 0;
  } else {
    lanes->lane.ndim = 1;
    lanes->lane.shape[0] = src->shape[axis];
    lanes->lane.strides[0] = src->strides[axis];
    lanes->starts.shape[axis] = 1;
  }
  const choir_view_t* views[] = {&lanes->starts};
  bool more = choir__walk_start(&lanes->walk, views, 1);
  set_lane(lanes);
  return more;
}

bool choir__lanes_next(choir__lanes_t* lanes) {
  bool more = choir__walk_next(&lanes->walk);
  set_lane(lanes);
  return more;
}

void choir__lane_maximum(const choir_view_t* lane, const void* data,
                         int64_t* out_place, int64_t* out_offset) {
  bool is_real = choir_dtype_is_float(lane->dtype);
  double best_real = 0;
  int64_t best_integer = 0;
  int64_t place = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &lane, 1); more;
       more = choir__walk_next(&walk), ++place) {
    bool is_larger = place == 0;
    if (is_real) {
      double x = choir__real_load(data, lane->dtype, walk.offsets[0]);
      if (x > best_real || (x != x && best_real == best_real)) is_larger = true;
      if (is_larger) best_real = x;
    } else {
      int64_t x = choir__integer_load(data, lane->dtype, walk.offsets[0]);
      if (x > best_integer) is_larger = true;
      if (is_larger) best_integer = x;
    }
    if (is_larger) {
      *out_place = place;
      *out_offset = walk.offsets[0];
    }
  }
}

choir_status_t choir__reduce_infer(const char* op, const choir_view_t* src,
                                   const choir_reduce_attrs_t* attrs,
                                   choir_dtype_t dtype, bool needs_element,
                                   choir_view_t* dst) {
  int64_t axis = attrs->axis;
  char text[160];
  if (axis >= src->ndim)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: axis is %lld, x is %s; needs an axis below its "
                       "dimensions or -1",
                       op, (long long)axis,
                       choir_view_print(src, text, sizeof text));
  int64_t lane = axis < 0 ? choir_view_count(src) : src->shape[axis];
  if (needs_element && lane == 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: x is %s; needs at least one element along the axis",
                       op, choir_view_print(src, text, sizeof text));
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t i = 0; i < src->ndim; ++i) {
    bool reduced = axis < 0 || i == axis;
    if (!reduced) shape[ndim++] = src->shape[i];
    if (reduced && attrs->keep_dims) shape[ndim++] = 1;
  }
  return choir__infer_shape(op, dtype, ndim, shape, dst);
}

// Whatever is done with the elements of a lane.
#define CASES_WITH_ELEMENTS                                                 \
  {"", NULL}, {"7", NULL}, {"7", "axis=0 keep_dims=1"}, {"3,5", "axis=0"},  \
      {"3,5", "axis=1"}, {"3,5", "keep_dims=1"},                            \
      {"33,17", "axis=1 keep_dims=1"}, {"33,17", "axis=0"}, {"1000", NULL}, \
      {"2,3,4", "axis=1"}, {"2,3,4", "axis=2"}, {"5,1,7", "axis=1"},        \
      {"4,3,7,5", "axis=1 keep_dims=1"}, {"4,3,7,5", "axis=3"},             \
      {"4,3,7,5", "axis=2"}, {"4,3,7,5", NULL}, {"2,20,12,12", "axis=0"},   \
      {"2,16,5,5", "axis=1"}, {"1,9", "axis=0"},                            \
      {"3,2,1,2,3,2", "axis=4 keep_dims=1"}, {                              \
    "0,3", "axis=1"                                                         \
  }

const choir_op_case_t choir__reduce_cases[] = {
    CASES_WITH_ELEMENTS, {"0", NULL}, {"3,0", "axis=1"}, {NULL, NULL}};

// Of no element there is no largest one.
const choir_op_case_t choir__maximum_cases[] = {CASES_WITH_ELEMENTS,
                                                {NULL, NULL}};
