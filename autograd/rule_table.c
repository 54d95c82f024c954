// SPDX-License-Identifier: Apache-2.0
#include "autograd/scope_internal.h"
#include "tensor/fusion_def.h"

// The gradient table, made from the op list.

// ---- Gradients that are one op ----

// A call of the gradient's op.
typedef struct call_s {
  choir_tensor_t* srcs[CHOIR_MAX_OPERANDS];
  int32_t gives[CHOIR_OP_MAX_RESULTS];  // of which source the gradient
} call_t;

static call_t call_of(const choir_grad_t* grad,
                      const choir_gradient_t* gradient) {
  call_t call;
  for (int32_t i = 0; i < gradient->src_count; ++i) {
    const int8_t at = gradient->srcs[i];
    call.srcs[i] = at == CHOIR_DY ? grad->dy
                   : at < 0       ? grad->dsts[~at]
                                  : grad->srcs[at];
  }
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
    call.gives[i] = gradient->first + i;
  return call;
}

static choir_status_t run_op(choir_grad_t* grad,
                             const choir_gradient_t* gradient) {
  const call_t call = call_of(grad, gradient);
  return choir_grad_emit_rows(
      grad, call.gives, choir_op_result_count(gradient->op), gradient->op,
      call.srcs, gradient->src_count, gradient->rows, grad->attrs);
}

static bool has_kernel(const choir_grad_t* grad,
                       const choir_gradient_t* gradient) {
  const call_t call = call_of(grad, gradient);
  return choir_grad_has_kernel(
      grad, call.gives, choir_op_result_count(gradient->op), gradient->op,
      call.srcs, gradient->src_count, grad->attrs);
}

// ---- Rules ----

#define OP_RULE_OP_GRAD(name)                             \
  static choir_status_t grad_##name(choir_grad_t* grad) { \
    return run_op(grad, &choir_gradient_##name);          \
  }
#define OP_RULE_GRAD(name)
#define OP_RULE_NO_GRAD(name)
#define OP_RULE_INTERNAL(name)
#define OP_RULE(ENUM, name, n, attrs, grad) OP_RULE_##grad(name)
CHOIR_OP_LIST(OP_RULE)

#define RULE_OP_GRAD(ENUM, name) [CHOIR_OP_##ENUM] = grad_##name,
#define RULE_GRAD(ENUM, name) [CHOIR_OP_##ENUM] = choir__grad_##name,
#define RULE_NO_GRAD(ENUM, name)
#define RULE_INTERNAL(ENUM, name)
#define RULE(ENUM, name, n, attrs, grad) RULE_##grad(ENUM, name)

static const choir_grad_rule_t rules[CHOIR_OP_COUNT] = {CHOIR_OP_LIST(RULE)};

choir_grad_rule_t choir__grad_rule(choir_op_t op) {
  return (unsigned)op < CHOIR_OP_COUNT ? rules[op] : NULL;
}

// ---- Fusions of two ops ----

// The entry of the tape and the one in front of it as one of the fused op,
// whose attributes are written to `attrs`; *out_producer NULL: the fusion does
// not match.
static choir_status_t as_fused(const choir_grad_t* grad, choir_op_t op,
                               const choir_fusion_t* fusion, void* attrs,
                               choir_grad_t* out_fused,
                               const choir_tape_entry_t** out_producer) {
  const choir_fusion_node_t* first = &fusion->nodes[1];
  *out_producer = NULL;
  if (!fusion->gradients || fusion->nodes[0].op != op ||
      !grad->src_vars[first->source]->wants_grad)
    return NULL;
  const choir_tape_entry_t* entry = choir__grad_producer(grad, first->source);
  if (!entry || entry->op != first->op) return NULL;
  choir_grad_t parts[2] = {*grad, choir__grad_of(grad->scope, entry)};
  CHOIR_TRY(choir__grad_take_part(&parts[1], entry));
  const choir_record_t records[] = {{.attrs = parts[0].attrs},
                                    {.attrs = parts[1].attrs}};
  const choir_record_t* const both[] = {&records[0], &records[1]};
  if (!fusion->attrs(both, attrs)) return NULL;
  *out_fused = (choir_grad_t){.scope = grad->scope,
                              .attrs = attrs,
                              .src_count = fusion->src_count,
                              .dy = grad->dy,
                              .label = parts[1].label};
  const choir_fusion_operand_t* operand = fusion->operands;
  for (int32_t i = 0; i < fusion->src_count; ++i, ++operand) {
    out_fused->srcs[i] = parts[operand->node].srcs[operand->index];
    out_fused->src_vars[i] = parts[operand->node].src_vars[operand->index];
  }
  for (int32_t i = 0; i < fusion->dst_count; ++i, ++operand)
    out_fused->dsts[i] = parts[operand->node].dsts[~operand->index];
  *out_producer = entry;
  return NULL;
}

static bool fits(const choir_grad_t* grad, choir_op_t op,
                 const choir_fusion_t* fusion,
                 const choir_tape_entry_t** out_producer) {
  _Alignas(8) unsigned char attrs[CHOIR_OP_ATTRS_MAX_BYTES] = {0};
  choir_grad_t fused;
  choir_status_t status =
      as_fused(grad, op, fusion, attrs, &fused, out_producer);
  const bool is_known = !status && *out_producer;
  choir_status_free(status);
  if (!is_known) return false;
  const choir_gradient_t* gradient = fusion->gradients;
  while (gradient->src_count > 0 && has_kernel(&fused, gradient)) ++gradient;
  return gradient->src_count == 0;
}

const choir_fusion_t* choir__grad_fusion(
    choir_op_t op, const choir_grad_t* grad,
    const choir_tape_entry_t** out_producer) {
  for (int i = 0; choir__fusions[i]; ++i)
    for (const choir_fusion_t* one = choir__fusions[i]; one->node_count > 0;
         ++one)
      if (fits(grad, op, one, out_producer)) return one;
  *out_producer = NULL;
  return NULL;
}

static choir_status_t run_fused(choir_grad_t* grad, choir_op_t op,
                                const choir_fusion_t* fusion) {
  _Alignas(8) unsigned char attrs[CHOIR_OP_ATTRS_MAX_BYTES] = {0};
  const choir_tape_entry_t* producer;
  choir_grad_t fused;
  CHOIR_TRY(as_fused(grad, op, fusion, attrs, &fused, &producer));
  if (!producer)
    return CHOIR_ERROR(INTERNAL, "a fusion does not match in one turn of many");
  choir_scope_set_label(grad->scope, fused.label);
  for (const choir_gradient_t* gradient = fusion->gradients;
       gradient->src_count > 0; ++gradient)
    CHOIR_TRY(run_op(&fused, gradient));
  return NULL;
}

choir_status_t choir__grad_run(choir_op_t op, choir_grad_t* grad) {
  const choir_tape_entry_t* producer;
  // All turns of an entry take the same.
  const choir_fusion_t* fusion = grad->scope->leaf_count > 0
                                     ? grad->scope->fusion
                                     : choir__grad_fusion(op, grad, &producer);
  return fusion ? run_fused(grad, op, fusion) : rules[op](grad);
}
