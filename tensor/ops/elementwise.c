// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

#include "tensor/kernels/element_params.h"

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

// ---- References, by the formulas in double ----

typedef double (*real_fn_t)(double x, double b, double c,
                            const choir__element_params_t* p);

#define CHOIR__FUNCTION(OP, name, sources, formula)             \
  static double name##_real(double x, double b, double c,       \
                            const choir__element_params_t* p) { \
    const double a = x;                                         \
    (void)a, (void)b, (void)c, (void)p;                         \
    return formula;                                             \
  }
#define CHOIR__FORMULA(OP, name, sources, formula) \
  CHOIR__FUNCTION(OP, name, sources, formula)
#include "tensor/kernels/element_formulas.def"
#undef CHOIR__FORMULA
#undef CHOIR__FUNCTION

static const real_fn_t reals[CHOIR_OP_COUNT] = {
#define CHOIR__FUNCTION(OP, name, sources, formula) \
  [CHOIR_OP_##OP] = name##_real,
#define CHOIR__FORMULA(OP, name, sources, formula) \
  CHOIR__FUNCTION(OP, name, sources, formula)
#include "tensor/kernels/element_formulas.def"
#undef CHOIR__FORMULA
#undef CHOIR__FUNCTION
};

choir_status_t choir__elementwise_reference(const choir_record_t* record,
                                            choir_op_t op,
                                            choir__integer_fn_t integer) {
  const int32_t count = record->src_count;
  const choir_view_t* dst = choir_record_dst(record, 0);
  const choir_dtype_t dtype = dst->dtype;
  choir__element_params_t params = choir__element_params(record);
  // As formulas in f32 take them.
  for (int32_t i = 0; dtype != CHOIR_DTYPE_F64 && i < 2; ++i)
    params.number[i] = (float)params.number[i];
  void* data = choir__dst_data(record, 0);
  const choir_view_t* views[CHOIR__WALK_VIEWS] = {dst};
  for (int32_t i = 0; i < count; ++i)
    views[i + 1] = choir_record_src(record, i);
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, views, count + 1); more;
       more = choir__walk_next(&walk)) {
    double x[3] = {0};
    int64_t n[3] = {0};
    for (int32_t i = 0; i < count; ++i) {
      const void* src = choir__src_data(record, i);
      if (choir_dtype_is_float(dtype))
        x[i] = choir__real_load(src, dtype, walk.offsets[i + 1]);
      else
        n[i] = choir__integer_load(src, dtype, walk.offsets[i + 1]);
    }
    if (choir_dtype_is_float(dtype))
      choir__real_store(data, dtype, walk.offsets[0],
                        reals[op](x[0], x[1], x[2], &params),
                        record->accumulate);
    else
      choir__integer_store(data, dtype, walk.offsets[0], integer(n[0], n[1]),
                           record->accumulate);
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
