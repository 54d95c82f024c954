// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

// The gradient table, made from the op list.

#define RULE_GRAD(ENUM, name) [CHOIR_OP_##ENUM] = choir__grad_##name,
#define RULE_NO_GRAD(ENUM, name)
#define RULE_INTERNAL(ENUM, name)
#define RULE(ENUM, name, n, attrs, grad) RULE_##grad(ENUM, name)

static const choir_grad_rule_t rules[CHOIR_OP_COUNT] = {CHOIR_OP_LIST(RULE)};

choir_grad_rule_t choir__grad_rule(choir_op_t op) {
  return (unsigned)op < CHOIR_OP_COUNT ? rules[op] : NULL;
}
