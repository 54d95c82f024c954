// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_ELEMENTWISE_H_
#define CHOIR_TENSOR_OPS_ELEMENTWISE_H_

#include <math.h>

#include "tensor/ops/elements.h"

// An elementwise op is a formula of tensor/kernels/element_formulas.def, from
// which reference and kernels come, and one of these macros. `integer`, where
// there is one, computes with integers, exactly and wrapping around. What comes
// after are more fields of the definition, the tolerance at least.

choir_status_t choir__unary_infer(const char* op, const choir_view_t* srcs,
                                  choir_view_t* dsts);
// NumPy's broadcasting.
choir_status_t choir__binary_infer(const char* op, const choir_view_t* srcs,
                                   choir_view_t* dsts);
// Both sources have the same shape.
choir_status_t choir__gradient_infer(const char* op, const choir_view_t* srcs,
                                     choir_view_t* dsts);
// NumPy's broadcasting; floats only.
choir_status_t choir__ternary_infer(const char* op, const choir_view_t* srcs,
                                    choir_view_t* dsts);

// The formula of `op` in double, or `integer` (of a and b, or of one number
// twice unused), for each element.
typedef int64_t (*choir__integer_fn_t)(int64_t a, int64_t b);
choir_status_t choir__elementwise_reference(const choir_record_t* record,
                                            choir_op_t op,
                                            choir__integer_fn_t integer);

extern const choir_op_case_t choir__unary_cases[];
extern const choir_op_case_t choir__binary_cases[];
extern const choir_op_case_t choir__gradient_cases[];
// Fewer.
extern const choir_op_case_t choir__plain_unary_cases[];
extern const choir_op_case_t choir__plain_binary_cases[];
extern const choir_op_case_t choir__plain_ternary_cases[];

#define CHOIR__DTYPES_NUMERIC (CHOIR_DTYPES_ALL & ~CHOIR_DTYPE_MASK(BOOL))

#define CHOIR__ELEMENTWISE_OP(ENUM, op_name, text, family, inputs, cases_,    \
                              integer, ...)                                   \
  static choir_status_t op_name##_infer(const choir_view_t* srcs,             \
                                        int32_t src_count, const void* attrs, \
                                        choir_view_t* dsts) {                 \
    (void)src_count;                                                          \
    (void)attrs;                                                              \
    return choir__##family##_infer(#op_name, srcs, dsts);                     \
  }                                                                           \
  static choir_status_t op_name##_reference(const choir_record_t* record,     \
                                            choir_stream_t* stream) {         \
    (void)stream;                                                             \
    return choir__elementwise_reference(record, CHOIR_OP_##ENUM, integer);    \
  }                                                                           \
  const choir_op_def_t choir_op_def_##op_name = {                             \
      .op = CHOIR_OP_##ENUM,                                                  \
      .name = #op_name,                                                       \
      .doc = text,                                                            \
      .src_min = inputs,                                                      \
      .src_max = inputs,                                                      \
      .dst_count = 1,                                                         \
      .infer = op_name##_infer,                                               \
      .reference = op_name##_reference,                                       \
      .elementwise = true,                                                    \
      .cases = cases_,                                                        \
      __VA_ARGS__}

// y = f(x) or f(a, b), floats only.
#define CHOIR_UNARY_OP(ENUM, name, doc, ...)                                 \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, choir__unary_cases, NULL, \
                        .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
#define CHOIR_BINARY_OP(ENUM, name, doc, ...)                                  \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, binary, 2, choir__binary_cases, NULL, \
                        .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
// The same for all numbers.
#define CHOIR_UNARY_NUMERIC_OP(ENUM, name, doc, integer, ...)          \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, choir__unary_cases, \
                        integer, .dtypes = CHOIR__DTYPES_NUMERIC, __VA_ARGS__)
#define CHOIR_BINARY_NUMERIC_OP(ENUM, name, doc, integer, ...)           \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, binary, 2, choir__binary_cases, \
                        integer, .dtypes = CHOIR__DTYPES_NUMERIC, __VA_ARGS__)
// The same with fewer cases; says which dtypes.
#define CHOIR_PLAIN_UNARY_OP(ENUM, name, doc, dtypes_, integer, ...)         \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, choir__plain_unary_cases, \
                        integer, .dtypes = dtypes_, __VA_ARGS__)
#define CHOIR_PLAIN_BINARY_OP(ENUM, name, doc, dtypes_, integer, ...)          \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, binary, 2, choir__plain_binary_cases, \
                        integer, .dtypes = dtypes_, __VA_ARGS__)
// y = f(a, b, c), floats only.
#define CHOIR_PLAIN_TERNARY_OP(ENUM, name, doc, ...)      \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, ternary, 3,      \
                        choir__plain_ternary_cases, NULL, \
                        .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
// dx = f(x or y, dy), floats only.
#define CHOIR_GRADIENT_OP(ENUM, name, doc, ...)                              \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, gradient, 2, choir__gradient_cases, \
                        NULL, .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
// y = f(x, attributes) and dx = f(x, dy, attributes), floats only; the file has
// an `attrs_def`, of one or two numbers, and says which cases.
#define CHOIR_UNARY_ATTRS_OP(ENUM, name, doc, cases, ...)                  \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, cases, NULL,            \
                        .attrs = &attrs_def, .dtypes = CHOIR_DTYPES_FLOAT, \
                        __VA_ARGS__)
#define CHOIR_GRADIENT_ATTRS_OP(ENUM, name, doc, cases, ...)               \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, gradient, 2, cases, NULL,         \
                        .attrs = &attrs_def, .dtypes = CHOIR_DTYPES_FLOAT, \
                        __VA_ARGS__)

#endif  // CHOIR_TENSOR_OPS_ELEMENTWISE_H_
