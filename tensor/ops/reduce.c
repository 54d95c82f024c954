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
  *out_place = *out_offset = 0;
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

// The result's shape: the axis gone, or 1 with keep_dims. `needs_element`:
// the op has no value for a lane of nothing.
static choir_status_t reduce_infer(const choir_view_t* src,
                                   const choir_reduce_attrs_t* attrs,
                                   choir_dtype_t dtype, bool needs_element,
                                   choir_view_t* dst) {
  int64_t axis = attrs->axis;
  char text[160];
  if (axis >= src->ndim)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "axis is %lld, x is %s; needs an axis below its "
                       "dimensions or -1",
                       (long long)axis,
                       choir_view_print(src, text, sizeof text));
  int64_t lane = axis < 0 ? choir_view_count(src) : src->shape[axis];
  if (needs_element && lane == 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x is %s; needs at least one element along the axis",
                       choir_view_print(src, text, sizeof text));
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t i = 0; i < src->ndim; ++i) {
    bool reduced = axis < 0 || i == axis;
    if (!reduced) shape[ndim++] = src->shape[i];
    if (reduced && attrs->keep_dims) shape[ndim++] = 1;
  }
  return choir__infer_shape(dtype, ndim, shape, dst);
}

// ---- sum, mean, max, argmax ----

static double sum_real(const choir_view_t* lane, const void* data) {
  double sum = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &lane, 1); more;
       more = choir__walk_next(&walk))
    sum += choir__real_load(data, lane->dtype, walk.offsets[0]);
  return sum;
}

static double sum_square_real(const choir_view_t* lane, const void* data) {
  double sum = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &lane, 1); more;
       more = choir__walk_next(&walk)) {
    const double x = choir__real_load(data, lane->dtype, walk.offsets[0]);
    sum += x * x;
  }
  return sum;
}

// Exact, wrapping around.
static int64_t sum_integer(const choir_view_t* lane, const void* data) {
  uint64_t sum = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &lane, 1); more;
       more = choir__walk_next(&walk))
    sum += (uint64_t)choir__integer_load(data, lane->dtype, walk.offsets[0]);
  return (int64_t)sum;
}

static double mean_real(const choir_view_t* lane, const void* data) {
  return sum_real(lane, data) / (double)choir_view_count(lane);
}

static double max_real(const choir_view_t* lane, const void* data) {
  int64_t place, offset;
  choir__lane_maximum(lane, data, &place, &offset);
  return choir__real_load(data, lane->dtype, offset);
}

static int64_t max_integer(const choir_view_t* lane, const void* data) {
  int64_t place, offset;
  choir__lane_maximum(lane, data, &place, &offset);
  return choir__integer_load(data, lane->dtype, offset);
}

static int64_t argmax_integer(const choir_view_t* lane, const void* data) {
  int64_t place, offset;
  choir__lane_maximum(lane, data, &place, &offset);
  return place;
}

// Each element of the result by `real`, or by `integer` where it is one; NULL:
// the op has none.
static choir_status_t reduce(const choir_record_t* record,
                             double (*real)(const choir_view_t* lane,
                                            const void* data),
                             int64_t (*integer)(const choir_view_t* lane,
                                                const void* data)) {
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  choir__lanes_t lanes;
  choir__walk_t results;
  choir__walk_start(&results, &dst, 1);
  for (bool more = choir__lanes_start(
           &lanes, choir_record_src(record, 0),
           ((const choir_reduce_attrs_t*)record->attrs)->axis);
       more; more = choir__lanes_next(&lanes), choir__walk_next(&results)) {
    if (!integer || (real && choir_dtype_is_float(dst->dtype)))
      choir__real_store(dst_data, dst->dtype, results.offsets[0],
                        real(&lanes.lane, src_data), record->accumulate);
    else
      choir__integer_store(dst_data, dst->dtype, results.offsets[0],
                           integer(&lanes.lane, src_data), record->accumulate);
  }
  return NULL;
}

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_reduce_attrs_t, axis, -1, -1, CHOIR_MAX_NDIM - 1,
                    "dimension that is reduced; -1: all"),
    CHOIR_FIELD_BOOL(choir_reduce_attrs_t, keep_dims, false,
                     "leave it as a size of 1")};

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

