// SPDX-License-Identifier: Apache-2.0
// Sums, maxima, soft-max and losses. Losses have one element in one dimension;
// of no samples they are 0, and NaN in a file.
#include "onnx/onnx_put_def.h"

static const char* one_element(choir__onnx_put_t* p, const char* x) {
  return NODE("Reshape", x, NUMBERS(1));
}

// Over all elements.
static const char* reduced(choir__onnx_put_t* p, const char* type,
                           const char* x) {
  const char* y = NODE(type, x);
  choir__onnx_put_int(p, "keepdims", 0);
  return y;
}

// Over one axis, which goes.
static const char* reduced_along(choir__onnx_put_t* p, const char* type,
                                 const char* x, int64_t axis) {
  const char* y = NODE(type, x, NUMBERS(axis));
  choir__onnx_put_int(p, "keepdims", 0);
  return y;
}

void choir__onnx_put_reduction(choir__onnx_put_t* p) {
  const choir_reduce_attrs_t* a = ATTRS(sum);
  const char* y = a->axis < 0 ? NODE(p->type, SRC(0))
                              : NODE(p->type, SRC(0), NUMBERS(a->axis));
  choir__onnx_put_int(p, "keepdims", a->keep_dims);
  DST(0, y);
}

static const char* first_maxima(choir__onnx_put_t* p, const char* x,
                                int64_t axis, bool keep_dims) {
  const char* y = NODE("ArgMax", x);
  choir__onnx_put_int(p, "axis", axis);
  choir__onnx_put_int(p, "keepdims", keep_dims);
  return y;
}

void choir__onnx_put_argmax(choir__onnx_put_t* p) {
  const choir_reduce_attrs_t* a = ATTRS(argmax);
  if (a->axis >= 0) {
    DST(0, first_maxima(p, SRC(0), a->axis, a->keep_dims));
    return;
  }
  const char* flat = NODE("Reshape", SRC(0), NUMBERS(-1));
  int64_t ones[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < CHOIR_MAX_NDIM; ++i) ones[i] = 1;
  const int32_t ndim = a->keep_dims ? SRC_VIEW(0)->ndim : 0;
  DST(0, NODE("Reshape", first_maxima(p, flat, 0, false),
              choir__onnx_put_numbers(p, ndim, ones)));
}

static const char* along_rows(choir__onnx_put_t* p, const char* type,
                              const char* x) {
  const char* y = NODE(type, x);
  choir__onnx_put_int(p, "axis", -1);
  return y;
}

void choir__onnx_put_rows(choir__onnx_put_t* p) {
  DST(0, along_rows(p, p->type, SRC(0)));
}

static const char* class_loss(choir__onnx_put_t* p, const char* scores,
                              const char* labels) {
  const char* ids = choir__onnx_put_cast(p, labels, CHOIR_DTYPE_I64);
  const char* loss = NODE("SoftmaxCrossEntropyLoss", scores, ids);
  choir__onnx_put_text(p, "reduction", "mean");
  return one_element(p, loss);
}

void choir__onnx_put_softmax_cross_entropy(choir__onnx_put_t* p) {
  DST(0, class_loss(p, SRC(0), SRC(1)));
  if (WANTS(1)) DST(1, along_rows(p, "Softmax", SRC(0)));
}

void choir__onnx_put_linear_cross_entropy(choir__onnx_put_t* p) {
  const int64_t width = SRC_VIEW(0)->shape[SRC_VIEW(0)->ndim - 1];
  const char* x = NODE("Reshape", SRC(0), NUMBERS(-1, width));
  const char* scores = NODE("Gemm", x, SRC(2));
  choir__onnx_put_int(p, "transB", ATTRS(linear_cross_entropy)->transpose);
  DST(0, class_loss(p, scores, NODE("Reshape", SRC(1), NUMBERS(-1))));
}

// Mean of -log p[label].
void choir__onnx_put_cross_entropy(choir__onnx_put_t* p) {
  const char* ids = NODE("Unsqueeze", SRC(1), NUMBERS(1));
  const char* chosen = NODE("GatherElements", SRC(0), ids);
  choir__onnx_put_int(p, "axis", 1);
  const char* mean = reduced(p, "ReduceMean", NODE("Log", chosen));
  DST(0, one_element(p, NODE("Neg", mean)));
}

// t log p, and 0 where t is.
static const char* share(choir__onnx_put_t* p, const char* t, const char* q,
                         const char* zero) {
  return NODE("Where", NODE("Equal", t, zero), zero,
              NODE("Mul", t, NODE("Log", q)));
}

// Of each sample the sum, of these the mean.
void choir__onnx_put_binary_cross_entropy(choir__onnx_put_t* p) {
  const choir_dtype_t dtype = SRC_VIEW(0)->dtype;
  const char *zero = NUMBER(dtype, 0), *one = NUMBER(dtype, 1);
  const char* sum =
      NODE("Add", share(p, SRC(1), SRC(0), zero),
           share(p, NODE("Sub", one, SRC(1)), NODE("Sub", one, SRC(0)), zero));
  // Without dimensions there is one sample.
  if (SRC_VIEW(0)->ndim > 1)
    sum =
        reduced_along(p, "ReduceSum", NODE("Reshape", sum, NUMBERS(0, -1)), 1);
  DST(0, one_element(p, NODE("Neg", reduced(p, "ReduceMean", sum))));
}

void choir__onnx_put_mse_loss(choir__onnx_put_t* p) {
  const char* difference = NODE("Sub", SRC(0), SRC(1));
  DST(0, one_element(
             p, reduced(p, "ReduceMean", NODE("Mul", difference, difference))));
}

void choir__onnx_put_count_correct(choir__onnx_put_t* p) {
  const char* found = first_maxima(p, SRC(0), 1, false);
  const char* ids = choir__onnx_put_cast(p, SRC(1), CHOIR_DTYPE_I64);
  const char* hits =
      choir__onnx_put_cast(p, NODE("Equal", found, ids), CHOIR_DTYPE_I64);
  DST(0, one_element(p, reduced(p, "ReduceSum", hits)));
}
