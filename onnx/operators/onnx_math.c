// SPDX-License-Identifier: Apache-2.0
// Arithmetic and functions of each element.
#include <float.h>
#include <math.h>

#include "onnx/operators/onnx_math_internal.h"

// ---- One input ----

// Operators of floats that are an op of Choir.
#define FLOATS_(operator_name, op)                             \
  void choir__onnx_op_##operator_name(choir__onnx_call_t* c) { \
    OUT(0, DO(op, IN(0)));                                     \
  }
FLOATS_(exp, exp)
FLOATS_(log, log)
FLOATS_(sqrt, sqrt)
FLOATS_(reciprocal, reciprocal)
FLOATS_(floor, floor)
FLOATS_(ceil, ceil)
FLOATS_(round, round_even)
FLOATS_(sin, sin)
FLOATS_(cos, cos)
FLOATS_(tan, tan)
FLOATS_(asin, asin)
FLOATS_(acos, acos)
FLOATS_(atan, atan)
FLOATS_(sinh, sinh)
FLOATS_(cosh, cosh)
FLOATS_(asinh, asinh)
FLOATS_(acosh, acosh)
FLOATS_(atanh, atanh)
FLOATS_(erf, erf)
#undef FLOATS_

static bool is_unsigned(int32_t type) {
  return choir__onnx_integer_bits(type) > 0 && !choir__onnx_is_signed(type);
}

void choir__onnx_op_abs(choir__onnx_call_t* c) {
  const int32_t type = TYPE(0);
  choir_var_t* x = IN(0);
  OUT(0, is_unsigned(type) ? x : choir__onnx_wrap(c, DO(abs, x), type));
}

void choir__onnx_op_neg(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_wrap(c, DO(neg, IN(0)), TYPE(0)));
}

void choir__onnx_op_sign(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  choir_var_t* x = IN(0);
  OUT(0, is_unsigned(TYPE(0))
             ? DO(not_equal, x, choir__onnx_scalar(c, view->dtype, 0))
             : DO(sign, x));
}

// ---- Two inputs ----

choir_var_t* choir__onnx_second(choir__onnx_call_t* c) {
  choir_var_t* b = IN(1);
  const choir_view_t* a_view = VIEW(0);
  const choir_view_t* b_view = VIEW(1);
  if (c->version >= 7 || !a_view || !b_view || choir_view_count(b_view) == 1 ||
      !choir__onnx_has_attr(c, "axis"))
    return b;
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (axis < 0) axis += a_view->ndim;
  if (axis < 0 || axis > a_view->ndim - b_view->ndim)
    return FAIL(INVALID_ARGUMENT,
                "axis %lld for %d dimensions in %d; they do not lie there",
                (long long)axis, b_view->ndim, a_view->ndim);
  int64_t shape[CHOIR_MAX_NDIM];
  const int32_t ndim = a_view->ndim - (int32_t)axis;
  for (int32_t i = 0; i < ndim; ++i)
    shape[i] = i < b_view->ndim ? b_view->shape[i] : 1;
  return choir__onnx_reshape(c, b, ndim, shape);
}

void choir__onnx_op_add(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_wrap(c, DO(add, IN(0), choir__onnx_second(c)), TYPE(0)));
}

void choir__onnx_op_sub(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_wrap(c, DO(sub, IN(0), choir__onnx_second(c)), TYPE(0)));
}

void choir__onnx_op_mul(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_wrap(c, DO(mul, IN(0), choir__onnx_second(c)), TYPE(0)));
}

void choir__onnx_op_div(choir__onnx_call_t* c) {
  choir_var_t* a = IN(0);
  choir_var_t* b = choir__onnx_second(c);
  OUT(0, choir__onnx_integer_bits(TYPE(0)) > 0
             ? choir__onnx_integers(c, CHOIR__ONNX_DIVIDE, a, b)
             : DO(div, a, b));
}

// ---- Mod ----

