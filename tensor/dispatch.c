// SPDX-License-Identifier: Apache-2.0
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/convert_internal.h"
#include "tensor/host_fallback_internal.h"
#include "tensor/op_calls_internal.h"
#include "tensor/op_def.h"
#include "tensor/strided_internal.h"

// From a call to a record: check, infer, find or make destinations, hand over
// to the stream; and from a record to one with a kernel (choir__lower). All on
// the stack: a steady loop takes memory from the device's pool only.

// ---- Counters ----

static atomic_ullong reorders;
static atomic_ullong reorder_bytes;
static atomic_ullong host_fallbacks;
static atomic_ullong reference_runs;
static atomic_ullong widened;

static void count_up(atomic_ullong* counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

void choir__count_reorder(uint64_t bytes) {
  count_up(&reorders, 1);
  count_up(&reorder_bytes, bytes);
}

void choir__count_reference_run(void) { count_up(&reference_runs, 1); }

void choir__count_host_fallback(void) { count_up(&host_fallbacks, 1); }

void choir__count_widened(void) { count_up(&widened, 1); }

choir_op_stats_t choir_op_stats(void) {
  return (choir_op_stats_t){
      .reorders = atomic_load(&reorders),
      .reorder_bytes = atomic_load(&reorder_bytes),
      .host_fallbacks = atomic_load(&host_fallbacks),
      .reference_runs = atomic_load(&reference_runs),
      .widened = atomic_load(&widened),
  };
}

void choir_op_stats_reset(void) {
  atomic_store(&reorders, 0);
  atomic_store(&reorder_bytes, 0);
  atomic_store(&host_fallbacks, 0);
  atomic_store(&reference_runs, 0);
  atomic_store(&widened, 0);
}

// ---- Kernels ----

#define X(family) extern const choir_kernel_table_t choir_kernel_table_##family;
#include "tensor/kernels/tables.def"
#undef X

static const choir_kernel_table_t* const tables[] = {
#define X(family) &choir_kernel_table_##family,
#include "tensor/kernels/tables.def"
#undef X
    NULL};

const choir_op_kernel_t* choir__native_kernel(const choir_device_t* device,
                                              const choir_record_t* record) {
  const choir_op_t op = choir__record_op(record);
  const char* family = choir_device_kernels(device);
  for (int i = 0; tables[i]; ++i) {
    if (strcmp(tables[i]->family, family) != 0) continue;
    for (int k = 0; tables[i]->kernels[k]; ++k) {
      const choir_op_kernel_t* kernel = tables[i]->kernels[k];
      if (kernel->op == op &&
          (record->segment == 0 || kernel->takes_segments) &&
          (!kernel->supports || kernel->supports(record)))
        return kernel;
    }
  }
  return NULL;
}

const choir_calls_kernel_t* const* choir__calls_kernels(
    const choir_device_t* device) {
  const char* family = choir_device_kernels(device);
  for (int i = 0; tables[i]; ++i)
    if (tables[i]->calls_kernels && strcmp(tables[i]->family, family) == 0)
      return tables[i]->calls_kernels;
  return NULL;
}

choir_status_t choir__op_infer(choir_op_t op, const choir_view_t* srcs,
                               int32_t src_count, const void* attrs,
                               choir_view_t* dsts) {
  const choir_op_def_t* def = choir__op_def(op);
  const choir_record_t record = {.operation = choir__operation(op),
                                 .operands = srcs,
                                 .src_count = src_count,
                                 .dst_count = def->dst_count,
                                 .attrs = attrs};
  CHOIR_TRY_NOTE(def->infer(&record, dsts), "%s", def->name);
  return NULL;
}

bool choir__op_call_has_kernel(const choir_device_t* device, choir_op_t op,
                               choir_tensor_t* const* srcs, int32_t src_count,
                               const void* attrs, bool accumulate,
                               int64_t segment, choir_tensor_t* const* dsts) {
  const choir_op_def_t* def = choir__op_def(op);
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  for (int32_t i = 0; i < src_count; ++i)
    operands[i] = *choir_tensor_view(srcs[i]);
  const choir_record_t record = {
      .operation = choir__operation(op),
      .operands = operands,
      .src_count = src_count,
      .dst_count = def->dst_count,
      .accumulate = accumulate,
      .attrs = attrs,
      .attrs_bytes = def->attrs ? def->attrs->bytes : 0,
      .segment = segment};
  choir_status_t status =
      choir__op_infer(op, operands, src_count, attrs, operands + src_count);
  if (status) {
    choir_status_free(status);
    return false;
  }
  for (int32_t i = 0; i < def->dst_count; ++i)
    if (dsts[i]) operands[src_count + i] = *choir_tensor_view(dsts[i]);
  return choir__native_kernel(device, &record) ||
         choir__is_widened(device, &record);
}

bool choir__op_has_kernel(const choir_device_t* device, choir_op_t op,
                          choir_tensor_t* const* srcs, int32_t src_count,
                          const void* attrs, bool accumulate,
                          choir_tensor_t* const* dsts) {
  return choir__op_call_has_kernel(device, op, srcs, src_count, attrs,
                                   accumulate, 0, dsts);
}

// ---- Lowering ----

// What runs a record for which the device has no kernel of its own.
static choir_status_t fall_back(const choir_device_t* device,
                                const choir_record_t* record,
                                const choir_kernel_t** out_kernel) {
  const choir_op_t op = choir__record_op(record);
  const bool is_host = choir_device_is_host(device);
  if (!is_host && choir__host_fallback_is_forbidden())
    return choir__host_fallback_refusal(op, device, record);
  *out_kernel = is_host ? choir__reference_kernel(op) : choir__host_kernel(op);
  return NULL;
}

choir_status_t choir__lower(const choir_lowering_t* lowering,
                            const choir_record_t* record) {
  const choir_op_kernel_t* native =
      choir__native_kernel(lowering->device, record);
  bool is_done = false;
  if (!native) CHOIR_TRY(choir__lower_converted(lowering, record, &is_done));
  if (is_done) return NULL;
  choir_record_t lowered = *record;
  if (native)
    lowered.kernel = &native->kernel;
  else
    CHOIR_TRY(fall_back(lowering->device, record, &lowered.kernel));
  return lowering->emit(lowering->self, &lowered);
}

choir_status_t choir__run_inside(choir_op_t op, const choir_record_t* record,
                                 choir_stream_t* stream) {
  choir_record_t inside = *record;
  inside.operation = choir__operation(op);
  inside.is_part = true;
  const choir_device_t* device = choir_stream_device(stream);
  const choir_op_kernel_t* native = choir__native_kernel(device, &inside);
  if (native)
    inside.kernel = &native->kernel;
  else
    CHOIR_TRY(fall_back(device, &inside, &inside.kernel));
  return inside.kernel->run(&inside, stream);
}

// ---- One call ----

typedef struct call_s {
  const choir_op_def_t* def;
  choir_stream_t* stream;
  choir_op_calls_t* calls;  // NULL: none
  choir_device_t* device;
  choir_tensor_t* const* srcs;
  int32_t src_count;
  bool accumulate;
  int64_t segment;  // of the record
  choir_tensor_t** dsts;
  bool made[CHOIR_OP_MAX_RESULTS];  // dsts that this call must release again
  const void* attrs;
  _Alignas(8) unsigned char default_attrs[CHOIR_OP_ATTRS_MAX_BYTES];
  choir_view_t operands[CHOIR_MAX_OPERANDS];  // sources, then destinations
} call_t;

// Room for a printed view.
typedef char view_text_t[160];

static choir_status_t check_dtype(const call_t* call, int32_t i) {
  const choir_op_def_t* def = call->def;
  choir_dtype_t dtype = call->operands[i].dtype;
  choir_dtype_t model = call->operands[i > 1 && def->rest_as_second].dtype;
  uint32_t mask = i == 0 ? def->dtypes : 1u << model;
  if (i == 1 && def->second_dtypes) mask = def->second_dtypes;
  if (i == def->src_max - 1) mask |= def->last_dtypes;
  if ((def->wide_sources >> i & 1) && choir__is_narrow(model))
    mask |= CHOIR_DTYPE_MASK(F32);
  if (mask & (1u << dtype)) return NULL;
  char needed[80] = "";
  for (int d = 0; d < CHOIR_DTYPE_COUNT; ++d) {
    if (!(mask & (1u << d))) continue;
    if (needed[0]) strcat(needed, ", ");
    strcat(needed, choir_dtype_name((choir_dtype_t)d));
  }
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s: source %d is %s; needs %s",
                     def->name, (int)i, choir_dtype_name(dtype), needed);
}

