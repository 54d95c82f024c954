// SPDX-License-Identifier: Apache-2.0
// Elementwise ops.
#include "onnx/onnx_put_def.h"

// An operator of the same sources.
void choir__onnx_put_same(choir__onnx_put_t* p) {
  const char* in[4] = {NULL};
  for (int32_t i = 0; i < p->entry->src_count && i < 3; ++i) in[i] = SRC(i);
  DST(0, choir__onnx_put_node(p, p->type, in));
}

// ONNX's has no bool.
void choir__onnx_put_arithmetic(choir__onnx_put_t* p) {
  if (SRC_VIEW(0)->dtype == CHOIR_DTYPE_BOOL)
    REFUSE(UNIMPLEMENTED, "ONNX's %s takes no bool", p->type);
  choir__onnx_put_same(p);
}

void choir__onnx_put_square(choir__onnx_put_t* p) {
  DST(0, NODE("Mul", SRC(0), SRC(0)));
}

void choir__onnx_put_gelu_tanh(choir__onnx_put_t* p) {
  const char* y = NODE("Gelu", SRC(0));
  choir__onnx_put_text(p, "approximate", "tanh");
  DST(0, y);
}

void choir__onnx_put_silu(choir__onnx_put_t* p) {
  DST(0, NODE("Mul", SRC(0), NODE("Sigmoid", SRC(0))));
}

void choir__onnx_put_scale(choir__onnx_put_t* p) {
  const choir_dtype_t dtype = SRC_VIEW(0)->dtype;
  const double factor = ATTRS(scale)->factor, shift = ATTRS(scale)->shift;
  const char* y = SRC(0);
  if (factor != 1 || shift == 0) y = NODE("Mul", y, NUMBER(dtype, factor));
  if (shift != 0) y = NODE("Add", y, NUMBER(dtype, shift));
  DST(0, y);
}

// ONNX's Round takes halves to even numbers. |x| - floor |x| is exact.
void choir__onnx_put_round(choir__onnx_put_t* p) {
  const choir_dtype_t dtype = SRC_VIEW(0)->dtype;
  const char* size = NODE("Abs", SRC(0));
  const char* below = NODE("Floor", size);
  const char* is_up =
      NODE("GreaterOrEqual", NODE("Sub", size, below), NUMBER(dtype, 0.5));
  const char* whole = NODE("Add", below, choir__onnx_put_cast(p, is_up, dtype));
  DST(0, NODE("Mul", NODE("Sign", SRC(0)), whole));
}

// With the op's own numbers, under ONNX's names.
static void put_with(choir__onnx_put_t* p, const char* first, double a,
                     const char* second, double b) {
  const char* y = NODE(p->type, SRC(0));
  choir__onnx_put_float(p, first, a);
  if (second) choir__onnx_put_float(p, second, b);
  DST(0, y);
}

void choir__onnx_put_elu(choir__onnx_put_t* p) {
  put_with(p, "alpha", ATTRS(elu)->alpha, NULL, 0);
}

void choir__onnx_put_selu(choir__onnx_put_t* p) {
  put_with(p, "alpha", ATTRS(selu)->alpha, "gamma", ATTRS(selu)->gamma);
}

void choir__onnx_put_leaky_relu(choir__onnx_put_t* p) {
  put_with(p, "alpha", ATTRS(leaky_relu)->alpha, NULL, 0);
}

void choir__onnx_put_hard_sigmoid(choir__onnx_put_t* p) {
  const choir_hard_sigmoid_attrs_t* a = ATTRS(hard_sigmoid);
  put_with(p, "alpha", a->alpha, "beta", a->gamma);
}

void choir__onnx_put_clip(choir__onnx_put_t* p) {
  const choir_dtype_t dtype = SRC_VIEW(0)->dtype;
  DST(0, NODE("Clip", SRC(0), NUMBER(dtype, ATTRS(clip)->low),
              NUMBER(dtype, ATTRS(clip)->high)));
}

void choir__onnx_put_prelu(choir__onnx_put_t* p) {
  const char* is_below =
      NODE("LessOrEqual", SRC(0), NUMBER(SRC_VIEW(0)->dtype, 0));
  DST(0, NODE("Where", is_below, NODE("Mul", SRC(1), SRC(0)), SRC(0)));
}

// ---- Comparisons: ONNX's give bool, Choir's the sources' dtype ----

static const char* compared(choir__onnx_put_t* p, const char* type) {
  const char *a = SRC(0), *b = SRC(1);
  if (SRC_VIEW(0)->dtype == CHOIR_DTYPE_BOOL) {
    a = choir__onnx_put_cast(p, a, CHOIR_DTYPE_I32);
    b = choir__onnx_put_cast(p, b, CHOIR_DTYPE_I32);
  }
  return NODE(type, a, b);
}

void choir__onnx_put_comparison(choir__onnx_put_t* p) {
  DST(0, choir__onnx_put_cast(p, compared(p, p->type), SRC_VIEW(0)->dtype));
}

void choir__onnx_put_not_equal(choir__onnx_put_t* p) {
  DST(0, choir__onnx_put_cast(p, NODE("Not", compared(p, "Equal")),
                              SRC_VIEW(0)->dtype));
}

void choir__onnx_put_logic(choir__onnx_put_t* p) {
  const char* in[3] = {NULL};
  for (int32_t i = 0; i < p->entry->src_count && i < 2; ++i)
    in[i] = choir__onnx_put_cast(p, SRC(i), CHOIR_DTYPE_BOOL);
  const char* y = choir__onnx_put_node(p, p->type, in);
  DST(0, choir__onnx_put_cast(p, y, SRC_VIEW(0)->dtype));
}

void choir__onnx_put_where(choir__onnx_put_t* p) {
  const char* condition = SRC(0);
  if (SRC_VIEW(0)->dtype != CHOIR_DTYPE_BOOL)
    condition = choir__onnx_put_cast(p, condition, CHOIR_DTYPE_BOOL);
  DST(0, NODE("Where", condition, SRC(1), SRC(2)));
}

// ---- Values ----

// Whole numbers saturate; ONNX's Cast drops bits, and says nothing of floats
// that are too large for whole numbers.
void choir__onnx_put_cast_op(choir__onnx_put_t* p) {
  const choir_dtype_t from = SRC_VIEW(0)->dtype;
  const choir_dtype_t to = (choir_dtype_t)ATTRS(cast)->dtype;
  const char* x = SRC(0);
  if (to == CHOIR_DTYPE_U8 && from != CHOIR_DTYPE_BOOL && from != to)
    x = NODE("Clip", x, NUMBER(from, 0), NUMBER(from, 255));
  if (to == CHOIR_DTYPE_I32 && from == CHOIR_DTYPE_I64)
    x = NODE("Clip", x, NUMBER(from, INT32_MIN), NUMBER(from, INT32_MAX));
  DST(0, choir__onnx_put_cast(p, x, to));
}

void choir__onnx_put_fill(choir__onnx_put_t* p) {
  const char* y = NODE("ConstantOfShape", NODE("Shape", SRC(0)));
  choir__onnx_put_element(p, "value", SRC_VIEW(0)->dtype, ATTRS(fill)->value);
  DST(0, y);
}

// What it was in training; a file that runs leaves its input as it is.
void choir__onnx_put_dropout(choir__onnx_put_t* p) {
  DST(0,
      NODE("Dropout", SRC(0), NUMBER(CHOIR_DTYPE_F32, ATTRS(dropout)->ratio)));
}
