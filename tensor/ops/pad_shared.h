// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_PAD_SHARED_H_
#define CHOIR_TENSOR_OPS_PAD_SHARED_H_

#include "tensor/ops/index_map.h"

// What pad and pad_grad share.

extern const char* const choir__pad_modes[];

#define CHOIR__PAD_ATTRS(op)                                                 \
  static const choir_field_t fields[] = {                                    \
      CHOIR_FIELD_ENUM(choir_##op##_attrs_t, mode, choir__pad_modes,         \
                       CHOIR_PAD_CONSTANT, "what lies around x"),            \
      CHOIR_FIELD_FLOAT(choir_##op##_attrs_t, value, 0, -INFINITY, INFINITY, \
                        "the constant"),                                     \
      CHOIR_FIELD_INTS(choir_##op##_attrs_t, before, CHOIR_MAX_NDIM, 0, 0,   \
                       INT64_MAX, "elements in front, by dimension"),        \
      CHOIR_FIELD_INTS(choir_##op##_attrs_t, after, CHOIR_MAX_NDIM, 0, 0,    \
                       INT64_MAX, "elements behind, by dimension"),          \
  };                                                                         \
  static const choir_struct_def_t attrs_def =                                \
      CHOIR_STRUCT_DEF(#op, choir_##op##_attrs_t, fields, "how much and what")

choir_status_t choir__pad_shape(const char* op, const choir_view_t* x,
                                const choir_pad_attrs_t* attrs,
                                choir_view_t* out_view);
// The map's rules.
void choir__pad_rules(const choir_pad_attrs_t* attrs, choir__index_map_t* map);

#endif  // CHOIR_TENSOR_OPS_PAD_SHARED_H_
