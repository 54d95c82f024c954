// SPDX-License-Identifier: Apache-2.0
// Operators that say a tensor's shape, give its elements another shape or
// order, put tensors one after the other or repeat them.
#include <string.h>

#include "onnx/operators/onnx_sequences_internal.h"
#include "onnx/operators/onnx_shapes_internal.h"

// ---- Shared ----

choir_var_t* choir__shapes_range(choir__onnx_call_t* c, int64_t start,
                                 int64_t step, int64_t count) {
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_I64, 1, &count))
    return choir_scope_fail(c->scope, NULL);
  int64_t* numbers =
      choir_scope_alloc(c->scope, sizeof(int64_t) * ((size_t)count + 1));
  if (!numbers) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; i < count; ++i)
    numbers[i] = (int64_t)((uint64_t)start + (uint64_t)i * (uint64_t)step);
  return choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count, numbers);
}

choir_var_t* choir__shapes_expand(choir__onnx_call_t* c, choir_var_t* x,
                                  int32_t ndim, const int64_t* shape) {
  choir_broadcast_to_attrs_t attrs = {.ndim = ndim};
  memcpy(attrs.shape, shape, sizeof(int64_t) * (size_t)ndim);
  return DO(broadcast_to, x, &attrs);
}

choir_var_t* choir__shapes_gather(choir__onnx_call_t* c, choir_var_t* x,
                                  choir_var_t* indices, int64_t axis) {
  return DO(gather, x, indices, &(choir_gather_attrs_t){.axis = axis});
}

choir_var_t* choir__shapes_along(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t ndim, int64_t axis) {
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < ndim; ++k) shape[k] = k == axis ? -1 : 1;
  const choir_view_t* view = choir_var_view(x);
  if (view) shape[axis] = choir_view_count(view);
  return choir__onnx_reshape(c, x, ndim, shape);
}

// ---- Order ----

void choir__onnx_op_transpose(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  int64_t axes[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < x->ndim; ++k) axes[k] = x->ndim - 1 - k;
  if (choir__onnx_has_attr(c, "perm")) {
    int32_t count;
    const int64_t* perm = choir__onnx_ints(c, "perm", &count);
    if (count != x->ndim) {
      FAIL(INVALID_ARGUMENT, "perm has %d axes; x has %d dimensions", count,
           x->ndim);
      return;
    }
    for (int32_t k = 0; k < count; ++k) {
      axes[k] = perm[k];
      if (!choir__onnx_axis(c, &axes[k], x->ndim)) return;
    }
  }
  OUT(0, choir__onnx_transpose(c, IN(0), axes));
}

static choir_var_t* to_depth(choir__onnx_call_t* c, const int64_t* sizes,
                             int64_t size, bool is_crd) {
  const int64_t n = sizes[0], height = sizes[2] / size, width = sizes[3] / size;
  choir_var_t* y = choir__onnx_reshape(
      c, IN(0), 6, (int64_t[]){n, sizes[1], height, size, width, size});
  y = choir__onnx_transpose(
      c, y,
      is_crd ? (int64_t[]){0, 1, 3, 5, 2, 4} : (int64_t[]){0, 3, 5, 1, 2, 4});
  int64_t depth;
  if (!choir__onnx_times(c, sizes[1], size * size, &depth))
    return choir_scope_fail(c->scope, NULL);
  return choir__onnx_reshape(c, y, 4, (int64_t[]){n, depth, height, width});
}

static choir_var_t* from_depth(choir__onnx_call_t* c, const int64_t* sizes,
                               int64_t size, bool is_crd) {
  const int64_t n = sizes[0], height = sizes[2], width = sizes[3];
  const int64_t depth = sizes[1] / (size * size);
  choir_var_t* y = choir__onnx_reshape(
      c, IN(0), 6,
      is_crd ? (int64_t[]){n, depth, size, size, height, width}
             : (int64_t[]){n, size, size, depth, height, width});
  y = choir__onnx_transpose(
      c, y,
      is_crd ? (int64_t[]){0, 1, 4, 2, 5, 3} : (int64_t[]){0, 3, 4, 1, 5, 2});
  int64_t shape[] = {n, depth, 0, 0};
  if (!choir__onnx_times(c, height, size, &shape[2]) ||
      !choir__onnx_times(c, width, size, &shape[3]))
    return choir_scope_fail(c->scope, NULL);
  return choir__onnx_reshape(c, y, 4, shape);
}

