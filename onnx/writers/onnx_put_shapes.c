// SPDX-License-Identifier: Apache-2.0
// Ops whose attributes name sizes. Where a size follows the batch, the file
// must not have the number of this step: for such a place there is -1 in a
// Reshape, 1 in an Expand, and an open end in a Slice.
#include <string.h>

#include "onnx/onnx_put_def.h"

// The first dimension that follows the batch, or ndim.
static int32_t open_axis(const choir_view_t* now, const choir_view_t* other) {
  int32_t axis = 0;
  while (axis < now->ndim && now->shape[axis] == other->shape[axis]) ++axis;
  return axis;
}

// Elements behind dimension `axis`: its stride in row-major order.
static int64_t behind(const choir_view_t* view, int32_t axis) {
  int64_t count = 1;
  for (int32_t i = axis + 1; i < view->ndim; ++i) count *= view->shape[i];
  return count;
}

// The dimension of a reshape's result that follows the batch, or -1. A reshape
// leaves each sample in its places, in row-major order; so it is the one that
// the samples are counted in. Where they are torn apart, as by one whose
// elements nobody reads, the first of the same size.
static int32_t open_result(const choir__onnx_put_t* p,
                           const choir_view_t* result, int64_t* out_inner) {
  const choir_view_t* now = &p->now[0];
  const int32_t axis = open_axis(now, &p->other[0]);
  *out_inner = 1;
  if (axis == now->ndim) return -1;
  const int64_t size = now->shape[axis], inner = p->inner[0];
  const int64_t step = inner * behind(now, axis);
  const int64_t batch = choir__onnx_put_batch_now(p);
  const int64_t samples = size % batch == 0 ? batch : size / inner;
  for (int32_t i = 0; i < result->ndim; ++i) {
    const int64_t own = behind(result, i);
    if (own < 1 || step < 1 || samples < 1 || step % own != 0 ||
        own * result->shape[i] % (step * samples) != 0)
      continue;
    *out_inner = step / own;
    return i;
  }
  for (int32_t i = 0; i < result->ndim; ++i)
    if (result->shape[i] == size) return i;
  return -1;
}

static const choir_view_t* result_of(const choir__onnx_put_t* p) {
  return choir_var_view(p->entry->results[0]);
}

static void reshape_other(const choir__onnx_put_t* p,
                          choir_reshape_attrs_t* attrs) {
  const choir_view_t* result = result_of(p);
  int64_t inner;
  const int32_t axis = open_result(p, result, &inner);
  memcpy(attrs->shape, result->shape, sizeof attrs->shape);
  if (axis >= 0) attrs->shape[axis] = -1;
}

// Whether dimension i of a broadcast's result is the batch's, which the source
// does not have there.
static bool is_batch(const choir__onnx_put_t* p, int32_t i, int64_t source) {
  const int64_t batch = choir__onnx_put_batch_now(p);
  return i == 0 && source == 1 && batch > 1 && result_of(p)->shape[0] == batch;
}

// The sizes of a broadcast's source for dimension i of the result; 1: none.
static int64_t source_size(const choir_view_t* source,
                           const choir_view_t* result, int32_t i) {
  const int32_t own = i - (result->ndim - source->ndim);
  return own < 0 ? 1 : source->shape[own];
}

static void broadcast_other(const choir__onnx_put_t* p,
                            choir_broadcast_to_attrs_t* attrs) {
  const choir_view_t* result = result_of(p);
  for (int32_t i = 0; i < result->ndim; ++i) {
    const int64_t now = source_size(&p->now[0], result, i);
    const int64_t other = source_size(&p->other[0], result, i);
    attrs->shape[i] = now != other          ? other
                      : is_batch(p, i, now) ? choir__onnx_put_batch_other(p)
                                            : result->shape[i];
  }
}

// Whether a slice goes to the end of a dimension that follows the batch.
static bool is_open_slice(const choir__onnx_put_t* p,
                          const choir_slice_attrs_t* attrs) {
  const int64_t now = p->now[0].shape[attrs->axis];
  return now != p->other[0].shape[attrs->axis] && attrs->stop >= now;
}

