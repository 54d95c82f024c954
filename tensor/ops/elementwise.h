// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_ELEMENTWISE_H_
#define CHOIR_TENSOR_OPS_ELEMENTWISE_H_

#include <math.h>

#include "tensor/ops/elements.h"

// An elementwise op is a function of one, two or three numbers and one of these
// macros; the rest follows. `real` computes in double; `integer`, where there
// is one, exactly and wrapping around. What comes after are more fields of the
// definition, the tolerance at least.

choir_status_t choir__unary_infer(const char* op, const choir_view_t* srcs,
                                  choir_view_t* dsts);
choir_status_t choir__unary_reference(const choir_record_t* record,
                                      double (*real)(double x),
                                      int64_t (*integer)(int64_t x));
choir_status_t choir__unary_attrs_reference(const choir_record_t* record,
                                            double (*real)(double x,
                                                           const void* attrs));
// NumPy's broadcasting.
choir_status_t choir__binary_infer(const char* op, const choir_view_t* srcs,
                                   choir_view_t* dsts);
// Both sources have the same shape.
choir_status_t choir__gradient_infer(const char* op, const choir_view_t* srcs,
                                     choir_view_t* dsts);
choir_status_t choir__binary_reference(const choir_record_t* record,
                                       double (*real)(double a, double b),
                                       int64_t (*integer)(int64_t a,
                                                          int64_t b));
choir_status_t choir__gradient_attrs_reference(
    const choir_record_t* record,
    double (*real)(double x, double dy, const void* attrs));
// NumPy's broadcasting; floats only.
choir_status_t choir__ternary_infer(const char* op, const choir_view_t* srcs,
                                    choir_view_t* dsts);
choir_status_t choir__ternary_reference(const choir_record_t* record,
                                        double (*real)(double a, double b,
                                                       double c));
extern const choir_op_case_t choir__unary_cases[];
extern const choir_op_case_t choir__binary_cases[];
extern const choir_op_case_t choir__gradient_cases[];
// Fewer.
extern const choir_op_case_t choir__plain_unary_cases[];
extern const choir_op_case_t choir__plain_binary_cases[];
extern const choir_op_case_t choir__plain_ternary_cases[];

#define CHOIR__DTYPES_NUMERIC (CHOIR_DTYPES_ALL & ~CHOIR_DTYPE_MASK(BOOL))

// `run` makes the destination of `record`.
#define CHOIR__ELEMENTWISE_OP(ENUM, op_name, text, family, inputs, cases_,    \
                              run, ...)                                       \
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
    return run;                                                               \
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

// y = f(x), floats only.
#define CHOIR_UNARY_OP(ENUM, name, doc, real, ...)                     \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, choir__unary_cases, \
                        choir__unary_reference(record, real, NULL),    \
                        .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
// y = f(x), all numbers.
#define CHOIR_UNARY_NUMERIC_OP(ENUM, name, doc, real, integer, ...)    \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, choir__unary_cases, \
                        choir__unary_reference(record, real, integer), \
                        .dtypes = CHOIR__DTYPES_NUMERIC, __VA_ARGS__)
// y = f(x) with fewer cases; says which dtypes.
#define CHOIR_PLAIN_UNARY_OP(ENUM, name, doc, dtypes_, real, integer, ...)   \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, choir__plain_unary_cases, \
                        choir__unary_reference(record, real, integer),       \
                        .dtypes = dtypes_, __VA_ARGS__)
// y = f(x, attributes), floats only, likewise; the file has an `attrs_def` and
// says which cases.
#define CHOIR_UNARY_ATTRS_OP(ENUM, name, doc, real, cases, ...)            \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, unary, 1, cases,                  \
                        choir__unary_attrs_reference(record, real),        \
                        .attrs = &attrs_def, .dtypes = CHOIR_DTYPES_FLOAT, \
                        __VA_ARGS__)
// y = f(a, b), floats only.
#define CHOIR_BINARY_OP(ENUM, name, doc, real, ...)                      \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, binary, 2, choir__binary_cases, \
                        choir__binary_reference(record, real, NULL),     \
                        .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
// y = f(a, b), all numbers.
#define CHOIR_BINARY_NUMERIC_OP(ENUM, name, doc, real, integer, ...)     \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, binary, 2, choir__binary_cases, \
                        choir__binary_reference(record, real, integer),  \
                        .dtypes = CHOIR__DTYPES_NUMERIC, __VA_ARGS__)
// y = f(a, b) with fewer cases; says which dtypes.
#define CHOIR_PLAIN_BINARY_OP(ENUM, name, doc, dtypes_, real, integer, ...)    \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, binary, 2, choir__plain_binary_cases, \
                        choir__binary_reference(record, real, integer),        \
                        .dtypes = dtypes_, __VA_ARGS__)
// y = f(a, b, c), floats only.
#define CHOIR_PLAIN_TERNARY_OP(ENUM, name, doc, real, ...)      \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, ternary, 3,            \
                        choir__plain_ternary_cases,             \
                        choir__ternary_reference(record, real), \
                        .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
// dx = f(x or y, dy), floats only.
#define CHOIR_GRADIENT_OP(ENUM, name, doc, real, ...)                        \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, gradient, 2, choir__gradient_cases, \
                        choir__binary_reference(record, real, NULL),         \
                        .dtypes = CHOIR_DTYPES_FLOAT, __VA_ARGS__)
// dx = f(x, dy, attributes), as CHOIR_UNARY_ATTRS_OP.
#define CHOIR_GRADIENT_ATTRS_OP(ENUM, name, doc, real, cases, ...)         \
  CHOIR__ELEMENTWISE_OP(ENUM, name, doc, gradient, 2, cases,               \
                        choir__gradient_attrs_reference(record, real),     \
                        .attrs = &attrs_def, .dtypes = CHOIR_DTYPES_FLOAT, \
                        __VA_ARGS__)

#endif  // CHOIR_TENSOR_OPS_ELEMENTWISE_H_
