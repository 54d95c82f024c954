// SPDX-License-Identifier: Apache-2.0
#include "autograd/functions.h"

// The bodies of choir_var_<op>, made from the op list.

#define SRCS_1                     \
  choir_var_t* const srcs[] = {a}; \
  const int32_t src_count = 1
#define SRCS_2                        \
  choir_var_t* const srcs[] = {a, b}; \
  const int32_t src_count = 2
#define SRCS_3                           \
  choir_var_t* const srcs[] = {a, b, c}; \
  const int32_t src_count = 3
#define SRCS_N (void)0
#define ATTRS_PLAIN NULL
#define ATTRS_ATTRS attrs

#define DEFINE_GRAD(ENUM, name, n, attrs_kind)                     \
  choir_var_t* choir_var_##name(                                   \
      choir_scope_t* scope,                                        \
      CHOIR_VAR_ARGS_##n CHOIR_VAR_ATTRS_##attrs_kind(name)) {     \
    SRCS_##n;                                                      \
    return choir_scope_op(scope, CHOIR_OP_##ENUM, srcs, src_count, \
                          ATTRS_##attrs_kind, NULL);               \
  }
#define DEFINE_OP_GRAD(ENUM, name, n, attrs_kind) \
  DEFINE_GRAD(ENUM, name, n, attrs_kind)
#define DEFINE_NO_GRAD(ENUM, name, n, attrs_kind) \
  DEFINE_GRAD(ENUM, name, n, attrs_kind)
#define DEFINE_INTERNAL(ENUM, name, n, attrs_kind)
#define DEFINE(ENUM, name, n, attrs_kind, grad) \
  DEFINE_##grad(ENUM, name, n, attrs_kind)
CHOIR_OP_LIST(DEFINE)