int64_t choir__onnx_put_inner(const choir__onnx_put_t* p,
                              const choir_view_t* now,
                              const choir_view_t* other) {
  int64_t inner = 1;
  if (p->entry->op == CHOIR_OP_RESHAPE) {
    (void)open_result(p, now, &inner);
    return inner;
  }
  // That of a source with a dimension of the same size.
  const int32_t axis = open_axis(now, other);
  for (int32_t i = 0; axis < now->ndim && i < p->entry->src_count; ++i) {
    const int32_t own = open_axis(&p->now[i], &p->other[i]);
    if (own < p->now[i].ndim && p->now[i].shape[own] == now->shape[axis])
      return p->inner[i];
  }
  return 1;
}

void choir__onnx_put_other_attrs(choir__onnx_put_t* p, void* attrs) {
  switch ((int)p->entry->op) {
    case CHOIR_OP_RESHAPE:
      reshape_other(p, attrs);
      break;
    case CHOIR_OP_BROADCAST_TO:
      broadcast_other(p, attrs);
      break;
    case CHOIR_OP_SLICE: {
      choir_slice_attrs_t* slice = attrs;
      if (is_open_slice(p, slice)) slice->stop = p->other[0].shape[slice->axis];
      break;
    }
    default:
      break;
  }
}

// In a shape that Reshape takes 0 stands for the source's size, unless the
// result has no elements.
void choir__onnx_put_reshape(choir__onnx_put_t* p) {
  const choir_view_t* result = result_of(p);
  choir_reshape_attrs_t attrs = *ATTRS(reshape);
  const bool is_empty = choir_view_count(result) == 0;
  if (is_empty)
    memcpy(attrs.shape, result->shape, sizeof attrs.shape);
  else
    reshape_other(p, &attrs);
  const char* y = NODE("Reshape", SRC(0),
                       choir__onnx_put_numbers(p, result->ndim, attrs.shape));
  if (is_empty) choir__onnx_put_int(p, "allowzero", 1);
  DST(0, y);
}

// Flatten of ONNX gives two dimensions always.
void choir__onnx_put_flatten(choir__onnx_put_t* p) {
  int64_t shape[CHOIR_MAX_NDIM] = {0};
  const int32_t axis = (int32_t)ATTRS(flatten)->axis;
  shape[axis] = -1;
  DST(0, NODE("Reshape", SRC(0),
              choir__onnx_put_numbers(p, result_of(p)->ndim, shape)));
}

void choir__onnx_put_transpose(choir__onnx_put_t* p) {
  const choir_view_t* view = SRC_VIEW(0);
  int64_t axes[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < view->ndim; ++i) {
    axes[i] = ATTRS(transpose)->axes[i];
    if (ATTRS(transpose)->axes[0] < 0) axes[i] = view->ndim - 1 - i;
  }
  const char* y = NODE("Transpose", SRC(0));
  choir__onnx_put_ints(p, "perm", view->ndim, axes);
  DST(0, y);
}

void choir__onnx_put_broadcast_to(choir__onnx_put_t* p) {
  const choir_view_t* result = result_of(p);
  int64_t sizes[CHOIR_MAX_NDIM];
  const char* batch = NULL;
  for (int32_t i = 0; i < result->ndim; ++i) {
    const int64_t now = source_size(&p->now[0], result, i);
    const bool follows = now != source_size(&p->other[0], result, i);
    sizes[i] = follows ? 1 : result->shape[i];
    if (!follows && is_batch(p, i, now)) batch = choir__onnx_put_batch(p);
  }
  const char* shape =
      batch ? choir__onnx_put_numbers(p, result->ndim - 1, sizes + 1)
            : choir__onnx_put_numbers(p, result->ndim, sizes);
  if (batch) {
    shape = NODE("Concat", batch, shape);
    choir__onnx_put_int(p, "axis", 0);
  }
  DST(0, NODE("Expand", SRC(0), shape));
}

void choir__onnx_put_slice(choir__onnx_put_t* p) {
  const choir_slice_attrs_t* a = ATTRS(slice);
  const int64_t stop = is_open_slice(p, a) ? INT64_MAX : a->stop;
  DST(0, NODE("Slice", SRC(0), NUMBERS(a->start), NUMBERS(stop),
              NUMBERS(a->axis), NUMBERS(a->step)));
}
