// SPDX-License-Identifier: Apache-2.0
// Operators that put elements where indices point.
#include <string.h>

#include "onnx/operators/onnx_math_internal.h"
#include "onnx/operators/onnx_shapes_internal.h"

// What becomes of an element that is there and an update of it.
typedef enum reduction_e { NONE, ADD, MUL, MAX, MIN, REDUCTIONS } reduction_t;
static const char* const reduction_names[] = {"none", "add", "mul", "max",
                                              "min"};

static reduction_t read_reduction(choir__onnx_call_t* c) {
  const char* name = choir__onnx_string(c, "reduction", "none");
  int32_t i = NONE;
  while (i < REDUCTIONS && strcmp(name, reduction_names[i]) != 0) ++i;
  if (i == REDUCTIONS)
    FAIL(INVALID_ARGUMENT,
         "reduction '%.32s'; there are none, add, mul, max and min", name);
  return (reduction_t)i;
}

// ---- Reductions, of any dtype ----

typedef struct put_attrs_s {
  int64_t axis;
  reduction_t reduction;
  int32_t type;  // of the elements
} put_attrs_t;

static double reduce_real(reduction_t reduction, double a, double b) {
  switch (reduction) {
    case ADD:
      return a + b;
    case MUL:
      return a * b;
    case MAX:
      return a > b || a != a ? a : b;
    default:
      return a < b || a != a ? a : b;
  }
}

static int64_t reduce_integer(reduction_t reduction, int64_t a, int64_t b) {
  switch (reduction) {
    case ADD:
      return (int64_t)((uint64_t)a + (uint64_t)b);
    case MUL:
      return (int64_t)((uint64_t)a * (uint64_t)b);
    case MAX:
      return a > b ? a : b;
    default:
      return a < b ? a : b;
  }
}

static void reduce_element(const choir__onnx_array_t* y, int64_t to,
                           const choir__onnx_array_t* updates, int64_t from,
                           const put_attrs_t* put) {
  if (!choir_dtype_is_float(y->view.dtype)) {
    const int64_t value =
        reduce_integer(put->reduction, choir__onnx_int_at(y, to),
                       choir__onnx_int_at(updates, from));
    choir__onnx_set_integer(y, to, value, put->type);
    return;
  }
  const double value = reduce_real(put->reduction, choir__onnx_number_at(y, to),
                                   choir__onnx_number_at(updates, from));
  choir__onnx_set_number(y, to, value);
}

// x, indices, updates -> x with each update put to what is there.
static choir_status_t put_loop(const choir__onnx_array_t* srcs,
                               const choir__onnx_array_t* dsts,
                               const void* attrs) {
  const put_attrs_t* put = attrs;
  const choir_view_t* x = &srcs[0].view;
  const choir_view_t* indices = &srcs[1].view;
  const int64_t size = x->shape[put->axis];
  if (srcs[0].count > 0)
    memcpy(dsts[0].data, srcs[0].data,
           (size_t)srcs[0].count * choir_dtype_bytes(x->dtype));
  for (int64_t i = 0; i < srcs[1].count; ++i) {
    int64_t index = choir__onnx_int_at(&srcs[1], i);
    if (index < -size || index >= size)
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "onnx: index %lld at element %lld; needs %lld .. %lld",
                         (long long)index, (long long)i, (long long)-size,
                         (long long)size - 1);
    if (index < 0) index += size;
    int64_t rest = i, to = 0, step = 1;
    for (int32_t k = x->ndim - 1; k >= 0; --k) {
      to += (k == put->axis ? index : rest % indices->shape[k]) * step;
      rest /= indices->shape[k];
      step *= x->shape[k];
    }
    reduce_element(&dsts[0], to, &srcs[2], i, put);
  }
  return NULL;
}

// ---- Sums that have gradients ----

typedef struct sums_s {
  choir_stream_t* stream;
  choir_tensor_t* indices;
  int64_t axis;
} sums_t;