static choir_status_t take_sources(call_t* call) {
  const choir_op_def_t* def = call->def;
  if (call->src_count < def->src_min || call->src_count > def->src_max) {
    if (def->src_min == def->src_max)
      return CHOIR_ERROR(INVALID_ARGUMENT, "%s: got %d sources; needs %d",
                         def->name, (int)call->src_count, (int)def->src_min);
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: got %d sources; needs %d to %d",
                       def->name, (int)call->src_count, (int)def->src_min,
                       (int)def->src_max);
  }
  for (int32_t i = 0; i < call->src_count; ++i) {
    const choir_tensor_t* src = call->srcs[i];
    if (!src)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: source %d is NULL; needs a tensor", def->name,
                         (int)i);
    if (choir_tensor_device(src) != call->device)
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "%s: source %d is on another device (%s); needs the stream's (%s)",
          def->name, (int)i, choir_device_name(choir_tensor_device(src)),
          choir_device_name(call->device));
    call->operands[i] = *choir_tensor_view(src);
    CHOIR_TRY(check_dtype(call, i));
  }
  return NULL;
}

static choir_status_t take_attrs(call_t* call, const void* attrs) {
  const choir_op_def_t* def = call->def;
  call->attrs = NULL;
  if (!def->attrs) {
    if (attrs)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: attributes were given; it takes none", def->name);
    return NULL;
  }
  if (attrs) {
    CHOIR_TRY(choir_struct_check(def->attrs, attrs));
    call->attrs = attrs;
    return NULL;
  }
  if (def->attrs->bytes > CHOIR_OP_ATTRS_MAX_BYTES)
    return CHOIR_ERROR(INTERNAL,
                       "%s: attributes have %zu bytes; at most %d fit",
                       def->name, def->attrs->bytes, CHOIR_OP_ATTRS_MAX_BYTES);
  choir_struct_init(def->attrs, call->default_attrs);
  call->attrs = call->default_attrs;
  return NULL;
}