// With the sign of a (fmod) or of b.
static double float_modulo(double a, double b, bool is_fmod) {
  const double rest = fmod(a, b);
  if (is_fmod || isnan(rest)) return rest;
  if (rest == 0) return copysign(0, b);
  return signbit(rest) != signbit(b) ? rest + b : rest;
}

static choir_status_t modulo_loop(const choir__onnx_array_t* srcs,
                                  const choir__onnx_array_t* dsts,
                                  const void* attrs) {
  const bool is_fmod = *(const bool*)attrs;
  for (int64_t k = 0; k < dsts->count; ++k)
    choir__onnx_set_number(
        dsts, k,
        float_modulo(choir__onnx_number_at(&srcs[0], k),
                     choir__onnx_number_at(&srcs[1], k), is_fmod));
  return NULL;
}

void choir__onnx_op_mod(choir__onnx_call_t* c) {
  const bool is_fmod = choir__onnx_int(c, "fmod", 0) != 0;
  choir_var_t* operands[] = {IN(0), IN(1)};
  if (choir__onnx_integer_bits(TYPE(0)) > 0) {
    OUT(0, choir__onnx_integers(
               c, is_fmod ? CHOIR__ONNX_REMAINDER : CHOIR__ONNX_MODULO,
               operands[0], operands[1]));
    return;
  }
  if (!choir__onnx_broadcast_both(c, &operands[0], &operands[1])) return;
  choir_var_t* y = NULL;
  choir__onnx_host(c, "onnx/mod", modulo_loop, &is_fmod, sizeof is_fmod,
                   operands, 2, choir_var_view(operands[0]), 1, &y);
  OUT(0, y);
}

// ---- Pow ----

// Exponents that have cheaper ops; NULL: this one has none.
static choir_var_t* plain_power(choir__onnx_call_t* c, choir_var_t* x,
                                double exponent) {
  if (exponent == 1) return x;
  if (exponent == 2) return DO(square, x);
  if (exponent == 3) return DO(mul, DO(square, x), x);
  if (exponent == 0.5) return DO(sqrt, x);
  if (exponent == -1) return DO(reciprocal, x);
  return NULL;
}

static choir_var_t* known_power(choir__onnx_call_t* c, choir_var_t* x) {
  const choir_view_t* exponent = VIEW(1);
  if (!c->inputs[1]->is_known || choir_view_count(exponent) != 1 ||
      exponent->ndim > VIEW(0)->ndim)
    return NULL;
  return plain_power(c, x, choir__onnx_read_number(c, 1, 0));
}

// The dtype in which a float to the power of a float is computed.
static choir_dtype_t wider(choir_dtype_t a, choir_dtype_t b) {
  if (a == b) return a;
  return a == CHOIR_DTYPE_F64 || b == CHOIR_DTYPE_F64 ? CHOIR_DTYPE_F64
                                                      : CHOIR_DTYPE_F32;
}

void choir__onnx_op_pow(choir__onnx_call_t* c) {
  const choir_view_t* base_view = VIEW(0);
  const choir_view_t* exponent_view = VIEW(1);
  if (!base_view || !exponent_view) return;
  const int32_t type = TYPE(0);
  const int32_t exponent_type = TYPE(1);
  const bool is_integer = choir__onnx_integer_bits(type) > 0;
  const bool is_exponent_integer = choir__onnx_integer_bits(exponent_type) > 0;
  choir_var_t* base = IN(0);
  choir_var_t* exponent = choir__onnx_second(c);
  if (is_integer && is_exponent_integer) {
    OUT(0, choir__onnx_integers(c, CHOIR__ONNX_POWER, base, exponent));
    return;
  }
  if (is_integer) {
    base = choir__onnx_convert_plainly(c, base, type, CHOIR_ONNX_DOUBLE);
    exponent = choir__onnx_cast(c, exponent, CHOIR_DTYPE_F64);
    OUT(0, choir__onnx_convert_plainly(c, DO(pow, base, exponent),
                                       CHOIR_ONNX_DOUBLE, type));
    return;
  }
  const choir_dtype_t dtype = base_view->dtype;
  choir_var_t* y = known_power(c, base);
  if (y) {
    OUT(0, y);
    return;
  }
  choir_dtype_t work = dtype;
  if (is_exponent_integer)
    exponent = choir__onnx_convert_plainly(c, exponent, exponent_type, type);
  else
    work = wider(dtype, exponent_view->dtype);
  y = DO(pow, choir__onnx_cast(c, base, work),
         choir__onnx_cast(c, exponent, work));
  OUT(0, choir__onnx_cast(c, y, dtype));
}

