// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_REPEAT_SHARED_H_
#define CHOIR_TENSOR_OPS_REPEAT_SHARED_H_

#include "tensor/ops/index_map.h"

// What tile, repeat and their gradients share.

#define CHOIR__TILE_ATTRS(op)                                               \
  static const choir_field_t fields[] = {                                   \
      CHOIR_FIELD_INT(choir_##op##_attrs_t, ndim, 1, 0, CHOIR_MAX_NDIM,     \
                      "how many of repeats are meant"),                     \
      CHOIR_FIELD_INTS(choir_##op##_attrs_t, repeats, CHOIR_MAX_NDIM, 1, 0, \
                       INT64_MAX,                                           \
                       "copies, by dimension, the last for the "            \
                       "last"),                                             \
  };                                                                        \
  static const choir_struct_def_t attrs_def =                               \
      CHOIR_STRUCT_DEF(#op, choir_##op##_attrs_t, fields, "how many copies")

#define CHOIR__REPEAT_ATTRS(op)                                             \
  static const choir_field_t fields[] = {                                   \
      CHOIR_FIELD_INT(choir_##op##_attrs_t, repeats, 1, 0, INT64_MAX,       \
                      "how often each element comes"),                      \
      CHOIR_FIELD_INT(choir_##op##_attrs_t, axis, 0, 0, CHOIR_MAX_NDIM - 1, \
                      "dimension that gets longer"),                        \
  };                                                                        \
  static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(             \
      #op, choir_##op##_attrs_t, fields, "how often and where")

choir_status_t choir__tile_shape(const char* op, const choir_view_t* x,
                                 const choir_tile_attrs_t* attrs,
                                 choir_view_t* out_view);
choir_status_t choir__repeat_shape(const char* op, const choir_view_t* x,
                                   const choir_repeat_attrs_t* attrs,
                                   choir_view_t* out_view);
// The map's rules.
void choir__tile_rules(const choir_tile_attrs_t* attrs,
                       choir__index_map_t* map);
void choir__repeat_rules(const choir_repeat_attrs_t* attrs,
                         choir__index_map_t* map);

#endif  // CHOIR_TENSOR_OPS_REPEAT_SHARED_H_
