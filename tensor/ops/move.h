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
//   static choir_status_t <op>_shape(const char* op, const choir_view_t* srcs,
//                                    const choir_<op>_attrs_t* attrs,
//                                    choir_view_t* dst)    the op's infer
//   static void <op>_rules(const choir_record_t* record,
//                          choir__index_map_t* map)    from the places of the
//       result, or of dy, to the elements of x, or of dx
//   static const choir_op_case_t cases[], grad_cases[]
//
// `sources`: x and the others. What follows the documentation holds for both
// ops (.domains and the like; at least one field).
#define CHOIR_MOVE_OP(ENUM, op_name, sources, doc_text, ...)                   \
  static const choir_struct_def_t op_name##_attrs =                            \
      CHOIR_STRUCT_DEF(#op_name, choir_##op_name##_attrs_t, fields, doc_text); \
  static const choir_struct_def_t op_name##_grad_attrs = CHOIR_STRUCT_DEF(     \
      #op_name "_grad", choir_##op_name##_attrs_t, fields, "as of " #op_name); \
  static choir_status_t op_name##_infer(const choir_view_t* srcs,              \
                                        int32_t src_count, const void* attrs,  \
                                        choir_view_t* dsts) {                  \
    (void)src_count;                                                           \
    return op_name##_shape(#op_name, srcs, attrs, &dsts[0]);                   \
  }                                                                            \
  static choir_status_t op_name##_grad_infer(                                  \
      const choir_view_t* srcs, int32_t src_count, const void* attrs,          \
      choir_view_t* dsts) {                                                    \
    choir_view_t result;                                                       \
    CHOIR_TRY(op_name##_shape(#op_name "_grad", srcs, attrs, &result));        \
    CHOIR_TRY(choir__need_same_shape(#op_name "_grad", "dy",                   \
                                     &srcs[src_count - 1],                     \
                                     #op_name "'s result", &result));          \
    return choir__infer_like(#op_name "_grad", &srcs[0], &dsts[0]);            \
  }                                                                            \
  static void op_name##_map(const choir_record_t* record, int32_t part,        \
                            choir__index_map_t* map) {                         \
    (void)part;                                                                \
    choir__index_map_start(map, CHOIR__INDEX_PULL,                             \
                           choir_record_dst(record, 0),                        \
                           choir_record_src(record, 0));                       \
    op_name##_rules(record, map);                                              \
  }                                                                            \
  static void op_name##_grad_map(const choir_record_t* record, int32_t part,   \
                                 choir__index_map_t* map) {                    \
    (void)part;                                                                \
    choir__index_map_start(map, CHOIR__INDEX_SUM,                              \
                           choir_record_src(record, sources),                  \
                           choir_record_dst(record, 0));                       \
    op_name##_rules(record, map);                                              \
  }                                                                            \
  CHOIR__INDEX_MAP_REFERENCE(op_name)                                          \
  CHOIR__INDEX_MAP_REFERENCE(op_name##_grad)                                   \
  const choir_gradient_t choir_gradient_##op_name = {                          \
      .op = CHOIR_OP_##ENUM##_GRAD,                                            \
      .src_count = sources + 1,                                                \
      .srcs = {0, sources == 1 ? CHOIR_DY : 1, CHOIR_DY}};                     \
  CHOIR_OP_DEFINE(ENUM, op_name, sources, 1, doc_text,                         \
                  .attrs = &op_name##_attrs, .index_map = op_name##_map,       \
                  .dtypes = CHOIR_DTYPES_ALL, .tolerance = 2e-7,               \
                  .cases = cases, __VA_ARGS__);                                \
  CHOIR_OP_DEFINE(ENUM##_GRAD, op_name##_grad, sources + 1, 1,                 \
                  "gradient of " #op_name ": dy added where it came from",     \
                  .attrs = &op_name##_grad_attrs,                              \
                  .index_map = op_name##_grad_map, .shapes_only = 1u << 0,     \
                  .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 2e-6,             \
                  .cases = grad_cases, __VA_ARGS__)

#endif  // CHOIR_TENSOR_OPS_MOVE_H_