static choir_status_t sums_backward(void* self, choir_tensor_t* dy,
                                    choir_tensor_t** out_grads) {
  const sums_t* sums = self;
  choir_tensor_t* srcs[] = {dy, sums->indices};
  return choir_op_run(sums->stream, CHOIR_OP_GATHER_ELEMENTS, srcs, 2,
                      &(choir_gather_elements_attrs_t){.axis = sums->axis},
                      false, &out_grads[0]);
}

// The updates, added where they go, in the shape of x and 0 elsewhere: what is
// the gradient of a gather, whose own gradient is that gather.
static choir_var_t* sum_updates(choir__onnx_call_t* c, choir_var_t* x,
                                choir_var_t* indices, choir_var_t* updates,
                                int64_t axis) {
  sums_t* sums = choir_scope_alloc(c->scope, sizeof *sums);
  if (!sums) return choir_scope_fail(c->scope, NULL);
  *sums =
      (sums_t){choir_scope_stream(c->scope), choir_var_tensor(indices), axis};
  choir_tensor_t* srcs[] = {choir_var_tensor(x), sums->indices,
                            choir_var_tensor(updates)};
  choir_tensor_t* result = NULL;
  choir_status_t status = choir_op_run(
      sums->stream, CHOIR_OP_GATHER_ELEMENTS_GRAD, srcs, 3,
      &(choir_gather_elements_grad_attrs_t){.axis = axis}, false, &result);
  if (status) return choir__onnx_fail(c, status);
  const choir_custom_op_t op = {
      .name = "onnx/scatter_add", .backward = sums_backward, .self = sums};
  choir_var_t* of[] = {updates, indices};
  choir_var_t* y = choir_scope_record_custom(c->scope, &op, of, 2, result);
  choir_tensor_release(result);
  return y;
}

// ---- Scattering along an axis ----

static bool are_placeable(choir__onnx_call_t* c, const choir_view_t* x,
                          const choir_view_t* indices,
                          const choir_view_t* updates, int64_t axis) {
  bool fits =
      indices->ndim == x->ndim &&
      (updates->dtype == x->dtype || (choir_dtype_is_float(updates->dtype) &&
                                      choir_dtype_is_float(x->dtype))) &&
      choir_view_same_shape(indices, updates);
  for (int32_t k = 0; fits && k < x->ndim; ++k)
    fits = k == axis || indices->shape[k] <= x->shape[k];
  char text[3][160];
  if (!fits)
    FAIL(INVALID_ARGUMENT,
         "x is %s, indices are %s, updates %s; needs as many dimensions, none "
         "of indices larger except along axis %lld, and updates of their shape",
         choir_view_print(x, text[0], sizeof text[0]),
         choir_view_print(indices, text[1], sizeof text[1]),
         choir_view_print(updates, text[2], sizeof text[2]), (long long)axis);
  return fits;
}

static choir_var_t* scatter(choir__onnx_call_t* c, choir_var_t* x,
                            choir_var_t* indices, choir_var_t* updates,
                            int64_t axis, reduction_t reduction) {
  const choir_view_t* view = choir_var_view(x);
  const choir_view_t* places = choir_var_view(indices);
  const choir_view_t* values = choir_var_view(updates);
  if (!view || !places || !values ||
      !are_placeable(c, view, places, values, axis))
    return choir_scope_fail(c->scope, NULL);
  if (reduction == NONE)
    return DO(scatter_elements, x, indices, updates,
              &(choir_scatter_elements_attrs_t){.axis = axis});
  updates = choir__onnx_cast(c, updates, view->dtype);
  if (reduction == ADD && choir_dtype_is_float(view->dtype))
    return DO(add, x, sum_updates(c, x, indices, updates, axis));
  choir_var_t* y;
  const put_attrs_t attrs = {axis, reduction, TYPE(0)};
  choir__onnx_host(c, "scatter", put_loop, &attrs, sizeof attrs,
                   (choir_var_t*[]){x, indices, updates}, 3, view, 1, &y);
  return y;
}

