// SPDX-License-Identifier: Apache-2.0
// Loops of the host's as records, so that a recorded step runs them again.
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_internal.h"

typedef struct loop_attrs_s {
  choir__onnx_loop_t loop;
  _Alignas(16) char attrs[CHOIR__ONNX_LOOP_BYTES];
} loop_attrs_t;

// Rows of the last dimension, in order, from a view with any strides.
static void pack(const choir_view_t* view, char* to) {
  const size_t width = choir_dtype_bytes(view->dtype);
  const char* from = choir_buffer_data(view->buffer);
  const int64_t count = choir_view_count(view);
  int64_t index[CHOIR_MAX_NDIM] = {0};
  int64_t place = view->offset;
  for (int64_t k = 0; k < count; ++k) {
    memcpy(to + (size_t)k * width, from + (size_t)place * width, width);
    for (int32_t d = view->ndim - 1; d >= 0; --d) {
      place += view->strides[d];
      if (++index[d] < view->shape[d]) break;
      place -= view->strides[d] * view->shape[d];
      index[d] = 0;
    }
  }
}

static choir_status_t set_array(const choir_view_t* view,
                                choir__onnx_array_t* out_array,
                                void** out_packed) {
  const size_t width = choir_dtype_bytes(view->dtype);
  out_array->view = *view;
  out_array->count = choir_view_count(view);
  char* data = choir_buffer_data(view->buffer);
  out_array->data = data + (size_t)view->offset * width;
  if (choir_view_is_contiguous(view) || out_array->count == 0) return NULL;
  *out_packed = malloc((size_t)out_array->count * width);
  if (!*out_packed)
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a copy");
  pack(view, *out_packed);
  out_array->data = *out_packed;
  choir_view_set_contiguous(&out_array->view);
  return NULL;
}

static choir_status_t run_loop(const choir_record_t* record,
                               choir_stream_t* stream) {
  (void)stream;
  const loop_attrs_t* attrs = record->attrs;
  choir__onnx_array_t arrays[CHOIR_MAX_OPERANDS];
  void* packed[CHOIR_MAX_OPERANDS] = {NULL};
  const int32_t count = record->src_count + record->dst_count;
  choir_status_t status = NULL;
  for (int32_t i = 0; !status && i < count; ++i)
    status = set_array(&record->operands[i], &arrays[i], &packed[i]);
  if (!status)
    status = attrs->loop(arrays, arrays + record->src_count, attrs->attrs);
  for (int32_t i = 0; i < count; ++i) free(packed[i]);
  return status;
}

static const choir_kernel_t loop_kernel = {.name = "onnx/host",
                                           .run = run_loop};

static choir_status_t make_results(choir__onnx_call_t* c,
                                   const choir_view_t* dsts, int32_t dst_count,
                                   choir_tensor_t** tensors) {
  choir_device_t* device = choir_scope_device(c->scope);
  for (int32_t i = 0; i < dst_count; ++i) {
    choir_view_t view;
    CHOIR_TRY(
        choir_view_make(dsts[i].dtype, dsts[i].ndim, dsts[i].shape, &view));
    CHOIR_TRY(choir_device_check_memory(
        device,
        (uint64_t)choir_view_count(&view) * choir_dtype_bytes(view.dtype)));
    CHOIR_TRY(choir_tensor_create(device, view.dtype, view.ndim, view.shape,
                                  &tensors[i]));
  }
  return NULL;
}

static choir_status_t submit(choir__onnx_call_t* c, const char* name,
                             const loop_attrs_t* attrs,
                             choir_var_t* const* srcs, int32_t src_count,
                             choir_tensor_t* const* results,
                             int32_t dst_count) {
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  for (int32_t i = 0; i < src_count; ++i)
    operands[i] = *choir_var_view(srcs[i]);
  for (int32_t i = 0; i < dst_count; ++i)
    operands[src_count + i] = *choir_tensor_view(results[i]);
  const choir_record_t record = {.kernel = &loop_kernel,
                                 .operands = operands,
                                 .src_count = src_count,
                                 .dst_count = dst_count,
                                 .attrs = attrs,
                                 .attrs_bytes = sizeof *attrs,
                                 .label = c->node->label};
  CHOIR_TRY_NOTE(choir_stream_submit(choir_scope_stream(c->scope), &record),
                 "%s", name);
  return NULL;
}

static choir_status_t no_gradient(void* self, choir_tensor_t* dy,
                                  choir_tensor_t** out_grads) {
  (void)self, (void)dy, (void)out_grads;
  return CHOIR_ERROR(UNIMPLEMENTED,
                     "onnx: Choir computes it by a loop that has no gradient");
}

// Whether a result has to be on the tape: all are where a file is written;
// those of numbers that Gradient would otherwise take for constants are.
static bool is_on_tape(const choir__onnx_call_t* c, choir_var_t* const* srcs,
                       int32_t src_count, const choir_tensor_t* result) {
  if (choir_scope_step(c->scope)->keeps_all) return true;
  if (!c->run->before || !choir_dtype_is_float(choir_tensor_dtype(result)))
    return false;
  for (int32_t i = 0; i < src_count; ++i)
    if (choir_var_wants_grad(srcs[i])) return true;
  return false;
}

void choir__onnx_host(choir__onnx_call_t* c, const char* name,
                      choir__onnx_loop_t loop, const void* attrs, size_t bytes,
                      choir_var_t* const* srcs, int32_t src_count,
                      const choir_view_t* dsts, int32_t dst_count,
                      choir_var_t** outs) {
  for (int32_t i = 0; i < dst_count; ++i)
    outs[i] = choir_scope_fail(c->scope, NULL);
  for (int32_t i = 0; i < src_count; ++i)
    if (!choir_var_view(srcs[i])) {
      if (CALL_IS_OK)
        FAIL(INVALID_ARGUMENT, "%s: input %d is missing", name, i);
      return;
    }
  if (!CALL_IS_OK) return;
  if (!choir_device_is_host(choir_scope_device(c->scope))) {
    FAIL(UNIMPLEMENTED,
         "%s: device %s has no kernel, and the host does not see "
         "its memory",
         name, choir_device_name(choir_scope_device(c->scope)));
    return;
  }
  if (bytes > CHOIR__ONNX_LOOP_BYTES ||
      src_count + dst_count > CHOIR_MAX_OPERANDS) {
    FAIL(INTERNAL, "%s: %zu bytes of attributes, %d operands", name, bytes,
         src_count + dst_count);
    return;
  }
  loop_attrs_t kept = {.loop = loop};
  if (bytes > 0) memcpy(kept.attrs, attrs, bytes);
  choir_tensor_t* results[CHOIR_MAX_OPERANDS] = {NULL};
  choir_status_t status = make_results(c, dsts, dst_count, results);
  if (!status)
    status = submit(c, name, &kept, srcs, src_count, results, dst_count);
  const choir_custom_op_t op = {.name = name, .backward = no_gradient};
  for (int32_t i = 0; !status && i < dst_count; ++i)
    outs[i] = is_on_tape(c, srcs, src_count, results[i])
                  ? choir_scope_record_custom(c->scope, &op, srcs, src_count,
                                              results[i])
                  : choir_scope_input(c->scope, results[i]);
  for (int32_t i = 0; i < dst_count; ++i) choir_tensor_release(results[i]);
  if (status) choir__onnx_fail(c, status);
}
