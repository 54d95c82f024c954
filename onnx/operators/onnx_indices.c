// SPDX-License-Identifier: Apache-2.0
// Operators that take elements from where indices point, or give such indices.
#include "onnx/operators/onnx_shapes_internal.h"

// ---- Gather ----

void choir__onnx_op_gather(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (!x || !VIEW(1) || !choir__onnx_axis(c, &axis, x->ndim)) return;
  OUT(0, choir__shapes_gather(c, IN(0), IN(1), axis));
}

void choir__onnx_op_gather_elements(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (!x || !VIEW(1) || !choir__onnx_axis(c, &axis, x->ndim)) return;
  OUT(0, DO(gather_elements, IN(0), IN(1),
            &(choir_gather_elements_attrs_t){.axis = axis}));
}

// Numbers of the rows in each of k dimensions, summed.
static choir_var_t* sum_places(choir__onnx_call_t* c, choir_var_t* indices,
                               int32_t k, const int64_t* sizes, int64_t rows) {
  int64_t steps[CHOIR_MAX_NDIM];
  int64_t step = 1;
  for (int32_t i = k - 1; i >= 0; --i) {
    steps[i] = step;
    step *= sizes[i];
  }
  const int64_t count = k;
  choir_var_t* zero = choir__onnx_scalar(c, CHOIR_DTYPE_I64, 0);
  choir_var_t* none = choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &rows);
  choir_var_t* ends =
      choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count, sizes);
  choir_var_t* x = choir__onnx_cast(c, indices, CHOIR_DTYPE_I64);
  x = DO(where, DO(less, x, zero), DO(add, x, ends), x);
  choir_var_t* is_outside =
      DO(logical_or, DO(less, x, zero), DO(greater_equal, x, ends));
  x = DO(mul, x, choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count, steps));
  x = DO(where, is_outside, none, x);
  const choir_view_t* view = choir_var_view(x);
  return view ? DO(sum, x, &(choir_sum_attrs_t){.axis = view->ndim - 1}) : x;
}

choir_var_t* choir__shapes_rows(choir__onnx_call_t* c, choir_var_t* indices,
                                int32_t batch, const choir_view_t* x,
                                int64_t* out_rows) {
  const choir_view_t* view = choir_var_view(indices);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const int64_t k = view->ndim > 0 ? view->shape[view->ndim - 1] : 0;
  bool fits =
      batch >= 0 && batch < view->ndim && k >= 1 && k <= x->ndim - batch;
  int64_t batches = 1, each = 1;
  for (int32_t i = 0; fits && i < batch; ++i) {
    fits = view->shape[i] == x->shape[i];
    batches *= x->shape[i];
  }
  if (!fits) {
    char text[2][160];
    return FAIL(INVALID_ARGUMENT,
                "x is %s, indices are %s; needs the same first %d dimensions, "
                "and as a last one of the indices how many of x's others they "
                "count along",
                choir_view_print(x, text[0], sizeof text[0]),
                choir_view_print(view, text[1], sizeof text[1]), batch);
  }
  for (int32_t i = 0; i < k; ++i) each *= x->shape[batch + i];
  *out_rows = batches * each;
  choir_var_t* rows =
      sum_places(c, indices, (int32_t)k, x->shape + batch, *out_rows);
  if (batch == 0 || !CALL_IS_OK) return rows;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < view->ndim - 1; ++i)
    shape[i] = i < batch ? view->shape[i] : 1;
  choir_var_t* first = choir__shapes_range(c, 0, each, batches);
  first = choir__onnx_reshape(c, first, view->ndim - 1, shape);
  return DO(add, rows, first);
}

void choir__onnx_op_gather_nd(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  const choir_view_t* indices = VIEW(1);
  if (!x || !indices) return;
  const int64_t batch = choir__onnx_int(c, "batch_dims", 0);
  int64_t count = 0;
  choir_var_t* rows = choir__shapes_rows(
      c, IN(1), batch < 0 || batch > CHOIR_MAX_NDIM ? -1 : (int32_t)batch, x,
      &count);
  const choir_view_t* view = choir_var_view(rows);
  if (!view) return;
  const int32_t last = (int32_t)(batch + indices->shape[indices->ndim - 1]);
  int64_t shape[2 * CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  shape[ndim++] = count;
  for (int32_t k = last; k < x->ndim; ++k) shape[ndim++] = x->shape[k];
  choir_var_t* y = choir__onnx_reshape(c, IN(0), ndim, shape);
  OUT(0, choir__shapes_gather(c, y, rows, 0));
}

// ---- OneHot ----

// Elements of indices of any dtype as I64, negative ones from the end.
static choir_var_t* count_from_end(choir__onnx_call_t* c, int64_t depth) {
  choir_var_t* indices = choir__onnx_cast(c, IN(0), CHOIR_DTYPE_I64);
  if (c->version < 11) return indices;
  choir_var_t* zero = choir__onnx_scalar(c, CHOIR_DTYPE_I64, 0);
  choir_var_t* end = choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &depth);
  return DO(where, DO(less, indices, zero), DO(add, indices, end), indices);
}

