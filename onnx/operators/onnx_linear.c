// SPDX-License-Identifier: Apache-2.0
// Products of matrices.
#include "onnx/operators/onnx_math_internal.h"
#include "onnx/operators/onnx_reduce_internal.h"

// ---- Integers ----

// Where matrix `batch` of the result has its operand: in matrices.
static int64_t matrix_of(const choir_view_t* operand, const choir_view_t* dst,
                         int64_t batch) {
  int64_t place = 0, step = 1;
  for (int32_t back = 3; back <= dst->ndim; ++back) {
    const int64_t size = dst->shape[dst->ndim - back];
    const int64_t at = batch % size;
    batch /= size;
    if (back > operand->ndim) continue;
    const int64_t own = operand->shape[operand->ndim - back];
    if (own > 1) place += at * step;
    step *= own;
  }
  return place;
}

static choir_status_t integer_product(const choir__onnx_array_t* srcs,
                                      const choir__onnx_array_t* dsts,
                                      const void* attrs) {
  const choir_view_t* a = &srcs[0].view;
  const choir_view_t* b = &srcs[1].view;
  const choir_view_t* y = &dsts[0].view;
  const int32_t type = *(const int32_t*)attrs;
  const int64_t m = y->shape[y->ndim - 2], n = y->shape[y->ndim - 1];
  const int64_t size = a->shape[a->ndim - 1];
  for (int64_t at = 0; at < dsts[0].count; ++at) {
    const int64_t row = at / n, column = at % n, batch = row / m;
    const int64_t a_row = (matrix_of(a, y, batch) * m + row % m) * size;
    const int64_t b_matrix = matrix_of(b, y, batch) * size * n;
    uint64_t sum = 0;
    for (int64_t k = 0; k < size; ++k)
      sum += (uint64_t)choir__onnx_int_at(&srcs[0], a_row + k) *
             (uint64_t)choir__onnx_int_at(&srcs[1], b_matrix + k * n + column);
    choir__onnx_set_integer(&dsts[0], at, (int64_t)sum, type);
  }
  return NULL;
}

static choir_var_t* swapped(choir__onnx_call_t* c, choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  int64_t axes[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < view->ndim; ++i) axes[i] = i;
  axes[view->ndim - 2] = view->ndim - 1;
  axes[view->ndim - 1] = view->ndim - 2;
  return choir__onnx_transpose(c, x, axes);
}

// dtype and shape of the product; false: it failed.
static bool set_product(choir__onnx_call_t* c, choir_view_t a, choir_view_t b,
                        const choir_matmul_attrs_t* attrs,
                        choir_view_t* out_view) {
  if (a.ndim < 2 || b.ndim < 2) {
    FAIL(INVALID_ARGUMENT,
         "matrices of %d and %d dimensions; needs two or more", a.ndim, b.ndim);
    return false;
  }
  const bool flips[] = {attrs && attrs->transpose_a,
                        attrs && attrs->transpose_b};
  const int64_t rows = a.shape[a.ndim - (flips[0] ? 1 : 2)];
  const int64_t a_inner = a.shape[a.ndim - (flips[0] ? 2 : 1)];
  const int64_t b_inner = b.shape[b.ndim - (flips[1] ? 1 : 2)];
  const int64_t columns = b.shape[b.ndim - (flips[1] ? 2 : 1)];
  // A step in 16 bits may have floats of both kinds, of which the op takes
  // care.
  const bool are_floats =
      choir_dtype_is_float(a.dtype) && choir_dtype_is_float(b.dtype);
  if (a_inner != b_inner || (a.dtype != b.dtype && !are_floats)) {
    FAIL(INVALID_ARGUMENT,
         "the left matrices are of %lld columns and %s, the right ones of "
         "%lld rows and %s; needs as many of one dtype",
         (long long)a_inner, choir_dtype_name(a.dtype), (long long)b_inner,
         choir_dtype_name(b.dtype));
    return false;
  }
  a.ndim -= 2;
  b.ndim -= 2;
  *out_view = (choir_view_t){.dtype = a.dtype};
  choir_status_t status =
      choir_view_broadcast_shape(&a, &b, &out_view->ndim, out_view->shape);
  if (status) {
    choir__onnx_fail(c, status);
    return false;
  }
  out_view->shape[out_view->ndim++] = rows;
  out_view->shape[out_view->ndim++] = columns;
  return choir__onnx_has_room(c, out_view->dtype, out_view->ndim,
                              out_view->shape);
}

