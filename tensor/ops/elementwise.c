// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

choir_status_t choir__unary_infer(const char* op, const choir_view_t* srcs,
                                  choir_view_t* dsts) {
  return choir__infer_like(op, &srcs[0], &dsts[0]);
}

choir_status_t choir__binary_infer(const char* op, const choir_view_t* srcs,
                                   choir_view_t* dsts) {
  int32_t ndim;
  int64_t shape[CHOIR_MAX_NDIM];
  CHOIR_TRY_NOTE(choir_view_broadcast_shape(&srcs[0], &srcs[1], &ndim, shape),
                 "%s", op);
  CHOIR_TRY(choir__infer_shape(op, srcs[0].dtype, ndim, shape, &dsts[0]));
  for (int32_t i = 0; i < 2; ++i) {
    if (!choir_view_same_shape(&srcs[i], &dsts[0])) continue;
    choir_view_set_layout_like(&dsts[0], &srcs[i]);
    break;
  }
  return NULL;
}

choir_status_t choir__ternary_infer(const char* op, const choir_view_t* srcs,
                                    choir_view_t* dsts) {
  choir_view_t pair;
  CHOIR_TRY(choir__binary_infer(op, srcs, &pair));
  choir_view_t views[] = {pair, srcs[2]};
  return choir__binary_infer(op, views, dsts);
}

choir_status_t choir__gradient_infer(const char* op, const choir_view_t* srcs,
                                     choir_view_t* dsts) {
  CHOIR_TRY(
      choir__need_same_shape(op, "source 1", &srcs[1], "source 0", &srcs[0]));
  return choir__infer_like(op, &srcs[0], &dsts[0]);
}

choir_status_t choir__unary_reference(const choir_record_t* record,
                                      double (*real)(double x),
                                      int64_t (*integer)(int64_t x)) {
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  bool is_real = choir_dtype_is_float(src->dtype);
  choir__walk_t walk;
  const choir_view_t* views[] = {src, dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk)) {
    if (is_real) {
      double x = choir__real_load(src_data, src->dtype, walk.offsets[0]);
      choir__real_store(dst_data, dst->dtype, walk.offsets[1], real(x),
                        record->accumulate);
    } else {
      int64_t x = choir__integer_load(src_data, src->dtype, walk.offsets[0]);
      choir__integer_store(dst_data, dst->dtype, walk.offsets[1], integer(x),
                           record->accumulate);
    }
  }
  return NULL;
}

choir_status_t choir__binary_reference(const choir_record_t* record,
                                       double (*real)(double a, double b),
                                       int64_t (*integer)(int64_t a,
                                                          int64_t b)) {
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* other = choir_record_src(record, 1);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  const void* other_data = choir__src_data(record, 1);
  void* dst_data = choir__dst_data(record, 0);
  bool is_real = choir_dtype_is_float(src->dtype);
  choir__walk_t walk;
  const choir_view_t* views[] = {src, other, dst};
  for (bool more = choir__walk_start(&walk, views, 3); more;
       more = choir__walk_next(&walk)) {
    if (is_real) {
      double a = choir__real_load(src_data, src->dtype, walk.offsets[0]);
      double b = choir__real_load(other_data, other->dtype, walk.offsets[1]);
      choir__real_store(dst_data, dst->dtype, walk.offsets[2], real(a, b),
                        record->accumulate);
    } else {
      int64_t a = choir__integer_load(src_data, src->dtype, walk.offsets[0]);
      int64_t b =
          choir__integer_load(other_data, other->dtype, walk.offsets[1]);
      choir__integer_store(dst_data, dst->dtype, walk.offsets[2], integer(a, b),
                           record->accumulate);
    }
  }
  return NULL;
}

choir_status_t choir__unary_attrs_reference(const choir_record_t* record,
                                            double (*real)(double x,
                                                           const void* attrs)) {
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  choir__walk_t walk;
  const choir_view_t* views[] = {src, dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk)) {
    double x = choir__real_load(src_data, src->dtype, walk.offsets[0]);
    choir__real_store(dst_data, dst->dtype, walk.offsets[1],
                      real(x, record->attrs), record->accumulate);
  }
  return NULL;
}

choir_status_t choir__gradient_attrs_reference(
    const choir_record_t* record,
    double (*real)(double x, double dy, const void* attrs)) {
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* other = choir_record_src(record, 1);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  const void* other_data = choir__src_data(record, 1);
  void* dst_data = choir__dst_data(record, 0);
  choir__walk_t walk;
  const choir_view_t* views[] = {src, other, dst};
  for (bool more = choir__walk_start(&walk, views, 3); more;
       more = choir__walk_next(&walk)) {
    double x = choir__real_load(src_data, src->dtype, walk.offsets[0]);
    double dy = choir__real_load(other_data, other->dtype, walk.offsets[1]);
    choir__real_store(dst_data, dst->dtype, walk.offsets[2],
                      real(x, dy, record->attrs), record->accumulate);
  }
  return NULL;
}