// ---- Destinations ----

static choir_view_t* dst_view(call_t* call, int32_t i) {
  return &call->operands[call->src_count + i];
}

// Whether the op's results are rounded, so that they can be rounded less. (What
// only overwrites are choices, whose places are told, and optimizer steps.)
static bool makes_numbers(const choir_op_def_t* def) {
  return def->op != CHOIR_OP_CAST && def->op != CHOIR_OP_COPY &&
         def->op != CHOIR_OP_WHERE && !def->index_map && !def->alias &&
         !def->no_accumulate;
}

bool choir__op_takes_dst(choir_op_t op, choir_dtype_t inferred,
                         choir_dtype_t given) {
  return given == inferred ||
         (given == CHOIR_DTYPE_F32 && choir__is_narrow(inferred) &&
          makes_numbers(choir__op_def(op)));
}

// A given destination lies where and how it lies, with the inferred shape.
static choir_status_t check_given(call_t* call, int32_t i) {
  const choir_op_def_t* def = call->def;
  const choir_view_t* needed = dst_view(call, i);
  const choir_view_t* given = choir_tensor_view(call->dsts[i]);
  view_text_t given_text, needed_text;
  if (choir_tensor_device(call->dsts[i]) != call->device)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "%s: destination %d is on another device (%s); needs the stream's (%s)",
        def->name, (int)i,
        choir_device_name(choir_tensor_device(call->dsts[i])),
        choir_device_name(call->device));
  if (!choir__op_takes_dst(def->op, needed->dtype, given->dtype) ||
      !choir_view_same_shape(given, needed)) {
    choir_view_t shape = *needed;
    choir_view_set_contiguous(&shape);
    return CHOIR_ERROR(
        INVALID_ARGUMENT, "%s: destination %d is %s; needs %s", def->name,
        (int)i, choir_view_print(given, given_text, sizeof given_text),
        choir_view_print(&shape, needed_text, sizeof needed_text));
  }
  if (choir__view_repeats(given))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: destination %d, %s, repeats elements; needs one "
                       "place for each",
                       def->name, (int)i,
                       choir_view_print(given, given_text, sizeof given_text));
  return NULL;
}

