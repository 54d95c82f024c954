// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "core/config.h"
#include "tensor/kernels/element_params.h"
#include "tensor/ops/elements.h"

// All that tensor/elementwise.def says of ops, but for their fast kernels and
// gradients.

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  if (choir__op_def(choir__record_op(record))->same_shape)  // of two sources
    CHOIR_TRY(
        choir__need_same_shape("source 1", &srcs[1], "source 0", &srcs[0]));
  return choir__broadcast_infer(srcs, record->src_count, &dsts[0]);
}

// ---- References: the formulas in double, or in integers ----

typedef double (*real_fn_t)(double x, double b, double c,
                            const choir__element_params_t* p);
typedef int64_t (*integer_fn_t)(int64_t x, int64_t b);

static choir_status_t reference(const choir_record_t* record, real_fn_t real,
                                integer_fn_t integer) {
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
        x[i] = choir__real_load(src, views[i + 1]->dtype, walk.offsets[i + 1]);
      else
        n[i] = choir__integer_load(src, dtype, walk.offsets[i + 1]);
    }
    if (choir_dtype_is_float(dtype))
      choir__real_store(data, dtype, walk.offsets[0],
                        real(x[0], x[1], x[2], &params), record->accumulate);
    else
      choir__integer_store(data, dtype, walk.offsets[0], integer(n[0], n[1]),
                           record->accumulate);
  }
  return NULL;
}

// In double, and in the type of integers that `dtypes` says.
#define REAL(name, formula)                                     \
  static double name##_real(double x, double b, double c,       \
                            const choir__element_params_t* p) { \
    const double a = x;                                         \
    (void)a, (void)b, (void)c, (void)p;                         \
    return formula;                                             \
  }
#define INTEGER_FLOATS(name, formula)
#define INTEGER(name, type, formula)                             \
  static int64_t name##_integer(int64_t first, int64_t second) { \
    const type x = (type)first, a = x, b = (type)second;         \
    (void)a, (void)b;                                            \
    return (int64_t)(formula);                                   \
  }
#define INTEGER_SIGNED(name, formula) INTEGER(name, int64_t, formula)
#define INTEGER_WRAPPING(name, formula) INTEGER(name, uint64_t, formula)
#define INTEGER_TRUTH(name, formula) INTEGER(name, int64_t, formula)
#define INTEGER_OF_FLOATS(name) NULL
#define INTEGER_OF_SIGNED(name) name##_integer
#define INTEGER_OF_WRAPPING(name) name##_integer
#define INTEGER_OF_TRUTH(name) name##_integer

// ---- Cases ----

// Three settings.
#define CASES(S, A, B, C) \
  CHOIR__CASES(S, A, B, C, A, B, C, A), { NULL, NULL }

const choir_op_case_t choir__cases_1[] = {CASES(CHOIR__ONCE, NULL, NULL, NULL)};

static const choir_op_case_t same_shape_cases[] = {
    CASES(CHOIR__TWICE, NULL, NULL, NULL)};

static const choir_op_case_t choir__cases_2[] = {
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

const choir_op_case_t choir__cases_3[] = {
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

// ---- Definitions ----

enum {
  FLOATS = CHOIR_DTYPES_FLOAT,
  SIGNED = CHOIR_DTYPES_ALL & ~CHOIR_DTYPE_MASK(BOOL),
  WRAPPING = SIGNED,
  TRUTH = CHOIR_DTYPES_ALL,
};

#define ON(a, b)        \
  .domains = {          \
      CHOIR_DOMAIN_##a, \
      CHOIR_DOMAIN_##b, \
  }
#define SAME_SHAPE .same_shape = true, .cases = same_shape_cases
#define SHAPES_1 CHOIR__ONCE
#define SHAPES_2 CHOIR__TWICE
#define ATTRS(sources, NAME, name, doc, A, B, C)                               \
  .attrs = &(const choir_struct_def_t)CHOIR_STRUCT_DEF(                        \
      #name, choir_##name##_attrs_t,                                           \
      ((const choir_field_t[]){                                                \
          CHOIR_CONFIG_TABLE(choir_##name##_attrs_t, CHOIR_##NAME##_FIELDS)}), \
      doc),                                                                    \
  .cases = (const choir_op_case_t[]) {                                         \
    CASES(SHAPES_##sources, A, B, C)                                           \
  }
#define DEFINE(OP, op_name, sources, formula, dtypes_, tolerance_, ...)      \
  REAL(op_name, formula)                                                     \
  INTEGER_##dtypes_(op_name, formula) static choir_status_t                  \
      op_name##_reference(const choir_record_t* record,                      \
                          choir_stream_t* stream) {                          \
    (void)stream;                                                            \
    return reference(record, op_name##_real, INTEGER_OF_##dtypes_(op_name)); \
  }                                                                          \
  const choir_op_def_t choir_op_def_##op_name = {                            \
      .op = CHOIR_OP_##OP,                                                   \
      .name = #op_name,                                                      \
      .src_min = sources,                                                    \
      .src_max = sources,                                                    \
      .dst_count = 1,                                                        \
      .infer = infer,                                                        \
      .reference = op_name##_reference,                                      \
      .elementwise = true,                                                   \
      .dtypes = dtypes_,                                                     \
      .tolerance = tolerance_,                                               \
      .cases = choir__cases_##sources,                                       \
      .doc = __VA_ARGS__};
#define CHOIR__FORMULA DEFINE
#define CHOIR__FUNCTION DEFINE
// ATTRS and SAME_SHAPE have cases of their own.
#pragma GCC diagnostic ignored "-Woverride-init"
#include "tensor/elementwise.def"