choir_var_t* choir__onnx_matmul(choir__onnx_call_t* c, choir_var_t* a,
                                choir_var_t* b,
                                const choir_matmul_attrs_t* attrs) {
  const choir_view_t* left = choir_var_view(a);
  const choir_view_t* right = choir_var_view(b);
  choir_view_t dst;
  if (!left || !right || !set_product(c, *left, *right, attrs, &dst))
    return choir_scope_fail(c->scope, NULL);
  if (choir_dtype_is_float(left->dtype)) return DO(matmul, a, b, attrs);
  choir_var_t* srcs[] = {attrs && attrs->transpose_a ? swapped(c, a) : a,
                         attrs && attrs->transpose_b ? swapped(c, b) : b};
  choir_var_t* y;
  const int32_t type = TYPE(0);
  choir__onnx_host(c, "product of integers", integer_product, &type,
                   sizeof type, srcs, 2, &dst, 1, &y);
  return y;
}

// ---- MatMul ----

choir_var_t* choir__onnx_numpy_matmul(choir__onnx_call_t* c, choir_var_t* a,
                                      choir_var_t* b) {
  const choir_view_t *left = choir_var_view(a), *right = choir_var_view(b);
  if (!left || !right) return choir_scope_fail(c->scope, NULL);
  const bool is_row = left->ndim == 1, is_column = right->ndim == 1;
  const int64_t first = 0, second = 1;
  if (is_row) a = choir__onnx_unsqueeze(c, a, &first, 1);
  if (is_column) b = choir__onnx_unsqueeze(c, b, &second, 1);
  choir_var_t* y = choir__onnx_matmul(c, a, b, NULL);
  const choir_view_t* view = choir_var_view(y);
  if (!view || (!is_row && !is_column)) return y;
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t i = 0; i < view->ndim; ++i)
    if (!(is_row && i == view->ndim - 2) && !(is_column && i == view->ndim - 1))
      shape[ndim++] = view->shape[i];
  return choir__onnx_reshape(c, y, ndim, shape);
}

void choir__onnx_op_mat_mul(choir__onnx_call_t* c) {
  if (VIEW(0) && VIEW(1)) OUT(0, choir__onnx_numpy_matmul(c, IN(0), IN(1)));
}

// ---- MatMul and Add (onnx_join.c) ----

void choir__onnx_layer(choir__onnx_call_t* c) {
  choir_var_t* x = IN(0);
  const choir_view_t *left = VIEW(0), *right = VIEW(1);
  if (!left || !right) return;
  const bool is_row = left->ndim == 1;
  const int64_t first = 0;
  if (is_row) x = choir__onnx_unsqueeze(c, x, &first, 1);
  left = choir_var_view(x);
  choir_view_t dst;
  if (!left || !set_product(c, *left, *right, NULL, &dst)) return;
  choir_var_t* y = DO(linear, x, IN(1), IN(2));
  OUT(0, is_row ? choir__onnx_reshape(c, y, 1, &right->shape[1]) : y);
}

// ---- Gemm ----

typedef struct gemm_s {
  choir_var_t *a, *b, *bias;  // bias NULL: none
  double alpha, beta;
  choir_matmul_attrs_t flags;
  int64_t rows, columns;  // of the result
} gemm_t;