void choir__onnx_op_one_hot(choir__onnx_call_t* c) {
  const choir_view_t* indices = VIEW(0);
  const choir_view_t* values = VIEW(2);
  int64_t depth;
  if (!indices || !values) return;
  if (choir__onnx_read_ints(c, 1, &depth, 1) != 1) {
    FAIL(INVALID_ARGUMENT, "the depth is not one number");
    return;
  }
  int64_t axis = choir__onnx_int(c, "axis", -1);
  const int32_t ndim = indices->ndim + 1;
  if (depth < 0 || ndim > CHOIR_MAX_NDIM || values->ndim != 1 ||
      values->shape[0] != 2) {
    FAIL(INVALID_ARGUMENT,
         "a depth of %lld, indices of %d dimensions; needs one of 0 or more, "
         "less than %d dimensions and 2 values",
         (long long)depth, indices->ndim, CHOIR_MAX_NDIM);
    return;
  }
  if (!choir__onnx_axis(c, &axis, ndim)) return;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0, from = 0; k < ndim; ++k)
    shape[k] = k == axis ? depth : indices->shape[from++];
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_I64, ndim, shape)) return;
  choir_var_t* places =
      choir__onnx_unsqueeze(c, count_from_end(c, depth), &axis, 1);
  choir_var_t* numbers =
      choir__shapes_along(c, choir__shapes_range(c, 0, 1, depth), ndim, axis);
  choir_var_t* off = choir__onnx_slice(c, IN(2), 0, 0, 1);
  choir_var_t* on = choir__onnx_slice(c, IN(2), 0, 1, 2);
  choir__onnx_out_as(
      c, 0,
      DO(where, DO(equal, places, numbers), choir__onnx_reshape(c, on, 0, NULL),
         choir__onnx_reshape(c, off, 0, NULL)),
      TYPE(2));
}

// ---- Where a tensor is not 0 ----

void choir__onnx_op_non_zero(choir__onnx_call_t* c) {
  choir__onnx_array_t x;
  if (!choir__onnx_read(c, 0, &x)) return;
  int64_t count = 0;
  for (int64_t i = 0; i < x.count; ++i)
    count += choir__onnx_number_at(&x, i) != 0;
  const int64_t shape[] = {x.view.ndim, count};
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_I64, 2, shape)) return;
  int64_t* places = choir_scope_alloc(
      c->scope, sizeof(int64_t) * ((size_t)(shape[0] * count) + 1));
  if (!places) return;
  int64_t found = 0;
  for (int64_t i = 0; i < x.count; ++i) {
    if (choir__onnx_number_at(&x, i) == 0) continue;
    int64_t rest = i;
    for (int32_t k = x.view.ndim - 1; k >= 0; --k) {
      places[k * count + found] = rest % x.view.shape[k];
      rest /= x.view.shape[k];
    }
    ++found;
  }
  OUT_AS(0, choir__onnx_constant(c, CHOIR_DTYPE_I64, 2, shape, places), INT64);
}

void choir__onnx_op_compress(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  choir__onnx_array_t condition;
  if (!view || !choir__onnx_read(c, 1, &condition)) return;
  choir_var_t* x = IN(0);
  int64_t axis = choir__onnx_int(c, "axis", 0);
  int64_t size = choir_view_count(view);
  if (choir__onnx_has_attr(c, "axis")) {
    if (!choir__onnx_axis(c, &axis, view->ndim)) return;
    size = view->shape[axis];
  } else {
    x = choir__onnx_reshape(c, x, 1, &size);
  }
  int64_t* places = choir_scope_alloc(
      c->scope, sizeof(int64_t) * ((size_t)condition.count + 1));
  if (!places) return;
  int64_t count = 0;
  for (int64_t i = 0; i < condition.count && i < size; ++i)
    if (choir__onnx_number_at(&condition, i) != 0) places[count++] = i;
  OUT(0, choir__shapes_gather(
             c, x, choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count, places),
             axis));
}

// ---- ReverseSequence ----

// Place t of a sample of length n becomes n - 1 - t, behind n it stays.
void choir__onnx_op_reverse_sequence(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  const choir_view_t* lengths = VIEW(1);
  if (!x || !lengths) return;
  int64_t batch_axis = choir__onnx_int(c, "batch_axis", 1);
  int64_t time_axis = choir__onnx_int(c, "time_axis", 0);
  if (!choir__onnx_axis(c, &batch_axis, x->ndim) ||
      !choir__onnx_axis(c, &time_axis, x->ndim))
    return;
  if (batch_axis == time_axis || lengths->ndim != 1 ||
      lengths->shape[0] != x->shape[batch_axis]) {
    FAIL(INVALID_ARGUMENT,
         "axis %lld of time, %lld of samples; needs two, and a length for each "
         "sample",
         (long long)time_axis, (long long)batch_axis);
    return;
  }
  choir_var_t* length = choir__onnx_cast(c, IN(1), CHOIR_DTYPE_I64);
  length = choir__shapes_along(c, length, x->ndim, batch_axis);
  choir_var_t* time = choir__shapes_range(c, 0, 1, x->shape[time_axis]);
  time = choir__shapes_along(c, time, x->ndim, time_axis);
  choir_var_t* one = choir__onnx_scalar(c, CHOIR_DTYPE_I64, 1);
  choir_var_t* places = DO(where, DO(less, time, length),
                           DO(sub, DO(sub, length, one), time), time);
  places = choir__shapes_expand(c, places, x->ndim, x->shape);
  OUT(0, DO(gather_elements, IN(0), places,
            &(choir_gather_elements_attrs_t){.axis = time_axis}));
}