// ---- Any number of inputs ----

typedef choir_var_t* (*pair_t)(choir_scope_t*, choir_var_t*, choir_var_t*);

// type: of inputs whose order counts.
static choir_var_t* fold(choir__onnx_call_t* c, pair_t pair, int32_t type) {
  if (c->in_count < 1) return FAIL(INVALID_ARGUMENT, "no inputs; needs one");
  choir_var_t* y = choir__onnx_ordered(c, IN(0), type);
  for (int32_t i = 1; i < c->in_count && CALL_IS_OK; ++i)
    y = pair(c->scope, y, choir__onnx_ordered(c, IN(i), type));
  return choir__onnx_ordered(c, y, type);
}

void choir__onnx_op_max(choir__onnx_call_t* c) {
  OUT(0, fold(c, choir_var_maximum, TYPE(0)));
}

void choir__onnx_op_min(choir__onnx_call_t* c) {
  OUT(0, fold(c, choir_var_minimum, TYPE(0)));
}

void choir__onnx_op_sum(choir__onnx_call_t* c) {
  OUT(0, fold(c, choir_var_add, CHOIR_ONNX_UNDEFINED));
}

void choir__onnx_op_mean(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  choir_var_t* y = fold(c, choir_var_add, CHOIR_ONNX_UNDEFINED);
  if (!view || !CALL_IS_OK || c->in_count == 1) {
    OUT(0, y);
    return;
  }
  OUT(0, DO(div, y, choir__onnx_scalar(c, view->dtype, c->in_count)));
}

// ---- Clip ----

// A bound as a scalar; NULL: input i has more than one element.
static choir_var_t* bound(choir__onnx_call_t* c, int32_t i) {
  const choir_view_t* view = VIEW(i);
  if (view && choir_view_count(view) == 1)
    return choir__onnx_reshape(c, IN(i), 0, NULL);
  FAIL(INVALID_ARGUMENT, "the bound of input %d is no single number", i);
  return NULL;
}

// Bounds by ops: those of integers, and those that a node computes.
static choir_var_t* clip_by_ops(choir__onnx_call_t* c) {
  const int32_t type = TYPE(0);
  choir_var_t* y = choir__onnx_ordered(c, IN(0), type);
  if (HAS(1)) y = DO(maximum, y, choir__onnx_ordered(c, bound(c, 1), type));
  if (HAS(2)) y = DO(minimum, y, choir__onnx_ordered(c, bound(c, 2), type));
  return choir__onnx_ordered(c, y, type);
}

static bool is_float_known(choir__onnx_call_t* c, int32_t i) {
  return !HAS(i) || c->inputs[i]->is_known;
}

void choir__onnx_op_clip(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  if (!choir_dtype_is_float(view->dtype) || !is_float_known(c, 1) ||
      !is_float_known(c, 2)) {
    OUT(0, clip_by_ops(c));
    return;
  }
  choir_clip_attrs_t attrs = {.low = -INFINITY, .high = INFINITY};
  if (c->version < 11) {
    attrs.low = choir__onnx_float(c, "min", -(double)FLT_MAX);
    attrs.high = choir__onnx_float(c, "max", (double)FLT_MAX);
  } else {
    attrs.low = choir__onnx_read_number(c, 1, attrs.low);
    attrs.high = choir__onnx_read_number(c, 2, attrs.high);
  }
  OUT(0, DO(clip, IN(0), &attrs));
}
