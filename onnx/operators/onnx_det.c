// SPDX-License-Identifier: Apache-2.0
// Determinants of square matrices. The host computes them and, for gradients,
// the cofactors, which are their slopes.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operators/onnx_reduce_internal.h"

// Row rows[i], column columns[k] of a matrix is at (i, k) of L U, where L has
// ones on its diagonal.
typedef struct factors_s {
  int64_t n;
  int64_t rank;
  double scale;  // sign times the product of the first `rank` pivots
  double* lu;
  double* column;
  int64_t* rows;
  int64_t* columns;
} factors_t;

static void swap_rows(factors_t* f, int64_t a, int64_t b) {
  const int64_t row = f->rows[a];
  if (a == b) return;
  f->rows[a] = f->rows[b];
  f->rows[b] = row;
  f->scale = -f->scale;
  for (int64_t k = 0; k < f->n; ++k) {
    const double kept = f->lu[a * f->n + k];
    f->lu[a * f->n + k] = f->lu[b * f->n + k];
    f->lu[b * f->n + k] = kept;
  }
}

static void swap_columns(factors_t* f, int64_t a, int64_t b) {
  const int64_t column = f->columns[a];
  if (a == b) return;
  f->columns[a] = f->columns[b];
  f->columns[b] = column;
  f->scale = -f->scale;
  for (int64_t i = 0; i < f->n; ++i) {
    const double kept = f->lu[i * f->n + a];
    f->lu[i * f->n + a] = f->lu[i * f->n + b];
    f->lu[i * f->n + b] = kept;
  }
}

// Elimination with the largest element that is left as pivot, up to the rank.
static void factor(factors_t* f) {
  const int64_t n = f->n;
  double* a = f->lu;
  f->scale = 1;
  for (int64_t i = 0; i < n; ++i) f->rows[i] = f->columns[i] = i;
  for (f->rank = 0; f->rank < n; ++f->rank) {
    const int64_t step = f->rank;
    int64_t row = step, column = step;
    for (int64_t i = step; i < n; ++i)
      for (int64_t k = step; k < n; ++k)
        if (fabs(a[i * n + k]) > fabs(a[row * n + column])) {
          row = i;
          column = k;
        }
    if (a[row * n + column] == 0) return;
    swap_rows(f, step, row);
    swap_columns(f, step, column);
    const double pivot = a[step * n + step];
    f->scale *= pivot;
    for (int64_t i = step + 1; i < n; ++i) {
      const double factor = a[i * n + step] /= pivot;
      for (int64_t k = step + 1; k < n; ++k)
        a[i * n + k] -= factor * a[step * n + k];
    }
  }
}

// Cofactors of row `row`: what column `row` of the adjugate has. That of L U is
// the adjugate of U times the inverse of L; where the last pivot is 0, only the
// last column of the former is not 0, and where two are, nothing is.
static void set_cofactors(const factors_t* f, int64_t row, double* cofactors) {
  const int64_t n = f->n;
  double* x = f->column;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = f->rows[i] == row;
    for (int64_t k = 0; k < i; ++k) x[i] -= f->lu[i * n + k] * x[k];
  }
  for (int64_t i = 0; f->rank < n && i < n - 1; ++i) x[i] = 0;
  for (int64_t i = n - 1; i >= 0; --i) {
    for (int64_t k = i + 1; k < n; ++k) x[i] -= f->lu[i * n + k] * x[k];
    if (i < f->rank) x[i] /= f->lu[i * n + i];
    cofactors[f->columns[i]] = f->rank < n - 1 ? 0 : f->scale * x[i];
  }
}

static choir_status_t make_factors(int64_t n, factors_t* out) {
  *out = (factors_t){.n = n};
  out->lu = calloc((size_t)(n * n + 2 * n + 1), sizeof(double));
  out->rows = malloc(sizeof(int64_t) * (size_t)(2 * n + 1));
  if (out->lu && out->rows) {
    out->column = out->lu + n * n;
    out->columns = out->rows + n;
    return NULL;
  }
  free(out->lu);
  free(out->rows);
  return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a matrix of %lld rows",
                     (long long)n);
}

// Results: determinants and, if there is a second, cofactors.
static choir_status_t determinants(const choir__onnx_array_t* srcs,
                                   const choir__onnx_array_t* dsts,
                                   const void* attrs) {
  const bool has_cofactors = *(const bool*)attrs;
  const choir_view_t* x = &srcs[0].view;
  const int64_t n = x->shape[x->ndim - 1];
  if (dsts[0].count == 0) return NULL;
  factors_t f;
  CHOIR_TRY(make_factors(n, &f));
  for (int64_t at = 0; at < dsts[0].count; ++at) {
    for (int64_t i = 0; i < n * n; ++i)
      f.lu[i] = choir__onnx_number_at(&srcs[0], at * n * n + i);
    factor(&f);
    choir__onnx_set_number(&dsts[0], at, f.rank < n ? 0 : f.scale);
    double* row = f.column + n;
    for (int64_t i = 0; has_cofactors && i < n; ++i) {
      set_cofactors(&f, i, row);
      for (int64_t k = 0; k < n; ++k)
        choir__onnx_set_number(&dsts[1], (at * n + i) * n + k, row[k]);
    }
  }
  free(f.lu);
  free(f.rows);
  return NULL;
}

// y plus the sum of slope (x - x): y, with slope as gradient.
static choir_var_t* with_slope(choir__onnx_call_t* c, choir_var_t* y,
                               choir_var_t* x, choir_var_t* slope) {
  choir_tensor_t* tensor = choir_var_tensor(x);
  const choir_view_t* view = choir_var_view(x);
  if (!tensor || !view || !CALL_IS_OK) return y;
  choir__onnx_axes_t axes = {.count = 2};
  axes.has[view->ndim - 2] = axes.has[view->ndim - 1] = true;
  choir_var_t* zero = DO(sub, x, choir_scope_input(c->scope, tensor));
  return DO(
      add, y,
      choir__onnx_fold(c, DO(mul, zero, slope), &axes, false, choir_var_sum));
}

void choir__onnx_op_det(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  int64_t size = 0;
  char text[160];
  if (x->ndim < 2 || x->shape[x->ndim - 1] != x->shape[x->ndim - 2] ||
      !choir_dtype_is_float(x->dtype)) {
    FAIL(INVALID_ARGUMENT, "x is %s; needs square matrices of floats",
         choir_view_print(x, text, sizeof text));
    return;
  }
  if (!choir__onnx_product(c, x->shape, x->ndim - 2, x->ndim, &size)) return;
  choir_view_t dsts[2] = {*x, *x};
  dsts[0].ndim -= 2;
  choir_var_t* var = IN(0);
  choir_var_t* outs[2];
  const bool wants_slope = var && choir_var_wants_grad(var);
  choir__onnx_host(c, "determinant", determinants, &wants_slope,
                   sizeof wants_slope, &var, 1, dsts, wants_slope ? 2 : 1,
                   outs);
  OUT(0, wants_slope ? with_slope(c, outs[0], var, outs[1]) : outs[0]);
}