static bool check_bias(choir__onnx_call_t* c, const gemm_t* gemm,
                       const choir_view_t* bias) {
  const int64_t shape[] = {gemm->rows, gemm->columns};
  bool fits = bias->ndim <= 2;
  for (int32_t i = 0; fits && i < bias->ndim; ++i)
    fits = bias->shape[i] == 1 || bias->shape[i] == shape[2 - bias->ndim + i];
  char text[160];
  if (!fits)
    FAIL(INVALID_ARGUMENT,
         "C is %s; needs a shape that broadcasts to (%lld, %lld)",
         choir_view_print(bias, text, sizeof text), (long long)gemm->rows,
         (long long)gemm->columns);
  return fits;
}

static bool set_gemm(choir__onnx_call_t* c, gemm_t* out) {
  const choir_view_t* a = VIEW(0);
  const choir_view_t* b = VIEW(1);
  if (!a || !b) return false;
  if (a->ndim != 2 || b->ndim != 2) {
    FAIL(INVALID_ARGUMENT, "A and B have %d and %d dimensions; needs two",
         a->ndim, b->ndim);
    return false;
  }
  *out = (gemm_t){.a = IN(0),
                  .b = IN(1),
                  .alpha = choir__onnx_float(c, "alpha", 1),
                  .beta = choir__onnx_float(c, "beta", 1),
                  .flags = {choir__onnx_int(c, "transA", 0) != 0,
                            choir__onnx_int(c, "transB", 0) != 0}};
  out->rows = a->shape[out->flags.transpose_a ? 1 : 0];
  out->columns = b->shape[out->flags.transpose_b ? 0 : 1];
  const int64_t shape[] = {out->rows, out->columns};
  if (!choir__onnx_has_room(c, a->dtype, 2, shape)) return false;
  if (!HAS(2) || out->beta == 0) return true;
  out->bias = IN(2);
  const choir_view_t* bias = choir_var_view(out->bias);
  return bias && check_bias(c, out, bias);
}

// x W + b with a number for each column.
static bool is_layer(const gemm_t* gemm) {
  const choir_view_t* bias = choir_var_view(gemm->bias);
  return bias && choir_dtype_is_float(bias->dtype) &&
         !gemm->flags.transpose_a && gemm->alpha == 1 && gemm->beta == 1 &&
         bias->ndim > 0 && bias->shape[bias->ndim - 1] == gemm->columns &&
         (bias->ndim == 1 || bias->shape[0] == 1);
}

static choir_var_t* scaled(choir__onnx_call_t* c, choir_var_t* x,
                           double factor) {
  const choir_scale_attrs_t attrs = {.factor = factor};
  return factor == 1 ? x : DO(scale, x, &attrs);
}

void choir__onnx_op_gemm(choir__onnx_call_t* c) {
  gemm_t gemm;
  if (!set_gemm(c, &gemm)) return;
  const choir_dtype_t dtype = VIEW(0)->dtype;
  if (gemm.bias && is_layer(&gemm)) {
    choir_var_t* bias = choir__onnx_reshape(c, gemm.bias, 1, &gemm.columns);
    choir_var_t* w = gemm.flags.transpose_b ? swapped(c, gemm.b) : gemm.b;
    OUT(0, DO(linear, gemm.a, w, bias));
    return;
  }
  // Whole numbers times others are computed as doubles.
  if (!choir_dtype_is_float(dtype) && (gemm.alpha != 1 || gemm.beta != 1)) {
    gemm.a = choir__onnx_cast(c, gemm.a, CHOIR_DTYPE_F64);
    gemm.b = choir__onnx_cast(c, gemm.b, CHOIR_DTYPE_F64);
    if (gemm.bias) gemm.bias = choir__onnx_cast(c, gemm.bias, CHOIR_DTYPE_F64);
  }
  choir_var_t* y = choir__onnx_matmul(c, gemm.a, gemm.b, &gemm.flags);
  y = scaled(c, y, gemm.alpha);
  if (gemm.bias) y = DO(add, y, scaled(c, gemm.bias, gemm.beta));
  OUT(0, choir_dtype_is_float(dtype) ? y : choir__onnx_cast(c, y, dtype));
}
