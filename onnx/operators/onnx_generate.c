// SPDX-License-Identifier: Apache-2.0
// Operators that make tensors of numbers, a shape or a few numbers given.
#include <math.h>

#include "onnx/operators/onnx_shapes_internal.h"

void choir__onnx_op_constant(choir__onnx_call_t* c) {
  int32_t type, count;
  choir_var_t* var = choir__onnx_tensor(c, "value", &type);
  if (!var) var = choir__onnx_tensor(c, "sparse_value", &type);
  if (var) {
    choir__onnx_out_as(c, 0, var, type);
    return;
  }
  if (choir__onnx_has_attr(c, "value_ints")) {
    const int64_t* ints = choir__onnx_ints(c, "value_ints", &count);
    const int64_t shape = count;
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &shape,
                                ints ? ints : &shape));
  } else if (choir__onnx_has_attr(c, "value_floats")) {
    const float* floats = choir__onnx_floats(c, "value_floats", &count);
    const int64_t shape = count;
    const float none = 0;
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_F32, 1, &shape,
                                floats ? floats : &none));
  } else if (choir__onnx_has_attr(c, "value_int")) {
    const int64_t value = choir__onnx_int(c, "value_int", 0);
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &value));
  } else if (choir__onnx_has_attr(c, "value_float")) {
    const float value = (float)choir__onnx_float(c, "value_float", 0);
    OUT(0, choir__onnx_constant(c, CHOIR_DTYPE_F32, 0, NULL, &value));
  } else {
    FAIL(UNIMPLEMENTED,
         "the constant is no number; Choir has no tensors of "
         "strings");
  }
}

void choir__onnx_op_constant_of_shape(choir__onnx_call_t* c) {
  int64_t shape[CHOIR_MAX_NDIM];
  const int32_t ndim = choir__onnx_read_ints(c, 0, shape, CHOIR_MAX_NDIM);
  if (ndim < 0) return;
  int32_t type = CHOIR_ONNX_FLOAT;
  choir_var_t* value = choir__onnx_has_attr(c, "value")
                           ? choir__onnx_tensor(c, "value", &type)
                           : choir__onnx_scalar(c, CHOIR_DTYPE_F32, 0);
  const choir_view_t* view = choir_var_view(value);
  if (!view || !choir__onnx_has_room(c, view->dtype, ndim, shape)) return;
  value = choir__onnx_reshape(c, value, 0, NULL);
  value = choir__shapes_expand(c, value, ndim, shape);
  choir__onnx_out_as(c, 0, DO(copy, value), type);
}

// ---- Range ----

// How many numbers, -1 of a step that is 0 or none; before `limit`.
static int64_t count_integers(int64_t start, int64_t limit, int64_t step) {
  const bool is_up = step > 0;
  if (step == 0) return -1;
  if (is_up ? start >= limit : start <= limit) return 0;
  const uint64_t way = is_up ? (uint64_t)limit - (uint64_t)start
                             : (uint64_t)start - (uint64_t)limit;
  const uint64_t size = is_up ? (uint64_t)step : 0 - (uint64_t)step;
  const uint64_t count = (way - 1) / size + 1;
  return count > INT64_MAX ? INT64_MAX : (int64_t)count;
}

static int64_t count_reals(choir_dtype_t dtype, double start, double limit,
                           double step) {
  const double way = dtype == CHOIR_DTYPE_F64
                         ? limit - start
                         : (double)((float)limit - (float)start);
  const double count = ceil(way / step);
  if (step == 0 || count != count) return -1;
  return count <= 0 ? 0 : count >= 9e18 ? INT64_MAX : (int64_t)count;
}