static void move_depth(choir__onnx_call_t* c, bool goes_there) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  const int64_t size = choir__onnx_int(c, "blocksize", 0);
  const bool is_crd = !strcmp(choir__onnx_string(c, "mode", "DCR"), "CRD");
  if (x->ndim != 4 || size < 1 || size > INT32_MAX) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions and the blocks a size of %lld; needs 4 "
         "dimensions and a size of 1 or more",
         x->ndim, (long long)size);
    return;
  }
  if (goes_there ? x->shape[2] % size != 0 || x->shape[3] % size != 0
                 : x->shape[1] % (size * size) != 0) {
    FAIL(INVALID_ARGUMENT, "%s cannot be cut into blocks of %lld",
         goes_there ? "the image" : "the depth", (long long)size);
    return;
  }
  OUT(0, goes_there ? to_depth(c, x->shape, size, is_crd)
                    : from_depth(c, x->shape, size, is_crd));
}

void choir__onnx_op_depth_to_space(choir__onnx_call_t* c) {
  move_depth(c, false);
}

void choir__onnx_op_space_to_depth(choir__onnx_call_t* c) {
  move_depth(c, true);
}

// ---- Dimensions ----

void choir__onnx_op_reshape(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t shape[CHOIR_MAX_NDIM];
  const int32_t ndim =
      choir__onnx_ints_of(c, 1, "shape", shape, CHOIR_MAX_NDIM);
  if (!x || ndim < 0) return;
  const bool keeps_zero = choir__onnx_int(c, "allowzero", 0) != 0;
  for (int32_t i = 0; i < ndim; ++i)
    if (shape[i] == 0 && !keeps_zero) {
      if (i >= x->ndim) {
        FAIL(INVALID_ARGUMENT,
             "dimension %d of the shape is 0, and the input "
             "has %d dimensions",
             i, x->ndim);
        return;
      }
      shape[i] = x->shape[i];
    }
  OUT(0, choir__onnx_reshape(c, IN(0), ndim, shape));
}

void choir__onnx_op_squeeze(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t axes[CHOIR_MAX_NDIM];
  const int32_t count = choir__onnx_ints_of(c, 1, "axes", axes, CHOIR_MAX_NDIM);
  if (!x || !CALL_IS_OK) return;
  bool goes[CHOIR_MAX_NDIM] = {false};
  for (int32_t k = 0; count < 0 && k < x->ndim; ++k) goes[k] = x->shape[k] == 1;
  for (int32_t k = 0; k < count; ++k) {
    if (!choir__onnx_axis(c, &axes[k], x->ndim)) return;
    if (x->shape[axes[k]] != 1) {
      FAIL(INVALID_ARGUMENT, "dimension %lld is %lld; one that goes is 1",
           (long long)axes[k], (long long)x->shape[axes[k]]);
      return;
    }
    goes[axes[k]] = true;
  }
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t k = 0; k < x->ndim; ++k)
    if (!goes[k]) shape[ndim++] = x->shape[k];
  OUT(0, choir__onnx_reshape(c, IN(0), ndim, shape));
}

void choir__onnx_op_unsqueeze(choir__onnx_call_t* c) {
  int64_t axes[CHOIR_MAX_NDIM];
  const int32_t count = choir__onnx_ints_of(c, 1, "axes", axes, CHOIR_MAX_NDIM);
  if (!VIEW(0) || !CALL_IS_OK) return;
  if (count < 0) {
    FAIL(INVALID_ARGUMENT, "there are no axes; needs at least one");
    return;
  }
  OUT(0, choir__onnx_unsqueeze(c, IN(0), axes, count));
}