choir_status_t choir__ternary_reference(const choir_record_t* record,
                                        double (*real)(double a, double b,
                                                       double c)) {
  const choir_view_t* dst = choir_record_dst(record, 0);
  const choir_view_t* views[] = {choir_record_src(record, 0),
                                 choir_record_src(record, 1),
                                 choir_record_src(record, 2), dst};
  void* dst_data = choir__dst_data(record, 0);
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, views, 4); more;
       more = choir__walk_next(&walk)) {
    double x[3];
    for (int32_t i = 0; i < 3; ++i)
      x[i] = choir__real_load(choir__src_data(record, i), views[i]->dtype,
                              walk.offsets[i]);
    choir__real_store(dst_data, dst->dtype, walk.offsets[3],
                      real(x[0], x[1], x[2]), record->accumulate);
  }
  return NULL;
}

const choir_op_case_t choir__unary_cases[] = {
    {"", NULL},           {"1", NULL},         {"7", NULL},
    {"64", NULL},         {"257", NULL},       {"1025", NULL},
    {"0", NULL},          {"3,5", NULL},       {"1,9", NULL},
    {"9,1", NULL},        {"33,17", NULL},     {"2,0,3", NULL},
    {"2,3,4", NULL},      {"5,1,7", NULL},     {"1,1,1,1", NULL},
    {"4,3,7,5", NULL},    {"2,16,5,5", NULL},  {"3,8,1,9", NULL},
    {"2,20,12,12", NULL}, {"5,4,3,2,3", NULL}, {"2,1,3,1,2,1,2,2", NULL},
    {NULL, NULL}};

const choir_op_case_t choir__binary_cases[] = {
    {";", NULL},
    {"1;1", NULL},
    {"7;7", NULL},
    {"257;257", NULL},
    {"1025;1025", NULL},
    {"0;0", NULL},
    {"7;", NULL},
    {";7", NULL},
    {"3,5;3,5", NULL},
    {"3,5;5", NULL},
    {"5;3,5", NULL},
    {"3,1;1,5", NULL},
    {"33,17;33,1", NULL},
    {"1,17;33,17", NULL},
    {"2,0,3;3", NULL},
    {"2,3,4;3,1", NULL},
    {"4,3,7,5;4,3,7,5", NULL},
    {"4,3,7,5;3,1,1", NULL},
    {"3,1,1;2,3,9,8", NULL},
    {"2,20,12,12;2,20,12,12", NULL},
    {"4,1,7,1;1,3,1,5", NULL},
    {"2,1,3,1,2,1,2,2;3,1,2,1,2,2", NULL},
    {NULL, NULL}};

const choir_op_case_t choir__gradient_cases[] = {
    {";", NULL},
    {"1;1", NULL},
    {"7;7", NULL},
    {"64;64", NULL},
    {"257;257", NULL},
    {"1025;1025", NULL},
    {"0;0", NULL},
    {"3,5;3,5", NULL},
    {"1,9;1,9", NULL},
    {"9,1;9,1", NULL},
    {"33,17;33,17", NULL},
    {"2,0,3;2,0,3", NULL},
    {"2,3,4;2,3,4", NULL},
    {"5,1,7;5,1,7", NULL},
    {"1,1,1,1;1,1,1,1", NULL},
    {"4,3,7,5;4,3,7,5", NULL},
    {"2,16,5,5;2,16,5,5", NULL},
    {"3,8,1,9;3,8,1,9", NULL},
    {"2,20,12,12;2,20,12,12", NULL},
    {"5,4,3,2,3;5,4,3,2,3", NULL},
    {"2,1,3,1,2,1,2,2;2,1,3,1,2,1,2,2", NULL},
    {NULL, NULL}};

const choir_op_case_t choir__plain_unary_cases[] = {
    {"", NULL},        {"7", NULL},         {"257", NULL},
    {"3,5", NULL},     {"2,0,3", NULL},     {"2,3,4", NULL},
    {"4,3,7,5", NULL}, {"5,4,3,2,3", NULL}, {"2,1,3,1,2,1,2,2", NULL},
    {NULL, NULL}};

const choir_op_case_t choir__plain_binary_cases[] = {
    {";", NULL},
    {"7;7", NULL},
    {"257;257", NULL},
    {";7", NULL},
    {"3,5;5", NULL},
    {"3,1;1,5", NULL},
    {"2,0,3;3", NULL},
    {"4,3,7,5;3,1,1", NULL},
    {"2,1,3,1,2,1,2,2;3,1,2,1,2,2", NULL},
    {NULL, NULL}};

const choir_op_case_t choir__plain_ternary_cases[] = {
    {";;", NULL},
    {"1;1;1", NULL},
    {"7;7;7", NULL},
    {"7;;", NULL},
    {";7;", NULL},
    {";;7", NULL},
    {"257;257;257", NULL},
    {"1025;1025;1025", NULL},
    {"1025;1025;", NULL},
    {"1025;;1025", NULL},
    {"3,5;5;3,5", NULL},
    {"3,1;1,5;", NULL},
    {"33,17;33,1;17", NULL},
    {";2,3;4,1,1", NULL},
    {"2,0,3;3;1", NULL},
    {"5,1,7;5,2,7;2,1", NULL},
    {"2,3,4,2;3,1,1;2,3,4,2", NULL},
    {"4,3,7,5;4,3,7,5;4,3,7,5", NULL},
    {"1,1,7,5;4,3,7,5;", NULL},
    {"5,4,3,2,3;3;5,4,3,2,3", NULL},
    {"2,1,3,1,2,1,2,2;3,1,2,1,2,2;2", NULL},
    {NULL, NULL}};
