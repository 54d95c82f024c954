// SPDX-License-Identifier: Apache-2.0
// Ops that choose and place elements.
#include "onnx/onnx_put_def.h"

// Concat, Gather and others that have an axis and nothing else; the attributes
// of all of them begin with it.
void choir__onnx_put_along(choir__onnx_put_t* p) {
  const char* in[CHOIR_MAX_OPERANDS + 1] = {NULL};
  for (int32_t i = 0; i < p->entry->src_count; ++i) in[i] = SRC(i);
  const char* y = choir__onnx_put_node(p, p->type, in);
  const int64_t axis = p->entry->op == CHOIR_OP_CONCAT ? ATTRS(concat)->axis
                                                       : ATTRS(gather)->axis;
  choir__onnx_put_int(p, "axis", axis);
  DST(0, y);
}

// Of whole numbers, and chosen then: runtimes know OneHot for few dtypes.
void choir__onnx_put_one_hot(choir__onnx_put_t* p) {
  const choir_one_hot_attrs_t* a = ATTRS(one_hot);
  const choir_dtype_t dtype = (choir_dtype_t)a->dtype;
  const char* ids = choir__onnx_put_cast(p, SRC(0), CHOIR_DTYPE_I64);
  const char* hot =
      NODE("OneHot", ids, NUMBER(CHOIR_DTYPE_I64, a->depth), NUMBERS(0, 1));
  choir__onnx_put_int(p, "axis", a->axis);
  DST(0, NODE("Where", choir__onnx_put_cast(p, hot, CHOIR_DTYPE_BOOL),
              NUMBER(dtype, a->on), NUMBER(dtype, a->off)));
}

void choir__onnx_put_pad(choir__onnx_put_t* p) {
  static const char* const modes[] = {"constant", "reflect", "edge"};
  const choir_pad_attrs_t* a = ATTRS(pad);
  const choir_view_t* x = SRC_VIEW(0);
  int64_t pads[2 * CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < x->ndim; ++i) {
    pads[i] = a->before[i];
    pads[x->ndim + i] = a->after[i];
    if (a->mode == CHOIR_PAD_REFLECT &&
        (a->before[i] >= x->shape[i] || a->after[i] >= x->shape[i]) &&
        a->before[i] + a->after[i] > 0)
      REFUSE(UNIMPLEMENTED, "ONNX's Pad mirrors no more than x has");
  }
  const char* sizes = choir__onnx_put_numbers(p, 2 * x->ndim, pads);
  const char* y = a->mode == CHOIR_PAD_CONSTANT
                      ? NODE("Pad", SRC(0), sizes, NUMBER(x->dtype, a->value))
                      : NODE("Pad", SRC(0), sizes);
  choir__onnx_put_text(p, "mode", modes[a->mode]);
  DST(0, y);
}

void choir__onnx_put_tile(choir__onnx_put_t* p) {
  const choir_tile_attrs_t* a = ATTRS(tile);
  const int32_t own = SRC_VIEW(0)->ndim, given = (int32_t)a->ndim;
  const int32_t ndim = own > given ? own : given;
  const char* x = SRC(0);
  int64_t repeats[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < ndim; ++i)
    repeats[i] = i < ndim - given ? 1 : a->repeats[i - (ndim - given)];
  if (own < ndim) {
    int64_t axes[CHOIR_MAX_NDIM];
    for (int32_t i = 0; i < ndim - own; ++i) axes[i] = i;
    x = NODE("Unsqueeze", x, choir__onnx_put_numbers(p, ndim - own, axes));
  }
  DST(0, NODE("Tile", x, choir__onnx_put_numbers(p, ndim, repeats)));
}

// A dimension behind the axis, of so many equal elements, and both as one.
void choir__onnx_put_repeat(choir__onnx_put_t* p) {
  const choir_repeat_attrs_t* a = ATTRS(repeat);
  const int32_t ndim = SRC_VIEW(0)->ndim, axis = (int32_t)a->axis;
  if (ndim == CHOIR_MAX_NDIM ||
      choir_view_count(choir_var_view(p->entry->results[0])) == 0) {
    REFUSE(
        UNIMPLEMENTED,
        "%d dimensions, each element %lld times; ONNX needs at most %d, and a "
        "result with elements",
        ndim, (long long)a->repeats, CHOIR_MAX_NDIM - 1);
    return;
  }
  int64_t sizes[CHOIR_MAX_NDIM], shape[CHOIR_MAX_NDIM] = {0};
  for (int32_t i = 0; i <= ndim; ++i) sizes[i] = i == axis + 1 ? a->repeats : 1;
  const char* wide =
      NODE("Expand", NODE("Unsqueeze", SRC(0), NUMBERS(axis + 1)),
           choir__onnx_put_numbers(p, ndim + 1, sizes));
  // Reshape's 0 is the source's size at the same place, so before the axis
  // alone.
  for (int32_t i = axis + 1; i < ndim; ++i) shape[i] = SRC_VIEW(0)->shape[i];
  shape[axis] = -1;
  for (int32_t i = axis + 1; i < ndim; ++i)
    if (p->now[0].shape[i] != p->other[0].shape[i])
      REFUSE(UNIMPLEMENTED,
             "the batch lies behind the axis; fixed_batch writes "
             "a file for the size that there is");
  DST(0, NODE("Reshape", wide, choir__onnx_put_numbers(p, ndim, shape)));
}
