// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_MOVE_H_
#define CHOIR_TENSOR_OPS_MOVE_H_

#include "tensor/ops/index_map.h"

// An op whose result's elements are elements of its first source, and its
// gradient: x (its shape), the other sources, dy -> dx, where each element of
// dy is added to the element that it came from, in double, in the row-major
// order of dy. A file defines, ahead of the macro,
//
//   static const choir_field_t fields[]    attributes of both
//   static choir_status_t <op>_shape(const choir_view_t* srcs,
//                                    const choir_<op>_attrs_t* attrs,
//                                    choir_view_t* dst)    the op's infer
//   static void <op>_rules(const choir_record_t* record,
//                          choir__index_map_t* map)    from the places of the
//       result, or of dy, to the elements of x, or of dx
//   #define CASES(S)    test cases {S(x and the others, result), attributes}
//
// `sources`: x and the others. What follows the documentation holds for both
// ops (.domains and the like; at least one field).
#define CHOIR_MOVE_OP(ENUM, op_name, sources, doc_text, ...)                  \
  static choir_status_t op_name##_infer(const choir_record_t* record,         \
                                        choir_view_t* dsts) {                 \
    return op_name##_shape(record->operands, record->attrs, &dsts[0]);        \
  }                                                                           \
  static choir_status_t op_name##_grad_infer(const choir_record_t* record,    \
                                             choir_view_t* dsts) {            \
    choir_view_t result;                                                      \
    CHOIR_TRY(op_name##_shape(record->operands, record->attrs, &result));     \
    CHOIR_TRY(choir__need_same_shape("dy", choir_record_src(record, sources), \
                                     #op_name "'s result", &result));         \
    return choir__infer_as_source(record, dsts);                              \
  }                                                                           \
  static void op_name##_map(const choir_record_t* record, int32_t part,       \
                            choir__index_map_t* map) {                        \
    (void)part;                                                               \
    choir__index_map_start(map, CHOIR__INDEX_PULL,                            \
                           choir_record_dst(record, 0),                       \
                           choir_record_src(record, 0));                      \
    op_name##_rules(record, map);                                             \
  }                                                                           \
  static void op_name##_grad_map(const choir_record_t* record, int32_t part,  \
                                 choir__index_map_t* map) {                   \
    (void)part;                                                               \
    choir__index_map_start(map, CHOIR__INDEX_SUM,                             \
                           choir_record_src(record, sources),                 \
                           choir_record_dst(record, 0));                      \
    op_name##_rules(record, map);                                             \
  }                                                                           \
  static const choir_op_case_t op_name##_cases[] = {CASES(CHOIR__MOVE_CASE),  \
                                                    {NULL, NULL}};            \
  static const choir_op_case_t op_name##_grad_cases[] = {                     \
      CASES(CHOIR__MOVE_GRAD_CASE), {NULL, NULL}};                            \
  CHOIR__INDEX_MAP_REFERENCE(op_name)                                         \
  CHOIR__INDEX_MAP_REFERENCE(op_name##_grad)                                  \
  const choir_gradient_t choir_gradient_##op_name = {                         \
      .op = CHOIR_OP_##ENUM##_GRAD,                                           \
      .src_count = sources + 1,                                               \
      .srcs = {0, sources == 1 ? CHOIR_DY : 1, CHOIR_DY}};                    \
  CHOIR_OP_DEFINE(ENUM, op_name, sources, 1, doc_text,                        \
                  CHOIR_OP_ATTRS(op_name, fields, doc_text),                  \
                  .index_map = op_name##_map, .dtypes = CHOIR_DTYPES_ALL,     \
                  .tolerance = 2e-7, .cases = op_name##_cases, __VA_ARGS__);  \
  CHOIR_OP_DEFINE(ENUM##_GRAD, op_name##_grad, sources + 1, 1,                \
                  "gradient of " #op_name ": dy added where it came from",    \
                  CHOIR_OP_ATTRS(op_name##_grad, fields, "as of " #op_name),  \
                  .index_map = op_name##_grad_map, .shapes_only = 1u << 0,    \
                  .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 2e-6,            \
                  .cases = op_name##_grad_cases, __VA_ARGS__)

#define CHOIR__MOVE_CASE(sources, result) sources
#define CHOIR__MOVE_GRAD_CASE(sources, result) sources ";" result

#endif  // CHOIR_TENSOR_OPS_MOVE_H_
