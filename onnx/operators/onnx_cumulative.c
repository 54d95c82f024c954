// SPDX-License-Identifier: Apache-2.0
// Sums and products of all elements up to each along an axis. They are made in
// log2(n) rounds, each of which combines an element with the one 1, 2, 4, ...
// places before it, so that gradients flow and no device needs a kernel.
#include "onnx/onnx_call_def.h"

typedef struct scan_s {
  int64_t axis;
  int64_t size;  // of the axis
  bool is_product;
  bool is_reverse;
} scan_t;

// x moved by `places` along the axis; 0 or 1 comes in.
static choir_var_t* moved(choir__onnx_call_t* c, const scan_t* scan,
                          choir_var_t* x, int64_t places) {
  choir_pad_attrs_t pad = {.mode = CHOIR_PAD_CONSTANT,
                           .value = scan->is_product ? 1 : 0};
  const int64_t start = scan->is_reverse ? places : 0;
  (scan->is_reverse ? pad.after : pad.before)[scan->axis] = places;
  choir_var_t* part =
      choir__onnx_slice(c, x, scan->axis, start, start + scan->size - places);
  return DO(pad, part, &pad);
}

static void cumulate(choir__onnx_call_t* c, bool is_product) {
  const choir_view_t* view = VIEW(0);
  int64_t axis = 0;
  const int32_t count = choir__onnx_read_ints(c, 1, &axis, 1);
  if (!view || !CALL_IS_OK) return;
  if (count != 1) {
    FAIL(INVALID_ARGUMENT, "input 1, the axis, is missing; needs one number");
    return;
  }
  if (!choir__onnx_axis(c, &axis, view->ndim)) return;
  const scan_t scan = {.axis = axis,
                       .size = view->shape[axis],
                       .is_product = is_product,
                       .is_reverse = choir__onnx_int(c, "reverse", 0) != 0};
  choir_var_t* x = IN(0);
  for (int64_t step = 1; step > 0 && step < scan.size; step *= 2) {
    choir_var_t* before = moved(c, &scan, x, step);
    x = is_product ? DO(mul, x, before) : DO(add, x, before);
  }
  if (choir__onnx_int(c, "exclusive", 0) != 0 && scan.size > 0)
    x = moved(c, &scan, x, 1);
  OUT(0, x);
}

void choir__onnx_op_cum_sum(choir__onnx_call_t* c) { cumulate(c, false); }
void choir__onnx_op_cum_prod(choir__onnx_call_t* c) { cumulate(c, true); }
