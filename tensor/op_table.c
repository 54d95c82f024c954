// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tensor/host_fallback_internal.h"
#include "tensor/op_def.h"

// Everything that the op list makes: the table of definitions and, for each
// op, what records of it name and two kernels around its reference.

#define DEF_ENTRY(ENUM, name, sources, attrs, grad) &choir_op_def_##name,
static const choir_op_def_t* const defs[CHOIR_OP_COUNT] = {
    CHOIR_OP_LIST(DEF_ENTRY)};

#define RUN_FUNCTIONS(ENUM, name, sources, attrs, grad)                \
  static choir_status_t reference_##name(const choir_record_t* record, \
                                         choir_stream_t* stream) {     \
    choir__count_reference_run();                                      \
    return choir_op_def_##name.reference(record, stream);              \
  }                                                                    \
  static choir_status_t host_##name(const choir_record_t* record,      \
                                    choir_stream_t* stream) {          \
    choir__count_host_fallback();                                      \
    return choir__host_fallback(&choir_op_def_##name, record, stream); \
  }
CHOIR_OP_LIST(RUN_FUNCTIONS)

#define REFERENCE_ENTRY(ENUM, name, sources, attrs, grad) \
  {#name "/reference", reference_##name, NULL, NULL, NULL, false},
static const choir_kernel_t reference_kernels[CHOIR_OP_COUNT] = {
    CHOIR_OP_LIST(REFERENCE_ENTRY)};

#define HOST_ENTRY(ENUM, name, sources, attrs, grad) \
  {#name "/host", host_##name, NULL, NULL, NULL, false},
static const choir_kernel_t host_kernels[CHOIR_OP_COUNT] = {
    CHOIR_OP_LIST(HOST_ENTRY)};

static void cost_of(const choir_record_t* record, choir_cost_t* out_cost) {
  const choir_op_def_t* def = defs[record->operation->id];
  if (def->cost)
    def->cost(record, out_cost);
  else
    choir__cost_bytes(record, out_cost);
}

static bool reads(const choir_record_t* record, int32_t source) {
  const choir_op_def_t* def = defs[record->operation->id];
  return source >= 32 || !(def->shapes_only >> source & 1u);
}

static bool in_place(const choir_record_t* record, int32_t source,
                     int32_t destination) {
  const choir_op_def_t* def = defs[record->operation->id];
  return def->elementwise || def->inplace[destination] == source + 1;
}

#define OPERATION_ENTRY(ENUM, name, sources, attrs, grad) \
  {#name, CHOIR_OP_##ENUM, choir__lower, cost_of, reads, in_place},
static const choir_operation_t operations[CHOIR_OP_COUNT] = {
    CHOIR_OP_LIST(OPERATION_ENTRY)};

static bool op_is_valid(choir_op_t op) {
  return (int)op >= 0 && (int)op < CHOIR_OP_COUNT;
}

const choir_op_def_t* choir__op_def(choir_op_t op) {
  return op_is_valid(op) ? defs[op] : NULL;
}

const choir_operation_t* choir__operation(choir_op_t op) {
  return op_is_valid(op) ? &operations[op] : NULL;
}

const choir_kernel_t* choir__reference_kernel(choir_op_t op) {
  return op_is_valid(op) ? &reference_kernels[op] : NULL;
}

const choir_kernel_t* choir__host_kernel(choir_op_t op) {
  return op_is_valid(op) ? &host_kernels[op] : NULL;
}

void choir__cost_bytes(const choir_record_t* record, choir_cost_t* out_cost) {
  out_cost->flops = 0;
  out_cost->bytes = 0;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i) {
    const choir_view_t* view = &record->operands[i];
    out_cost->bytes +=
        (double)choir_view_count(view) * (double)choir_dtype_bytes(view->dtype);
  }
}

const char* choir_op_name(choir_op_t op) {
  return op_is_valid(op) ? defs[op]->name : NULL;
}

choir_status_t choir_op_find(const char* name, choir_op_t* out_op) {
  *out_op = CHOIR_OP_COUNT;
  for (int op = 0; name && op < CHOIR_OP_COUNT; ++op) {
    if (strcmp(defs[op]->name, name) == 0) {
      *out_op = (choir_op_t)op;
      return NULL;
    }
  }
  return CHOIR_ERROR(NOT_FOUND,
                     "op: \"%s\" is no op; needs a name of the list in "
                     "tensor/ops.h",
                     name ? name : "NULL");
}

#define CHOIR_OP_GRADIENT_OP_GRAD CHOIR_OP_GRADIENT_GRAD
#define GRADIENT_ENTRY(ENUM, name, sources, attrs, grad) \
  CHOIR_OP_GRADIENT_##grad,
static const choir_op_gradient_t gradients[CHOIR_OP_COUNT] = {
    CHOIR_OP_LIST(GRADIENT_ENTRY)};
#undef GRADIENT_ENTRY

choir_op_info_t choir_op_info(choir_op_t op) {
  if (!op_is_valid(op)) return (choir_op_info_t){0};
  const choir_op_def_t* def = defs[op];
  return (choir_op_info_t){.name = def->name,
                           .doc = def->doc,
                           .src_min = def->src_min,
                           .src_max = def->src_max,
                           .result_count = def->dst_count,
                           .gradient = gradients[op],
                           .is_product = def->is_product,
                           .attrs = def->attrs};
}

bool choir_op_mixed_dtypes(choir_op_t op, choir_dtype_t precision,
                           const choir_dtype_t* src_dtypes, int32_t src_count,
                           choir_dtype_t* out_dtypes) {
  for (int32_t i = 0; i < src_count; ++i) out_dtypes[i] = src_dtypes[i];
  if (!op_is_valid(op)) return false;
  const choir_op_def_t* def = defs[op];
  const bool is_f16 = precision == CHOIR_DTYPE_F16;
  const uint32_t kept = is_f16 ? 0 : def->wide_sources;
  bool is_narrow = def->is_product && src_count > 0 &&
                   (!is_f16 || src_dtypes[0] == CHOIR_DTYPE_F32);
  for (int32_t i = 0; i < src_count && !is_f16; ++i)
    is_narrow |= src_dtypes[i] == precision && !(kept >> i & 1) &&
                 op != CHOIR_OP_CAST && !def->is_wide;
  for (int32_t i = 0; i < src_count; ++i) {
    if (is_narrow && src_dtypes[i] == CHOIR_DTYPE_F32 && !(kept >> i & 1))
      out_dtypes[i] = precision;
    if (def->is_wide && src_dtypes[i] == precision && !is_f16)
      out_dtypes[i] = CHOIR_DTYPE_F32;
  }
  return is_f16 && is_narrow;
}

const choir_struct_def_t* choir_op_attrs_def(choir_op_t op) {
  return op_is_valid(op) ? defs[op]->attrs : NULL;
}

int32_t choir_op_result_count(choir_op_t op) {
  return op_is_valid(op) ? defs[op]->dst_count : 0;
}
