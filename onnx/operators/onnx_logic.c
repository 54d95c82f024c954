// SPDX-License-Identifier: Apache-2.0
// Comparisons, logic, choices. Choir's comparisons give 0 and 1 in the dtype of
// their sources; ONNX's give bool.
#include <math.h>

#include "onnx/operators/onnx_math_internal.h"

typedef choir_var_t* (*pair_t)(choir_scope_t*, choir_var_t*, choir_var_t*);

// ---- Comparisons ----

static void out_bool(choir__onnx_call_t* c, choir_var_t* y) {
  OUT_AS(0, choir__onnx_cast(c, y, CHOIR_DTYPE_BOOL), BOOL);
}

static void compare(choir__onnx_call_t* c, pair_t pair) {
  const int32_t type = TYPE(0);
  choir_var_t* a = choir__onnx_ordered(c, IN(0), type);
  choir_var_t* b = choir__onnx_ordered(c, choir__onnx_second(c), type);
  out_bool(c, pair(c->scope, a, b));
}

void choir__onnx_op_less(choir__onnx_call_t* c) { compare(c, choir_var_less); }

void choir__onnx_op_greater(choir__onnx_call_t* c) {
  compare(c, choir_var_greater);
}

void choir__onnx_op_less_or_equal(choir__onnx_call_t* c) {
  compare(c, choir_var_less_equal);
}

void choir__onnx_op_greater_or_equal(choir__onnx_call_t* c) {
  compare(c, choir_var_greater_equal);
}

void choir__onnx_op_equal(choir__onnx_call_t* c) {
  choir_var_t* a = IN(0);
  choir_var_t* b = choir__onnx_second(c);
  if (TYPE(0) == CHOIR_ONNX_BOOL)
    out_bool(c, DO(logical_not, DO(logical_xor, a, b)));
  else
    out_bool(c, DO(equal, a, b));
}

// ---- Logic ----

void choir__onnx_op_and(choir__onnx_call_t* c) {
  out_bool(c, DO(logical_and, IN(0), choir__onnx_second(c)));
}

void choir__onnx_op_or(choir__onnx_call_t* c) {
  out_bool(c, DO(logical_or, IN(0), choir__onnx_second(c)));
}

void choir__onnx_op_xor(choir__onnx_call_t* c) {
  out_bool(c, DO(logical_xor, IN(0), choir__onnx_second(c)));
}

void choir__onnx_op_not(choir__onnx_call_t* c) {
  out_bool(c, DO(logical_not, IN(0)));
}

// ---- What a float is ----

void choir__onnx_op_isnan(choir__onnx_call_t* c) {
  choir_var_t* x = IN(0);
  out_bool(c, DO(not_equal, x, x));
}

void choir__onnx_op_isinf(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  const bool finds_negative = choir__onnx_int(c, "detect_negative", 1) != 0;
  const bool finds_positive = choir__onnx_int(c, "detect_positive", 1) != 0;
  if (!choir_dtype_is_float(view->dtype)) {
    FAIL(INVALID_ARGUMENT, "an input of %s; needs floats",
         choir_dtype_name(view->dtype));
    return;
  }
  choir_var_t* x = IN(0);
  if (!finds_negative && !finds_positive) {
    out_bool(c, DO(fill, x, &(choir_fill_attrs_t){.value = 0}));
    return;
  }
  if (finds_negative && finds_positive) x = DO(abs, x);
  const double infinity = finds_positive ? INFINITY : -INFINITY;
  out_bool(c, DO(equal, x, choir__onnx_scalar(c, view->dtype, infinity)));
}

// ---- Where ----

void choir__onnx_op_where(choir__onnx_call_t* c) {
  choir_var_t* y = DO(where, IN(0), IN(1), IN(2));
  const choir_view_t* view = choir_var_view(y);
  const choir_view_t* x = VIEW(1);
  if (!view || !x) return;
  // In mixed precision it may have another dtype.
  if (view->dtype == x->dtype)
    choir__onnx_out_as(c, 0, y, TYPE(1));
  else
    OUT(0, y);
}
