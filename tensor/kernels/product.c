// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/product.h"

// Strides of a matrix to a leading dimension; false when neither its rows nor
// its columns are dense.
static bool describe(int64_t rows, int64_t columns, int64_t row_stride,
                     int64_t column_stride, choir__matrix_t* out) {
  // A size of 1 leaves its stride without meaning.
  if (columns == 1 || column_stride == 1) {
    out->transposed = false;
    out->ld = rows == 1 ? columns : row_stride;
    if (out->ld >= columns && (columns > 1 || rows == 1 || row_stride > 0))
      return true;
  }
  if (rows == 1 || row_stride == 1) {
    out->transposed = true;
    out->ld = columns == 1 ? rows : column_stride;
    return out->ld >= rows;
  }
  return false;
}

// The view as one matrix of rows: how many there are, and how far apart. False
// where they are not equally far.
static bool join_rows(const choir_view_t* view, int64_t* out_rows,
                      int64_t* out_stride) {
  *out_rows = 1;
  *out_stride = view->strides[view->ndim - 2];
  for (int32_t k = view->ndim - 2; k >= 0; --k) {
    if (view->shape[k] == 1) continue;
    if (*out_rows == 1)
      *out_stride = view->strides[k];
    else if (view->strides[k] != *out_rows * *out_stride)
      return false;
    *out_rows *= view->shape[k];
  }
  return true;
}

bool choir__matmul_product(const choir_record_t* record,
                           choir__product_t* out_product) {
  choir__product_t* out = out_product;
  const choir_matmul_attrs_t* attrs = record->attrs;
  const choir_view_t* a = choir_record_src(record, 0);
  const choir_view_t* b = choir_record_src(record, 1);
  const choir_view_t* c = choir_record_dst(record, 0);
  if (a->ndim < 2 || b->ndim < 2 || c->ndim < 2) return false;
  const int32_t ar = a->ndim - 2 + attrs->transpose_a;
  const int32_t ac = a->ndim - 1 - attrs->transpose_a;
  const int32_t br = b->ndim - 2 + attrs->transpose_b;
  const int32_t bc = b->ndim - 1 - attrs->transpose_b;
  const int32_t cr = c->ndim - 2, cc = c->ndim - 1;
  out->m = a->shape[ar];
  out->k = a->shape[ac];
  out->n = b->shape[bc];
  if (choir_view_count(c) == 0 || out->k == 0) return false;
  int64_t a_stride = a->strides[ar], c_stride = c->strides[cr];
  int64_t rows = 0, a_joined = 0, c_joined = 0;
  out->is_whole =
      !attrs->transpose_a && choir_view_count(b) == out->k * out->n &&
      choir_view_count(a) * out->n == choir_view_count(c) * out->k &&
      join_rows(a, &rows, &a_joined) && join_rows(c, &rows, &c_joined);
  if (out->is_whole) {
    out->m = rows;
    a_stride = a_joined;
    c_stride = c_joined;
  }
  return describe(out->m, out->k, a_stride, a->strides[ac], &out->a) &&
         describe(out->k, out->n, b->strides[br], b->strides[bc], &out->b) &&
         describe(out->m, out->n, c_stride, c->strides[cc], &out->c);
}

bool choir__linear_product(const choir_record_t* record,
                           choir__product_t* out_product) {
  choir__product_t* out = out_product;
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* w = choir_record_src(record, 1);
  const choir_view_t* b = choir_record_src(record, 2);
  const choir_view_t* y = choir_record_dst(record, 0);
  const int32_t last = x->ndim - 1;
  int64_t x_stride, y_stride;
  out->k = x->shape[last];
  out->n = w->shape[1];
  out->is_whole = true;
  if (choir_view_count(y) == 0 || out->k == 0) return false;
  if (!join_rows(x, &out->m, &x_stride) || !join_rows(y, &out->m, &y_stride))
    return false;
  return describe(out->m, out->k, x_stride, x->strides[last], &out->a) &&
         describe(out->k, out->n, w->strides[0], w->strides[1], &out->b) &&
         describe(out->m, out->n, y_stride, y->strides[last], &out->c) &&
         !out->c.transposed && (b->strides[0] == 1 || b->shape[0] == 1);
}

int64_t choir__matrix_offset(const choir_view_t* view, const choir_view_t* dst,
                             int64_t index) {
  int64_t offset = 0;
  for (int32_t k = dst->ndim - 3; k >= 0; k--) {
    const int64_t at = index % dst->shape[k];
    index /= dst->shape[k];
    const int32_t own = view->ndim - dst->ndim + k;
    if (own >= 0 && view->shape[own] > 1) offset += at * view->strides[own];
  }
  return offset;
}