static const choir_op_case_t sum_cases[] = {
    CASES_WITH_ELEMENTS, {"0", NULL}, {"3,0", "axis=1"}, {NULL, NULL}};

// Of no element there is no largest one.
static const choir_op_case_t max_cases[] = {CASES_WITH_ELEMENTS, {NULL, NULL}};

#define DEFINE(ENUM, id, dtype, needs_element, real, integer, ...)           \
  static choir_status_t id##_infer(const choir_record_t* record,             \
                                   choir_view_t* dsts) {                     \
    const choir_view_t* src = choir_record_src(record, 0);                   \
    return reduce_infer(src, record->attrs, dtype, needs_element, &dsts[0]); \
  }                                                                          \
  static choir_status_t id##_reference(const choir_record_t* record,         \
                                       choir_stream_t* stream) {             \
    (void)stream;                                                            \
    return reduce(record, real, integer);                                    \
  }                                                                          \
  CHOIR_OP_DEFINE(ENUM, id, 1, 1, __VA_ARGS__,                               \
                  CHOIR_OP_ATTRS(id, fields, "what is reduced"))

DEFINE(SUM, sum, src->dtype, false, sum_real, sum_integer,
       "sum over one axis or all", .is_wide = true, .tolerance = 1e-5,
       .cases = sum_cases,
       .dtypes = CHOIR_DTYPES_FLOAT | CHOIR_DTYPE_MASK(I32) |
                 CHOIR_DTYPE_MASK(I64));
DEFINE(MEAN, mean, src->dtype, false, mean_real, NULL,
       "mean over one axis or all; NaN of nothing", .is_wide = true,
       .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 1e-5, .cases = sum_cases);
DEFINE(SUM_SQUARE, sum_square, src->dtype, false, sum_square_real, NULL,
       "sum of squares over one axis or all", .is_wide = true,
       .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 1e-5, .cases = sum_cases);
DEFINE(MAX, max, src->dtype, true, max_real, max_integer,
       "largest element over one axis or all",
       .dtypes = CHOIR_DTYPES_ALL & ~CHOIR_DTYPE_MASK(BOOL),
       .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7,
       .cases = max_cases);
DEFINE(ARGMAX, argmax, CHOIR_DTYPE_I64, true, NULL, argmax_integer,
       "place of the first largest element, as i64", .no_accumulate = true,
       .dtypes = CHOIR_DTYPES_ALL & ~CHOIR_DTYPE_MASK(BOOL),
       .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 0, .cases = max_cases);

// ---- max_grad ----

static choir_status_t max_grad_infer(const choir_record_t* record,
                                     choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  choir_view_t y;
  CHOIR_TRY(reduce_infer(&srcs[0], record->attrs, srcs[0].dtype, true, &y));
  CHOIR_TRY(choir__need_same_shape("y", &srcs[1], "max(x)", &y));
  CHOIR_TRY(choir__need_same_shape("dy", &srcs[2], "max(x)", &y));
  return choir__infer_like(&srcs[0], &dsts[0]);
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

static const choir_op_case_t max_grad_cases[] = {
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

CHOIR_OP_GRADIENT(max, MAX_GRAD, 0, ~0, CHOIR_DY);
CHOIR_OP_DEFINE(MAX_GRAD, max_grad, 3, 1,
                "x, y, dy -> dx: dy at the first largest of x, 0 elsewhere",
                CHOIR_OP_ATTRS(max_grad, fields, "what was reduced"),
                .dtypes = CHOIR_DTYPES_FLOAT,
                .domains = {CHOIR_DOMAIN_NO_KINK, CHOIR_DOMAIN_MAXIMUM},
                .tolerance = 2e-7, .cases = max_grad_cases);
