// SPDX-License-Identifier: Apache-2.0
// Unique: the different rows of a tensor, found by sorting on the host.
#include "onnx/operators/onnx_shapes_internal.h"

typedef struct rows_s {
  choir__onnx_array_t array;  // (count, width)
  int64_t count, width;
  bool is_unsigned;  // integers of 64 bits without a sign
} rows_t;

// A NaN comes last, and two of them are the same.
static int compare_reals(double a, double b) {
  if (a != a || b != b) return (a != a) - (b != b);
  return (a > b) - (a < b);
}

static int compare_rows(const rows_t* rows, int64_t a, int64_t b) {
  const bool is_real = choir_dtype_is_float(rows->array.view.dtype);
  const uint64_t flip = rows->is_unsigned ? (uint64_t)1 << 63 : 0;
  int order = 0;
  for (int64_t k = 0; order == 0 && k < rows->width; ++k) {
    const int64_t i = a * rows->width + k, j = b * rows->width + k;
    if (is_real) {
      order = compare_reals(choir__onnx_number_at(&rows->array, i),
                            choir__onnx_number_at(&rows->array, j));
    } else {
      const int64_t x =
          (int64_t)((uint64_t)choir__onnx_int_at(&rows->array, i) ^ flip);
      const int64_t y =
          (int64_t)((uint64_t)choir__onnx_int_at(&rows->array, j) ^ flip);
      order = (x > y) - (x < y);
    }
  }
  return order;
}

// Runs of `length` sorted numbers of rows, of `from`, two by two into `to`.
static void merge_runs(const rows_t* rows, int64_t length, const int64_t* from,
                       int64_t* to) {
  int64_t place = 0;
  for (int64_t start = 0; start < rows->count; start += 2 * length) {
    const int64_t middle =
        rows->count - start < length ? rows->count : start + length;
    const int64_t end =
        rows->count - middle < length ? rows->count : middle + length;
    int64_t i = start, j = middle;
    while (i < middle || j < end) {
      const bool is_second =
          i == middle || (j < end && compare_rows(rows, from[j], from[i]) < 0);
      to[place++] = is_second ? from[j++] : from[i++];
    }
  }
}

// Numbers of rows in the order of what is in them; equal ones as they come.
static int64_t* sort_rows(const rows_t* rows, int64_t* numbers,
                          int64_t* other) {
  for (int64_t i = 0; i < rows->count; ++i) numbers[i] = i;
  for (int64_t length = 1; length < rows->count; length *= 2) {
    merge_runs(rows, length, numbers, other);
    int64_t* sorted = other;
    other = numbers;
    numbers = sorted;
  }
  return numbers;
}

// Of each different row, in the order of the result: where it is first and how
// often; of each row, which it is.
typedef struct groups_s {
  int64_t* first;
  int64_t* counts;
  int64_t* inverse;
  int64_t count;
} groups_t;

static void group_sorted(const rows_t* rows, const int64_t* sorted,
                         groups_t* groups) {
  groups->count = 0;
  for (int64_t i = 0; i < rows->count; ++i) {
    if (i == 0 || compare_rows(rows, sorted[i - 1], sorted[i]) != 0) {
      groups->first[groups->count] = sorted[i];
      groups->counts[groups->count++] = 0;
    }
    groups->inverse[sorted[i]] = groups->count - 1;
    ++groups->counts[groups->count - 1];
  }
}

// Puts groups in the order in which their first rows come. A group whose first
// row is `i` gets the next number; the rows behind have it from there.
static void order_by_first(const rows_t* rows, groups_t* groups, int64_t* first,
                           int64_t* counts) {
  int64_t count = 0;
  for (int64_t i = 0; i < rows->count; ++i) {
    const int64_t group = groups->inverse[i];
    if (groups->first[group] == i) {
      first[count] = i;
      counts[count] = groups->counts[group];
      groups->inverse[i] = count++;
    } else {
      groups->inverse[i] = groups->inverse[groups->first[group]];
    }
  }
  groups->first = first;
  groups->counts = counts;
}

static bool find_groups(choir__onnx_call_t* c, const rows_t* rows,
                        groups_t* groups) {
  enum { ARRAYS = 5 };
  const int64_t shape[] = {ARRAYS, rows->count};
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_I64, 2, shape)) return false;
  const size_t count = (size_t)rows->count;
  int64_t* memory =
      choir_scope_alloc(c->scope, sizeof(int64_t) * (ARRAYS * count + 1));
  if (!memory) return false;
  *groups = (groups_t){memory, memory + count, memory + 2 * count, 0};
  int64_t *numbers = memory + 3 * count, *other = memory + 4 * count;
  group_sorted(rows, sort_rows(rows, numbers, other), groups);
  if (choir__onnx_int(c, "sorted", 1) == 0)
    order_by_first(rows, groups, numbers, other);
  return true;
}

// x as rows along `axis`.
static bool read_rows(choir__onnx_call_t* c, choir_var_t* x, int64_t axis,
                      rows_t* rows) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return false;
  int64_t axes[CHOIR_MAX_NDIM];
  rows->count = view->shape[axis];
  rows->width = 1;
  axes[0] = axis;
  for (int32_t k = 0, to = 1; k < view->ndim; ++k) {
    if (k == axis) continue;
    axes[to++] = k;
    rows->width *= view->shape[k];
  }
  rows->is_unsigned = TYPE(0) == CHOIR_ONNX_UINT64;
  return choir__onnx_read_var(c, choir__onnx_transpose(c, x, axes), c->is_known,
                              &rows->array);
}

void choir__onnx_op_unique(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  choir_var_t* x = IN(0);
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (choir__onnx_has_attr(c, "axis")) {
    if (!choir__onnx_axis(c, &axis, view->ndim)) return;
  } else {
    const int64_t count = choir_view_count(view);
    x = choir__onnx_reshape(c, x, 1, &count);
  }
  rows_t rows;
  groups_t groups;
  if (!read_rows(c, x, axis, &rows) || !find_groups(c, &rows, &groups)) return;
  choir_var_t* first =
      choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &groups.count, groups.first);
  OUT(0, choir__shapes_gather(c, x, first, axis));
  OUT_AS(1, first, INT64);
  OUT_AS(
      2,
      choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &rows.count, groups.inverse),
      INT64);
  OUT_AS(
      3,
      choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &groups.count, groups.counts),
      INT64);
}
