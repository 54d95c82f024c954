// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tensor/ops/elements.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_BOOL(choir_matmul_attrs_t, transpose_a, false,
                     "swap the last two dimensions of a first"),
    CHOIR_FIELD_BOOL(choir_matmul_attrs_t, transpose_b, false,
                     "swap the last two dimensions of b first"),
};
static void swap_last_two(choir_view_t* view) {
  int32_t last = view->ndim - 1;
  int64_t size = view->shape[last];
  int64_t stride = view->strides[last];
  view->shape[last] = view->shape[last - 1];
  view->strides[last] = view->strides[last - 1];
  view->shape[last - 1] = size;
  view->strides[last - 1] = stride;
}

// The operands as (..., m, k) and (..., k, n).
static void untranspose(const choir_matmul_attrs_t* attrs, choir_view_t* a,
                        choir_view_t* b) {
  if (attrs->transpose_a) swap_last_two(a);
  if (attrs->transpose_b) swap_last_two(b);
}

// The leading dimensions of a view.
static choir_view_t leading(const choir_view_t* view) {
  choir_view_t batch = *view;
  batch.ndim -= 2;
  return batch;
}

static choir_status_t matmul_infer(const choir_record_t* record,
                                   choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  char text[2][160];
  for (int32_t i = 0; i < 2; ++i) {
    if (srcs[i].ndim >= 2) continue;
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s is %s; needs 2 or more dimensions",
                       i == 0 ? "a" : "b",
                       choir_view_print(&srcs[i], text[0], sizeof text[0]));
  }
  choir_view_t a = srcs[0];
  choir_view_t b = srcs[1];
  untranspose(record->attrs, &a, &b);
  if (a.shape[a.ndim - 1] != b.shape[b.ndim - 2])
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "a %s has %lld columns and b %s has %lld rows (after the "
        "transposes); needs as many",
        choir_view_print(&srcs[0], text[0], sizeof text[0]),
        (long long)a.shape[a.ndim - 1],
        choir_view_print(&srcs[1], text[1], sizeof text[1]),
        (long long)b.shape[b.ndim - 2]);
  choir_view_t a_batch = leading(&a);
  choir_view_t b_batch = leading(&b);
  int32_t ndim;
  int64_t shape[CHOIR_MAX_NDIM];
  CHOIR_TRY_NOTE(choir_view_broadcast_shape(&a_batch, &b_batch, &ndim, shape),
                 "leading dimensions");
  shape[ndim] = a.shape[a.ndim - 2];
  shape[ndim + 1] = b.shape[b.ndim - 1];
  return choir__infer_shape(a.dtype, ndim + 2, shape, &dsts[0]);
}

// (..., rows, columns) repeated over the destination's leading dimensions.
static choir_status_t repeat(const choir_view_t* matrix,
                             const choir_view_t* dst, choir_view_t* out) {
  int64_t shape[CHOIR_MAX_NDIM];
  memcpy(shape, dst->shape, sizeof shape);
  shape[dst->ndim - 2] = matrix->shape[matrix->ndim - 2];
  shape[dst->ndim - 1] = matrix->shape[matrix->ndim - 1];
  return choir_view_broadcast(matrix, dst->ndim, shape, out);
}

static choir_status_t matmul_reference(const choir_record_t* record,
                                       choir_stream_t* stream) {
  choir_view_t a = *choir_record_src(record, 0);
  choir_view_t b = *choir_record_src(record, 1);
  const choir_view_t* dst = choir_record_dst(record, 0);
  untranspose(record->attrs, &a, &b);
  choir_view_t operands[3];
  CHOIR_TRY(repeat(&a, dst, &operands[0]));
  CHOIR_TRY(repeat(&b, dst, &operands[1]));
  operands[2] = *dst;
  choir_record_t repeated = *record;
  repeated.operands = operands;
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(&repeated, stream, CHOIR__ALL_SOURCES, &dense));

  int64_t m = dst->shape[dst->ndim - 2];
  int64_t n = dst->shape[dst->ndim - 1];
  int64_t k = a.shape[a.ndim - 1];
  int64_t batches = m * n > 0 ? choir_view_count(dst) / (m * n) : 0;
  for (int64_t batch = 0; batch < batches; ++batch) {
    const double* x = dense.srcs[0] + batch * m * k;  // (m, k)
    const double* y = dense.srcs[1] + batch * k * n;  // (k, n)
    double* z = dense.dsts[0] + batch * m * n;        // (m, n)
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t inner = 0; inner < k; ++inner) {
        for (int64_t column = 0; column < n; ++column)
          z[row * n + column] += x[row * k + inner] * y[inner * n + column];
      }
    }
  }
  return choir__dense_end(&dense, NULL);
}

static void matmul_cost(const choir_record_t* record, choir_cost_t* out_cost) {
  const choir_matmul_attrs_t* attrs = record->attrs;
  const choir_view_t* a = choir_record_src(record, 0);
  int64_t k = a->shape[a->ndim - (attrs->transpose_a ? 2 : 1)];
  choir__cost_bytes(record, out_cost);
  out_cost->flops =
      2.0 * (double)k * (double)choir_view_count(choir_record_dst(record, 0));
}

static const choir_op_case_t cases[] = {
    {"1,1;1,1", NULL},
    {"2,3;3,4", NULL},
    {"5,1;1,7", NULL},
    {"1,9;9,1", NULL},
    {"17,33;33,9", NULL},
    {"33,17;33,9", "transpose_a=1"},
    {"17,33;9,33", "transpose_b=1"},
    {"33,17;9,33", "transpose_a=1 transpose_b=1"},
    {"64,65;65,63", NULL},
    {"8,128;128,10", NULL},
    {"128,8;128,10", "transpose_a=1"},
    {"3,5,7;3,7,2", NULL},
    {"3,5,7;7,2", NULL},
    {"3,5,7;2,7", "transpose_b=1"},
    {"2,3,33,20;1,20,65", NULL},
    {"3,7,5;7,2", "transpose_a=1"},
    {"5,7;3,7,2", NULL},
    {"2,1,5,7;3,7,2", NULL},
    {"2,3,7,5;3,7,2", "transpose_a=1"},
    {"3,5,7;1,2,7", "transpose_b=1"},
    {"0,4;4,3", NULL},
    {"3,0;0,4", NULL},
    {"3,4;4,0", NULL},
    {"2,100;100,3", NULL},
    {"16,260;260,512", NULL},
    {"20,16;20,1024", "transpose_a=1"},
    {"6,34;34,7", NULL},
    {"34,6;34,7", "transpose_a=1"},
    {"6,34;7,34", "transpose_b=1"},
    {"10,9;5,10", "transpose_a=1 transpose_b=1"},
    {"3,4,8;3,8,5", NULL},
    {NULL, NULL}};

CHOIR_OP_DEFINE(MATMUL, matmul, 2, 1,
                "(..., m, k) x (..., k, n), leading dimensions broadcast",
                CHOIR_OP_ATTRS(matmul, fields, "product of matrices"),
                .cost = matmul_cost, .is_product = true,
                .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 1e-5,
                .cases = cases);