// The destinations of an optimizer step are its sources.
static choir_status_t take_inplace(call_t* call, int32_t i) {
  int32_t source = call->def->inplace[i] - 1;
  choir_tensor_t* src = call->srcs[source];
  if (!call->dsts[i]) {
    choir_tensor_retain(src);
    call->dsts[i] = src;
    call->made[i] = true;
    return NULL;
  }
  if (!choir__views_equal(choir_tensor_view(call->dsts[i]),
                          choir_tensor_view(src)))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: destination %d is another tensor; needs source %d",
                       call->def->name, (int)i, (int)source);
  return NULL;
}

static choir_status_t take_destinations(call_t* call) {
  const choir_op_def_t* def = call->def;
  for (int32_t i = 0; i < def->dst_count; ++i) {
    if (def->inplace[i]) CHOIR_TRY(take_inplace(call, i));
    if (call->dsts[i]) {
      CHOIR_TRY(check_given(call, i));
    } else if (call->accumulate) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: accumulate without destination %d; needs one to "
                         "add to",
                         def->name, (int)i);
    } else {
      CHOIR_TRY_NOTE(choir_tensor_create_layout(call->device, dst_view(call, i),
                                                &call->dsts[i]),
                     "%s: destination %d", def->name, (int)i);
      call->made[i] = true;
    }
    *dst_view(call, i) = *choir_tensor_view(call->dsts[i]);
  }
  return NULL;
}

static choir_status_t check_overlap(call_t* call) {
  const choir_op_def_t* def = call->def;
  for (int32_t i = 0; i < def->dst_count; ++i) {
    const choir_view_t* dst = dst_view(call, i);
    for (int32_t s = 0; s < call->src_count; ++s) {
      const choir_view_t* src = &call->operands[s];
      bool may_be_source = def->elementwise || def->inplace[i] == s + 1;
      if (!choir__views_overlap(dst, src) ||
          (may_be_source && choir__views_equal(dst, src)))
        continue;
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "%s: destination %d shares memory with source %d; needs %s",
          def->name, (int)i, (int)s,
          def->elementwise ? "the same elements in the same layout, or others"
                           : "memory of its own");
    }
    for (int32_t other = 0; other < i; ++other) {
      if (!choir__views_overlap(dst, dst_view(call, other))) continue;
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "%s: destination %d shares memory with destination %d; needs memory "
          "of its own",
          def->name, (int)i, (int)other);
    }
  }
  return NULL;
}

// ---- Records ----

static choir_status_t submit_copy(const call_t* call, const choir_view_t* src,
                                  const choir_view_t* dst) {
  choir_view_t operands[2] = {*src, *dst};
  const choir_record_t record = {.operation = choir__operation(CHOIR_OP_COPY),
                                 .operands = operands,
                                 .src_count = 1,
                                 .dst_count = 1,
                                 .accumulate = call->accumulate};
  return choir_stream_submit(call->stream, &record);
}

static choir_status_t submit_op(call_t* call) {
  const choir_op_def_t* def = call->def;
  if (def->elementwise) {
    // The destination's shape is the broadcast one.
    for (int32_t i = 0; i < call->src_count; ++i) {
      choir_view_t src = call->operands[i];
      CHOIR_TRY_NOTE(
          choir_view_broadcast(&src, dst_view(call, 0)->ndim,
                               dst_view(call, 0)->shape, &call->operands[i]),
          "%s: source %d", def->name, (int)i);
    }
  }
  CHOIR_TRY(check_overlap(call));
  choir_record_t record = {
      .operation = choir__operation(def->op),
      .operands = call->operands,
      .src_count = call->src_count,
      .dst_count = def->dst_count,
      .accumulate = call->accumulate,
      .attrs = call->attrs,
      .attrs_bytes = def->attrs ? def->attrs->bytes : 0,
      .at_step = def->at_step,
      .segment = call->segment,
  };
  return call->calls ? choir__op_calls_take(call->calls, &record)
                     : choir_stream_submit(call->stream, &record);
}

