// SPDX-License-Identifier: Apache-2.0
#include "tensor/widen_internal.h"

#include <string.h>

static bool is_half(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F16 || view->dtype == CHOIR_DTYPE_BF16;
}

// Each element once: dimensions along which it is repeated have size 1.
static choir_view_t strip_broadcast(const choir_view_t* view) {
  choir_view_t once = *view;
  for (int32_t k = 0; k < once.ndim; ++k)
    if (once.strides[k] == 0 && once.shape[k] > 1) once.shape[k] = 1;
  return once;
}

// The same in f32, dense in the operand's order of dimensions.
static choir_view_t wide_layout(const choir_view_t* view) {
  const choir_view_t once = strip_broadcast(view);
  choir_view_t wide = once;
  wide.dtype = CHOIR_DTYPE_F32;
  wide.offset = 0;
  choir_view_set_layout_like(&wide, &once);
  return wide;
}

// Lets `wide` repeat elements where the operand does.
static choir_view_t restore_broadcast(choir_view_t wide,
                                      const choir_view_t* view) {
  for (int32_t k = 0; k < wide.ndim; ++k) {
    if (wide.shape[k] == view->shape[k]) continue;
    wide.shape[k] = view->shape[k];
    wide.strides[k] = 0;
  }
  return wide;
}

bool choir__widens(const choir_device_t* device, const choir_record_t* record) {
  const choir_op_def_t* def = choir__op_def(choir__record_op(record));
  // A cast is what widening is made of.
  if (def->op == CHOIR_OP_CAST) return false;
  for (int32_t i = 0; i < record->dst_count; ++i) {
    // A choice among sums that were rounded is another choice. Steps in place
    // take no 16-bit floats.
    const choir_dtype_t dtype = choir_record_dst(record, i)->dtype;
    if (def->inplace[i] || (def->tolerance > 0 && !choir_dtype_is_float(dtype)))
      return false;
  }
  bool has_half = false;
  for (int32_t i = 0; i < record->src_count; ++i)
    has_half |= is_half(&record->operands[i]);
  if (!has_half) return false;
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i) {
    const choir_view_t* view = &record->operands[i];
    operands[i] =
        is_half(view) ? restore_broadcast(wide_layout(view), view) : *view;
  }
  choir_record_t wide = *record;
  wide.operands = operands;
  return choir__native_kernel(device, &wide) != NULL;
}

// One record on its way.
typedef struct wide_s {
  const choir_lowering_t* lowering;
  const choir_record_t* record;
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  choir_tensor_t* made[CHOIR_MAX_OPERANDS];  // NULL: the operand itself
} wide_t;

static choir_status_t emit_cast(const wide_t* wide, const choir_view_t* from,
                                const choir_view_t* to) {
  const choir_cast_attrs_t attrs = {.dtype = to->dtype};
  choir_view_t operands[2] = {*from, *to};
  const choir_record_t record = {.operation = choir__operation(CHOIR_OP_CAST),
                                 .operands = operands,
                                 .src_count = 1,
                                 .dst_count = 1,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs),
                                 .label = wide->record->label};
  return choir__lower(wide->lowering, &record);
}

// Memory for operand i, with its elements if `has_elements`.
static choir_status_t widen(wide_t* wide, int32_t i, bool has_elements) {
  const choir_view_t* view = &wide->record->operands[i];
  const choir_view_t layout = wide_layout(view);
  CHOIR_TRY(choir_tensor_create_layout(wide->lowering->device, &layout,
                                       &wide->made[i]));
  const choir_view_t* made = choir_tensor_view(wide->made[i]);
  wide->operands[i] = restore_broadcast(*made, view);
  if (!has_elements || choir_view_count(made) == 0) return NULL;
  const choir_view_t once = strip_broadcast(view);
  return emit_cast(wide, &once, made);
}

static choir_status_t take_operands(wide_t* wide) {
  const choir_record_t* record = wide->record;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i) {
    wide->operands[i] = record->operands[i];
    if (is_half(&record->operands[i]))
      CHOIR_TRY(widen(wide, i, choir_record_reads(record, i)));
  }
  return NULL;
}

static choir_status_t emit_all(wide_t* wide) {
  const choir_record_t* record = wide->record;
  CHOIR_TRY(take_operands(wide));
  choir_record_t op = *record;
  op.operands = wide->operands;
  CHOIR_TRY(choir__lower(wide->lowering, &op));
  for (int32_t i = record->src_count; i < record->src_count + record->dst_count;
       ++i) {
    if (is_half(&record->operands[i]) &&
        choir_view_count(&record->operands[i]) > 0)
      CHOIR_TRY(emit_cast(wide, &wide->operands[i], &record->operands[i]));
  }
  return NULL;
}

choir_status_t choir__lower_wide(const choir_lowering_t* lowering,
                                 const choir_record_t* record) {
  wide_t wide;
  wide.lowering = lowering;
  wide.record = record;
  memset(wide.made, 0, sizeof(wide.made));
  choir_status_t status = emit_all(&wide);
  // In the order of the records, which still hold it.
  for (int32_t i = 0; i < CHOIR_MAX_OPERANDS; ++i)
    choir_tensor_release(wide.made[i]);
  return status;
}
