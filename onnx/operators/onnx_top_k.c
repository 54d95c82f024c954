// SPDX-License-Identifier: Apache-2.0
// The largest or smallest elements along an axis. The host finds their places;
// the elements are gathered from there, so that gradients flow.
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_call_def.h"

typedef struct top_attrs_s {
  int64_t axis;
  int64_t k;
  bool is_smallest;
  bool is_unsigned;  // 64 bits that lie in I64
} top_attrs_t;

typedef struct item_s {
  uint64_t key;  // less: comes first
  int64_t place;
} item_t;

static const uint64_t high_bit = UINT64_C(1) << 63;

// In the order of their numbers; NaNs are the largest, and 0 is -0.
static uint64_t key_of(const choir__onnx_array_t* x, int64_t at,
                       bool is_unsigned) {
  uint64_t bits;
  if (!choir_dtype_is_float(x->view.dtype)) {
    bits = (uint64_t)choir__onnx_int_at(x, at);
    return is_unsigned ? bits : bits ^ high_bit;
  }
  const double number = choir__onnx_number_at(x, at) + 0.0;
  if (number != number) return UINT64_MAX;
  memcpy(&bits, &number, sizeof bits);
  return bits & high_bit ? ~bits : bits | high_bit;
}

static int compare(const void* left, const void* right) {
  const item_t *a = left, *b = right;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
  return a->place < b->place ? -1 : 1;
}

static choir_status_t find_top(const choir__onnx_array_t* srcs,
                               const choir__onnx_array_t* dsts,
                               const void* data) {
  const top_attrs_t* attrs = data;
  const choir_view_t* x = &srcs[0].view;
  const int64_t size = x->shape[attrs->axis];
  if (dsts[0].count == 0) return NULL;
  int64_t inner = 1;
  for (int32_t i = (int32_t)attrs->axis + 1; i < x->ndim; ++i)
    inner *= x->shape[i];
  item_t* items = malloc(sizeof *items * (size_t)size);
  if (!items)
    return CHOIR_ERROR(OUT_OF_MEMORY, "no memory to sort %lld elements",
                       (long long)size);
  int64_t* places = dsts[0].data;
  for (int64_t lane = 0; lane < srcs[0].count / size; ++lane) {
    const int64_t outer = lane / inner, rest = lane % inner;
    for (int64_t i = 0; i < size; ++i) {
      const uint64_t key = key_of(&srcs[0], (outer * size + i) * inner + rest,
                                  attrs->is_unsigned);
      items[i] = (item_t){attrs->is_smallest ? key : ~key, i};
    }
    qsort(items, (size_t)size, sizeof *items, compare);
    for (int64_t i = 0; i < attrs->k; ++i)
      places[(outer * attrs->k + i) * inner + rest] = items[i].place;
  }
  free(items);
  return NULL;
}

void choir__onnx_op_top_k(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t k = 0, axis = choir__onnx_int(c, "axis", -1);
  if (HAS(1)) {
    if (choir__onnx_read_ints(c, 1, &k, 1) != 1 && CALL_IS_OK)
      FAIL(INVALID_ARGUMENT, "K has no element; needs one");
  } else if (choir__onnx_has_attr(c, "k")) {
    k = choir__onnx_int(c, "k", 0);
  } else {
    FAIL(INVALID_ARGUMENT, "K, input 1, is missing");
  }
  if (!x || !choir__onnx_axis(c, &axis, x->ndim)) return;
  if (k < 0 || k > x->shape[axis]) {
    FAIL(INVALID_ARGUMENT, "K is %lld; dimension %lld has %lld elements",
         (long long)k, (long long)axis, (long long)x->shape[axis]);
    return;
  }
  const top_attrs_t attrs = {
      .axis = axis,
      .k = k,
      .is_smallest = choir__onnx_int(c, "largest", 1) == 0,
      .is_unsigned = TYPE(0) == CHOIR_ONNX_UINT64};
  choir_view_t dst = *x;
  dst.dtype = CHOIR_DTYPE_I64;
  dst.shape[axis] = k;
  choir_var_t* srcs[] = {IN(0)};
  choir_var_t* places;
  choir__onnx_host(c, "top-k", find_top, &attrs, sizeof attrs, srcs, 1, &dst, 1,
                   &places);
  const choir_gather_elements_attrs_t along = {.axis = axis};
  OUT(0, DO(gather_elements, srcs[0], places, &along));
  OUT_AS(1, places, INT64);
}
