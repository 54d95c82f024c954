// SPDX-License-Identifier: Apache-2.0
#include "tensor/convert_internal.h"

#include <string.h>

// The conversions, in the order in which they are tried.
typedef enum {
  NARROW,         // f32 results of products of 16-bit factors, to 16 bits
  WIDE,           // 16-bit floats to f32, in their order of dimensions
  CHANNELS_LAST,  // images densely with channels last, all else by rows
  CONTIGUOUS,     // everything densely by rows
  CONVERSION_COUNT,
} conversion_t;

// Each element once: dimensions along which it is repeated have size 1.
static choir_view_t strip_broadcast(const choir_view_t* view) {
  choir_view_t once = *view;
  for (int32_t k = 0; k < once.ndim; ++k)
    if (once.strides[k] == 0 && once.shape[k] > 1) once.shape[k] = 1;
  return once;
}

// Lets `made` repeat elements where the operand does.
static choir_view_t restore_broadcast(choir_view_t made,
                                      const choir_view_t* view) {
  for (int32_t k = 0; k < made.ndim; ++k) {
    if (made.shape[k] == view->shape[k]) continue;
    made.shape[k] = view->shape[k];
    made.strides[k] = 0;
  }
  return made;
}

// Whether operand i is converted, from what to what; else it goes as it is.
static bool convert_view(conversion_t conversion, const choir_record_t* record,
                         int32_t i, choir_view_t* out_from,
                         choir_view_t* out_to) {
  const choir_view_t* view = &record->operands[i];
  *out_from = conversion == WIDE ? strip_broadcast(view) : *view;
  *out_to = *out_from;
  out_to->offset = 0;
  if (conversion == NARROW) {
    out_to->dtype = choir_record_src(record, 0)->dtype;
    choir_view_set_layout_like(out_to, out_from);
    return i >= record->src_count && view->dtype == CHOIR_DTYPE_F32;
  }
  if (conversion == WIDE) {
    out_to->dtype = CHOIR_DTYPE_F32;
    choir_view_set_layout_like(out_to, out_from);
    return choir__is_narrow(view->dtype);
  }
  if (conversion == CHANNELS_LAST && view->ndim == 4) {
    choir_view_set_channels_last(out_to);
    return !choir_view_is_channels_last(view);
  }
  choir_view_set_contiguous(out_to);
  return !choir_view_is_contiguous(view);
}

static bool is_allowed(conversion_t conversion, const choir_record_t* record) {
  const choir_op_def_t* def = choir__op_def(choir__record_op(record));
  // What conversions are made of.
  if (def->op == CHOIR_OP_CAST || def->op == CHOIR_OP_COPY) return false;
  if (conversion == NARROW)
    return def->is_product &&
           choir__is_narrow(choir_record_src(record, 0)->dtype);
  for (int32_t i = 0; i < record->dst_count; ++i) {
    if (def->inplace[i] && conversion != WIDE) return false;
    // A choice among sums that were rounded is another choice.
    const choir_dtype_t dtype = choir_record_dst(record, i)->dtype;
    if (conversion == WIDE && def->tolerance > 0 &&
        !choir_dtype_is_float(dtype))
      return false;
  }
  return true;
}

static bool leads_to_a_kernel(conversion_t conversion,
                              const choir_device_t* device,
                              const choir_record_t* record) {
  if (!is_allowed(conversion, record)) return false;
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  bool is_other = false;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i) {
    const choir_view_t* view = &record->operands[i];
    choir_view_t from;
    const bool converts =
        convert_view(conversion, record, i, &from, &operands[i]);
    operands[i] = converts ? restore_broadcast(operands[i], view) : *view;
    is_other |= converts && (conversion != WIDE || i < record->src_count);
  }
  choir_record_t converted = *record;
  converted.operands = operands;
  converted.accumulate &= conversion != NARROW;
  return is_other && choir__native_kernel(device, &converted);
}

bool choir__is_widened(const choir_device_t* device,
                       const choir_record_t* record) {
  return leads_to_a_kernel(WIDE, device, record);
}