void choir__onnx_op_range(choir__onnx_call_t* c) {
  choir__onnx_array_t given[3];
  for (int32_t i = 0; i < 3; ++i) {
    if (!choir__onnx_read(c, i, &given[i])) return;
    if (given[i].count == 1 && given[i].view.dtype == given[0].view.dtype)
      continue;
    FAIL(INVALID_ARGUMENT,
         "input %d has %lld numbers of %s; needs one, of %s as the first", i,
         (long long)given[i].count, choir_dtype_name(given[i].view.dtype),
         choir_dtype_name(given[0].view.dtype));
    return;
  }
  const choir_dtype_t dtype = given[0].view.dtype;
  const double start = choir__onnx_number_at(&given[0], 0),
               step = choir__onnx_number_at(&given[2], 0);
  const int64_t first = choir__onnx_int_at(&given[0], 0),
                each = choir__onnx_int_at(&given[2], 0);
  const bool is_real = choir_dtype_is_float(dtype);
  const int64_t count =
      is_real
          ? count_reals(dtype, start, choir__onnx_number_at(&given[1], 0), step)
          : count_integers(first, choir__onnx_int_at(&given[1], 0), each);
  if (count < 0) {
    FAIL(INVALID_ARGUMENT,
         "from %g to %g by %g; needs a step that is not 0, and numbers", start,
         choir__onnx_number_at(&given[1], 0), step);
    return;
  }
  if (!is_real) {
    OUT(0,
        choir__onnx_cast(c, choir__shapes_range(c, first, each, count), dtype));
    return;
  }
  if (!choir__onnx_has_room(c, dtype, 1, &count)) return;
  const size_t width = choir_dtype_bytes(dtype);
  char* numbers = choir_scope_alloc(c->scope, width * ((size_t)count + 1));
  if (!numbers) return;
  for (int64_t i = 0; i < count; ++i)
    choir_element_store(numbers + (size_t)i * width, dtype,
                        start + (double)i * step);
  OUT(0, choir__onnx_constant(c, dtype, 1, &count, numbers));
}

// ---- Diagonals ----

// A tensor (rows, columns) of BOOL: true left of, on and right of diagonal k,
// as `sides` says.
typedef enum sides_e { LEFT = 1, ON = 2, RIGHT = 4 } sides_t;
static choir_var_t* diagonals(choir__onnx_call_t* c, const int64_t* shape,
                              int64_t k, int sides) {
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_BOOL, 2, shape))
    return choir_scope_fail(c->scope, NULL);
  char* is_true =
      choir_scope_alloc(c->scope, (size_t)(shape[0] * shape[1]) + 1);
  if (!is_true) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; shape[1] > 0 && i < shape[0]; ++i)
    for (int64_t j = 0; j < shape[1]; ++j)
      is_true[i * shape[1] + j] = (sides & (j - i < k   ? LEFT
                                            : j - i > k ? RIGHT
                                                        : ON)) != 0;
  return choir__onnx_constant(c, CHOIR_DTYPE_BOOL, 2, shape, is_true);
}

void choir__onnx_op_eye_like(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  int32_t type = TYPE(0);
  if (choir__onnx_has_attr(c, "dtype"))
    type = (int32_t)choir__onnx_int(c, "dtype", type);
  choir_dtype_t dtype;
  choir_status_t status = choir_onnx_type_dtype(type, &dtype);
  if (status) {
    choir__onnx_fail(c, status);
    return;
  }
  if (x->ndim != 2) {
    FAIL(INVALID_ARGUMENT, "x has %d dimensions; needs 2", x->ndim);
    return;
  }
  choir_var_t* is_on = diagonals(c, x->shape, choir__onnx_int(c, "k", 0), ON);
  choir__onnx_out_as(c, 0, choir__onnx_cast(c, is_on, dtype), type);
}

void choir__onnx_op_trilu(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t k = 0;
  if (!x) return;
  if (HAS(1) && choir__onnx_read_ints(c, 1, &k, 1) != 1) {
    FAIL(INVALID_ARGUMENT, "the diagonal is not one number");
    return;
  }
  if (x->ndim < 2) {
    FAIL(INVALID_ARGUMENT, "x has %d dimensions; needs 2 or more", x->ndim);
    return;
  }
  const bool is_upper = choir__onnx_int(c, "upper", 1) != 0;
  choir_var_t* stays = diagonals(c, x->shape + x->ndim - 2, k,
                                 is_upper ? ON | RIGHT : LEFT | ON);
  OUT(0, DO(where, stays, IN(0), choir__onnx_scalar(c, x->dtype, 0)));
}