void choir__onnx_op_scatter_elements(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t axis = choir__onnx_int(c, "axis", 0);
  const reduction_t reduction = read_reduction(c);
  if (!x || !VIEW(1) || !VIEW(2) || !choir__onnx_axis(c, &axis, x->ndim))
    return;
  OUT(0, scatter(c, IN(0), IN(1), IN(2), axis, reduction));
}

void choir__onnx_op_scatter_nd(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  const choir_view_t* indices = VIEW(1);
  const reduction_t reduction = read_reduction(c);
  if (!x || !indices || !VIEW(2) || !CALL_IS_OK) return;
  int64_t rows = 0;
  choir_var_t* places = choir__shapes_rows(c, IN(1), 0, x, &rows);
  const choir_view_t* view = choir_var_view(places);
  if (!view) return;
  int64_t each = 1;
  for (int32_t k = (int32_t)indices->shape[indices->ndim - 1]; k < x->ndim; ++k)
    each *= x->shape[k];
  const int64_t count = choir_view_count(view);
  const int64_t shape[] = {count, each};
  places = choir__onnx_reshape(c, places, 2, (int64_t[]){count, 1});
  choir_var_t* y =
      scatter(c, choir__onnx_reshape(c, IN(0), 2, (int64_t[]){rows, each}),
              choir__shapes_expand(c, places, 2, shape),
              choir__onnx_reshape(c, IN(2), 2, shape), 0, reduction);
  OUT(0, choir__onnx_reshape(c, y, x->ndim, x->shape));
}

// ---- TensorScatter: a cache of sequences ----

// Where each step of the updates goes, of each sample: (n, 1 .., steps, 1 ..).
static choir_var_t* step_places(choir__onnx_call_t* c, int32_t ndim,
                                int64_t axis, int64_t steps, int64_t size) {
  choir_var_t* places = choir__shapes_range(c, 0, 1, steps);
  places = choir__shapes_along(c, places, ndim, axis);
  if (!VIEW(2)) return places;
  choir_var_t* first = choir__onnx_cast(c, IN(2), CHOIR_DTYPE_I64);
  places = DO(add, places, choir__shapes_along(c, first, ndim, 0));
  if (strcmp(choir__onnx_string(c, "mode", "linear"), "circular") != 0)
    return places;
  choir_var_t* rounds =
      DO(div, choir__onnx_cast(c, places, CHOIR_DTYPE_F64),
         choir__onnx_scalar(c, CHOIR_DTYPE_F64, (double)size));
  rounds = choir__onnx_cast(c, DO(floor, rounds), CHOIR_DTYPE_I64);
  choir_var_t* each = choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &size);
  return DO(sub, places, DO(mul, rounds, each));
}

void choir__onnx_op_tensor_scatter(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  const choir_view_t* updates = VIEW(1);
  int64_t axis = choir__onnx_int(c, "axis", -2);
  if (!x || !updates || !choir__onnx_axis(c, &axis, x->ndim)) return;
  const choir_view_t* first = VIEW(2);
  if (axis == 0 || updates->ndim != x->ndim ||
      updates->shape[axis] > x->shape[axis] ||
      (first && (first->ndim != 1 || first->shape[0] != x->shape[0]))) {
    FAIL(INVALID_ARGUMENT,
         "axis %lld, %d and %d dimensions; needs an axis behind the first, as "
         "many dimensions, no more updates along the axis than there is room, "
         "and one place for each sample",
         (long long)axis, x->ndim, updates->ndim);
    return;
  }
  choir_var_t* places =
      step_places(c, x->ndim, axis, updates->shape[axis], x->shape[axis]);
  places = choir__shapes_expand(c, places, updates->ndim, updates->shape);
  OUT(0, scatter(c, IN(0), places, IN(1), axis, NONE));
}