// One record on its way.
typedef struct converted_s {
  const choir_lowering_t* lowering;
  const choir_record_t* record;
  conversion_t conversion;
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  choir_tensor_t* made[CHOIR_MAX_OPERANDS];  // NULL: the operand itself
} converted_t;

static choir_status_t emit_copy(const converted_t* converted,
                                const choir_view_t* from,
                                const choir_view_t* to, bool accumulate) {
  const choir_cast_attrs_t attrs = {.dtype = to->dtype};
  choir_view_t operands[2] = {*from, *to};
  choir_record_t record = {.operation = choir__operation(CHOIR_OP_COPY),
                           .operands = operands,
                           .src_count = 1,
                           .dst_count = 1,
                           .accumulate = accumulate,
                           .label = converted->record->label};
  if (from->dtype != to->dtype) {
    record.operation = choir__operation(CHOIR_OP_CAST);
    record.attrs = &attrs;
    record.attrs_bytes = sizeof(attrs);
  } else {
    choir__count_reorder((uint64_t)choir_view_count(to) *
                         choir_dtype_bytes(to->dtype));
  }
  return choir__lower(converted->lowering, &record);
}

// Of a step in place the source's copy is the destination's.
static bool is_source_again(const converted_t* converted, int32_t i,
                            int32_t* out_source) {
  const choir_record_t* record = converted->record;
  const choir_op_def_t* def = choir__op_def(choir__record_op(record));
  if (i < record->src_count) return false;
  *out_source = def->inplace[i - record->src_count] - 1;
  return *out_source >= 0;
}

static choir_status_t convert(converted_t* converted, int32_t i) {
  const choir_record_t* record = converted->record;
  const choir_view_t* view = &record->operands[i];
  choir_view_t from, to;
  int32_t source;
  converted->operands[i] = *view;
  if (is_source_again(converted, i, &source)) {
    converted->operands[i] = converted->operands[source];
    converted->made[i] = converted->made[source];
    choir_tensor_retain(converted->made[i]);
    return NULL;
  }
  if (!convert_view(converted->conversion, record, i, &from, &to)) return NULL;
  CHOIR_TRY(choir_tensor_create_layout(converted->lowering->device, &to,
                                       &converted->made[i]));
  const choir_view_t* made = choir_tensor_view(converted->made[i]);
  converted->operands[i] = restore_broadcast(*made, view);
  // A rounded result is added to what has more bits.
  if (!choir_record_reads(record, i) || converted->conversion == NARROW ||
      choir_view_count(made) == 0)
    return NULL;
  return emit_copy(converted, &from, made, false);
}

static choir_status_t emit_all(converted_t* converted) {
  const choir_record_t* record = converted->record;
  const int32_t count = record->src_count + record->dst_count;
  for (int32_t i = 0; i < count; ++i) CHOIR_TRY(convert(converted, i));
  choir_record_t op = *record;
  op.operands = converted->operands;
  const bool adds_later = record->accumulate && converted->conversion == NARROW;
  op.accumulate &= !adds_later;
  CHOIR_TRY(choir__lower(converted->lowering, &op));
  for (int32_t i = record->src_count; i < count; ++i)
    if (converted->made[i] && choir_view_count(&record->operands[i]) > 0)
      CHOIR_TRY(emit_copy(converted, &converted->operands[i],
                          &record->operands[i], adds_later));
  return NULL;
}

choir_status_t choir__lower_converted(const choir_lowering_t* lowering,
                                      const choir_record_t* record,
                                      bool* out_done) {
  converted_t converted = {.lowering = lowering, .record = record};
  while (converted.conversion < CONVERSION_COUNT &&
         !leads_to_a_kernel(converted.conversion, lowering->device, record))
    ++converted.conversion;
  *out_done = converted.conversion < CONVERSION_COUNT;
  if (!*out_done) return NULL;
  if (converted.conversion == WIDE) choir__count_widened();
  choir_status_t status = emit_all(&converted);
  // In the order of the records, which still hold it.
  for (int32_t i = 0; i < CHOIR_MAX_OPERANDS; ++i)
    choir_tensor_release(converted.made[i]);
  return status;
}