// reshape, transpose and their like: a view when strides can say it, else one
// copy, by the kernel of the op `copy`.
static choir_status_t run_view_op(call_t* call) {
  const choir_op_def_t* def = call->def;
  const choir_view_t* src = &call->operands[0];
  choir_view_t alias = *src;
  bool has_alias = def->alias(src, call->attrs, &alias);
  if (has_alias && !call->dsts[0] && !call->accumulate) {
    CHOIR_TRY_NOTE(choir_tensor_from_view(&alias, &call->dsts[0]), "%s",
                   def->name);
    call->made[0] = true;
    return NULL;
  }
  bool is_reorder = !call->dsts[0];
  CHOIR_TRY(take_destinations(call));
  CHOIR_TRY(check_overlap(call));
  const choir_view_t* dst = dst_view(call, 0);
  if (choir_view_count(dst) == 0) return NULL;
  if (is_reorder)
    choir__count_reorder((uint64_t)choir_view_count(dst) *
                         choir_dtype_bytes(dst->dtype));
  if (has_alias) return submit_copy(call, &alias, dst);
  // The same elements in row-major order: give the destination the source's
  // shape instead.
  choir_view_t dst_alias;
  if (choir_view_reshape(dst, src->ndim, src->shape, &dst_alias))
    return submit_copy(call, src, &dst_alias);
  return submit_op(call);
}

static choir_status_t run(call_t* call, const void* attrs) {
  const choir_op_def_t* def = call->def;
  CHOIR_TRY(take_sources(call));
  CHOIR_TRY(take_attrs(call, attrs));
  if (call->accumulate && def->no_accumulate)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: accumulate was asked for; it only overwrites",
                       def->name);
  CHOIR_TRY(choir__op_infer(def->op, call->operands, call->src_count,
                            call->attrs, dst_view(call, 0)));
  if (def->alias) return run_view_op(call);
  CHOIR_TRY(take_destinations(call));
  for (int32_t i = 0; i < def->dst_count; ++i) {
    if (choir_view_count(dst_view(call, i)) > 0) return submit_op(call);
  }
  return NULL;
}

choir_status_t choir__op_run(choir_stream_t* stream, choir_op_calls_t* calls,
                             choir_op_t op, choir_tensor_t* const* srcs,
                             int32_t src_count, const void* attrs,
                             bool accumulate, int64_t segment,
                             choir_tensor_t** dsts) {
  const choir_op_def_t* def = choir__op_def(op);
  if (!def)
    return CHOIR_ERROR(INVALID_ARGUMENT, "op: %d is no op; needs 0 .. %d",
                       (int)op, CHOIR_OP_COUNT - 1);
  if (!stream || !dsts || (!srcs && src_count > 0))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: stream, srcs or dsts is NULL; needs all three",
                       def->name);
  // Not cleared as a whole: the views are large and each is written before it
  // is read.
  call_t call;
  call.def = def;
  call.stream = stream;
  call.calls = calls;
  call.device = choir_stream_device(stream);
  call.srcs = srcs;
  call.src_count = src_count;
  call.accumulate = accumulate;
  call.segment = segment;
  call.dsts = dsts;
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i) call.made[i] = false;
  choir_status_t status = run(&call, attrs);
  if (!status) return NULL;
  for (int32_t i = 0; i < def->dst_count; ++i) {
    if (!call.made[i]) continue;
    choir_tensor_release(dsts[i]);
    dsts[i] = NULL;
  }
  return status;
}

choir_status_t choir_op_run(choir_stream_t* stream, choir_op_t op,
                            choir_tensor_t* const* srcs, int32_t src_count,
                            const void* attrs, bool accumulate,
                            choir_tensor_t** dsts) {
  return choir__op_run(stream, NULL, op, srcs, src_count, attrs, accumulate, 0,
                       dsts);
}
