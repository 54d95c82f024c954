// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_AUTOGRAD_FUNCTIONS_H_
#define CHOIR_AUTOGRAD_FUNCTIONS_H_

#include "autograd/scope.h"

#ifdef __cplusplus
extern "C" {
#endif

// choir_var_<op>(scope, sources..., attributes): every op of the list in
// tensor/ops.h on variables, made from the list:
//
//   choir_var_t* choir_var_relu(choir_scope_t*, choir_var_t* x);
//   choir_var_t* choir_var_add(choir_scope_t*, choir_var_t* a, choir_var_t* b);
//   choir_var_t* choir_var_matmul(choir_scope_t*, choir_var_t* a,
//                                 choir_var_t* b,
//                                 const choir_matmul_attrs_t* attrs);
//   choir_var_t* choir_var_concat(choir_scope_t*, choir_var_t* const* srcs,
//                                 int32_t src_count,
//                                 const choir_concat_attrs_t* attrs);
//
// attrs NULL: the defaults. The result is the op's first.

#define CHOIR_VAR_ARGS_1 choir_var_t* a
#define CHOIR_VAR_ARGS_2 choir_var_t *a, choir_var_t *b
#define CHOIR_VAR_ARGS_3 choir_var_t *a, choir_var_t *b, choir_var_t *c
#define CHOIR_VAR_ARGS_N choir_var_t *const *srcs, int32_t src_count
#define CHOIR_VAR_ATTRS_PLAIN(name)
#define CHOIR_VAR_ATTRS_ATTRS(name) , const choir_##name##_attrs_t* attrs

#define CHOIR_VAR_DECLARE_GRAD(name, n, attrs) \
  CHOIR_API choir_var_t* choir_var_##name(     \
      choir_scope_t* scope, CHOIR_VAR_ARGS_##n CHOIR_VAR_ATTRS_##attrs(name));
#define CHOIR_VAR_DECLARE_OP_GRAD(name, n, attrs) \
  CHOIR_VAR_DECLARE_GRAD(name, n, attrs)
#define CHOIR_VAR_DECLARE_NO_GRAD(name, n, attrs) \
  CHOIR_VAR_DECLARE_GRAD(name, n, attrs)
#define CHOIR_VAR_DECLARE_INTERNAL(name, n, attrs)

#define CHOIR_VAR_DECLARE_(ENUM, name, n, attrs, grad) \
  CHOIR_VAR_DECLARE_##grad(name, n, attrs)
CHOIR_OP_LIST(CHOIR_VAR_DECLARE_)
#undef CHOIR_VAR_DECLARE_

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_AUTOGRAD_FUNCTIONS_H_