void choir__onnx_op_flatten(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  const int64_t given = choir__onnx_int(c, "axis", 1);
  const int64_t axis = given < 0 ? given + x->ndim : given;
  if (axis < 0 || axis > x->ndim) {
    FAIL(INVALID_ARGUMENT, "axis %lld; of %d dimensions it is from %d to %d",
         (long long)given, x->ndim, -x->ndim, x->ndim);
    return;
  }
  int64_t shape[2];
  if (choir__onnx_product(c, x->shape, 0, (int32_t)axis, &shape[0]) &&
      choir__onnx_product(c, x->shape, (int32_t)axis, x->ndim, &shape[1]))
    OUT(0, choir__onnx_reshape(c, IN(0), 2, shape));
}

void choir__onnx_op_shape(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  int64_t start = choir__onnx_int(c, "start", 0);
  int64_t end = choir__onnx_int(c, "end", x->ndim);
  if (start < 0) start += x->ndim;
  if (end < 0) end += x->ndim;
  if (start < 0) start = 0;
  if (end > x->ndim) end = x->ndim;
  const int64_t count = end > start ? end - start : 0;
  OUT_AS(0,
         choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count,
                              x->shape + (count ? start : 0)),
         INT64);
}

void choir__onnx_op_size(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  const int64_t count = choir_view_count(x);
  OUT_AS(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &count), INT64);
}

// ---- Repeating and joining ----

void choir__onnx_op_expand(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t given[CHOIR_MAX_NDIM], shape[CHOIR_MAX_NDIM];
  const int32_t count = choir__onnx_read_ints(c, 1, given, CHOIR_MAX_NDIM);
  if (!x || count < 0) return;
  choir_view_t other;
  int32_t ndim = 0;
  choir_status_t status = choir_view_make(x->dtype, count, given, &other);
  if (!status) status = choir_view_broadcast_shape(x, &other, &ndim, shape);
  if (status) {
    choir__onnx_fail(c, status);
    return;
  }
  if (choir__onnx_has_room(c, x->dtype, ndim, shape))
    OUT(0, choir__shapes_expand(c, IN(0), ndim, shape));
}

void choir__onnx_op_tile(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t repeats[CHOIR_MAX_NDIM], shape[CHOIR_MAX_NDIM];
  const int32_t count = choir__onnx_read_ints(c, 1, repeats, CHOIR_MAX_NDIM);
  if (!x || count < 0) return;
  if (count != x->ndim) {
    FAIL(INVALID_ARGUMENT, "%d repeats; x has %d dimensions", count, x->ndim);
    return;
  }
  choir_tile_attrs_t attrs = {.ndim = count};
  for (int32_t k = 0; k < CHOIR_MAX_NDIM; ++k) {
    attrs.repeats[k] = k < count ? repeats[k] : 1;
    if (k >= count) continue;
    if (repeats[k] < 0) {
      FAIL(INVALID_ARGUMENT, "dimension %d of %lld, %lld times", k,
           (long long)x->shape[k], (long long)repeats[k]);
      return;
    }
    if (!choir__onnx_times(c, x->shape[k], repeats[k], &shape[k])) return;
  }
  if (choir__onnx_has_room(c, x->dtype, count, shape))
    OUT(0, DO(tile, IN(0), &attrs));
}

void choir__onnx_op_concat(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (!choir__onnx_axis(c, &axis, x->ndim)) return;
  choir_var_t** vars =
      choir_scope_alloc(c->scope, sizeof(void*) * (size_t)c->in_count);
  if (!vars) return;
  for (int32_t i = 0; i < c->in_count; ++i) {
    if (!VIEW(i)) {
      if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input %d is missing", i);
      return;
    }
    vars[i] = IN(i);
  }
  OUT(0, choir__onnx_join(c, vars, c->in_count, axis));
}
