// SPDX-License-Identifier: Apache-2.0
// Activations.
#include <float.h>
#include <math.h>
#include <string.h>

#include "onnx/operators/onnx_math_internal.h"

void choir__onnx_op_relu(choir__onnx_call_t* c) { OUT(0, DO(relu, IN(0))); }

void choir__onnx_op_sigmoid(choir__onnx_call_t* c) {
  OUT(0, DO(sigmoid, IN(0)));
}

void choir__onnx_op_tanh(choir__onnx_call_t* c) { OUT(0, DO(tanh, IN(0))); }

void choir__onnx_op_softplus(choir__onnx_call_t* c) {
  OUT(0, DO(softplus, IN(0)));
}

void choir__onnx_op_softsign(choir__onnx_call_t* c) {
  OUT(0, DO(softsign, IN(0)));
}

void choir__onnx_op_gelu(choir__onnx_call_t* c) {
  const char* approximate = choir__onnx_string(c, "approximate", "none");
  if (strcmp(approximate, "tanh") == 0)
    OUT(0, DO(gelu_tanh, IN(0)));
  else if (strcmp(approximate, "none") == 0)
    OUT(0, DO(gelu, IN(0)));
  else
    FAIL(INVALID_ARGUMENT, "approximate '%s'; needs none or tanh", approximate);
}

void choir__onnx_op_elu(choir__onnx_call_t* c) {
  const choir_elu_attrs_t attrs = {.alpha = choir__onnx_float(c, "alpha", 1)};
  OUT(0, DO(elu, IN(0), &attrs));
}

// alpha elu(x / alpha), whose part above 0 is x itself.
void choir__onnx_op_celu(choir__onnx_call_t* c) {
  const choir_elu_attrs_t one = {.alpha = 1};
  const double alpha = choir__onnx_float(c, "alpha", 1);
  choir_var_t* x = IN(0);
  if (alpha == 1) {
    OUT(0, DO(elu, x, &one));
    return;
  }
  choir_var_t* above = DO(relu, x);
  if (fabs(alpha) < (double)FLT_MIN) {
    OUT(0, above);
    return;
  }
  choir_var_t* below =
      DO(clip, x, &(choir_clip_attrs_t){.low = -INFINITY, .high = 0});
  below = DO(scale, below, &(choir_scale_attrs_t){.factor = 1 / alpha});
  // Of a negative alpha the argument is above 0: e^u - 1 = e^u (1 - e^-u).
  if (alpha < 0) {
    choir_var_t* grown = DO(exp, below);
    below = DO(mul, grown, DO(elu, DO(neg, below), &one));
  } else {
    below = DO(elu, below, &one);
  }
  below = DO(scale, below, &(choir_scale_attrs_t){.factor = fabs(alpha)});
  OUT(0, DO(add, above, below));
}

void choir__onnx_op_selu(choir__onnx_call_t* c) {
  const choir_selu_attrs_t attrs = {
      .alpha = choir__onnx_float(c, "alpha", 1.67326319217681884765625),
      .gamma = choir__onnx_float(c, "gamma", 1.05070102214813232421875)};
  OUT(0, DO(selu, IN(0), &attrs));
}

void choir__onnx_op_leaky_relu(choir__onnx_call_t* c) {
  const choir_leaky_relu_attrs_t attrs = {
      .alpha = choir__onnx_float(c, "alpha", 0.01)};
  OUT(0, DO(leaky_relu, IN(0), &attrs));
}

void choir__onnx_op_hard_sigmoid(choir__onnx_call_t* c) {
  const choir_hard_sigmoid_attrs_t attrs = {
      .alpha = choir__onnx_float(c, "alpha", 0.2),
      .gamma = choir__onnx_float(c, "beta", 0.5)};
  OUT(0, DO(hard_sigmoid, IN(0), &attrs));
}

void choir__onnx_op_hard_swish(choir__onnx_call_t* c) {
  const choir_hard_sigmoid_attrs_t attrs = {.alpha = 1.0 / 6, .gamma = 0.5};
  choir_var_t* x = IN(0);
  OUT(0, DO(mul, x, DO(hard_sigmoid, x, &attrs)));
}

void choir__onnx_op_mish(choir__onnx_call_t* c) {
  choir_var_t* x = IN(0);
  OUT(0, DO(mul, x, DO(tanh, DO(softplus, x))));
}

void choir__onnx_op_swish(choir__onnx_call_t* c) {
  const double alpha = choir__onnx_float(c, "alpha", 1);
  choir_var_t* x = IN(0);
  if (alpha == 1) {
    OUT(0, DO(silu, x));
    return;
  }
  choir_var_t* scaled = DO(scale, x, &(choir_scale_attrs_t){.factor = alpha});
  OUT(0, DO(mul, x, DO(sigmoid, scaled)));
}

void choir__onnx_op_thresholded_relu(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  const double alpha = choir__onnx_float(c, "alpha", 1);
  choir_var_t* x = IN(0);
  choir_var_t* is_above =
      DO(greater, x, choir__onnx_scalar(c, view->dtype, alpha));
  OUT(0, DO(where, is_above, x, choir__onnx_scalar(c, view->dtype, 0)));
}

// ---- Of integers too ----

// Before version 7 one slope for each channel has one dimension, that of axis
// 1.
static choir_var_t* slope_of(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  const choir_view_t* slope = VIEW(1);
  if (c->version >= 7 || !x || !slope || slope->ndim != 1 || x->ndim < 3 ||
      slope->shape[0] == 1)
    return IN(1);
  int64_t shape[CHOIR_MAX_NDIM] = {slope->shape[0]};
  for (int32_t i = 1; i < x->ndim - 1; ++i) shape[i] = 1;
  return choir__onnx_reshape(c, IN(1), x->ndim - 1, shape);
}

void choir__onnx_op_prelu(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  choir_var_t* x = IN(0);
  choir_var_t* slope = slope_of(c);
  const int32_t type = TYPE(0);
  if (choir_dtype_is_float(view->dtype)) {
    OUT(0, DO(prelu, x, slope));
    return;
  }
  if (!choir__onnx_is_signed(type)) {
    OUT(0, x);
    return;
  }
  choir_var_t* is_below = DO(less, x, choir__onnx_scalar(c, view->dtype, 0));
  choir_var_t* y = DO(where, is_below, DO(mul, x, slope), x);
  OUT(0, choir__onnx_wrap(c, y, type));
}

// Integers are computed as floats of 64 bits and truncated.
void choir__onnx_op_shrink(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  const int32_t type = TYPE(0);
  const double bias = choir__onnx_float(c, "bias", 0);
  const double lambd = choir__onnx_float(c, "lambd", 0.5);
  const bool is_float = choir_dtype_is_float(view->dtype);
  const choir_dtype_t dtype = is_float ? view->dtype : CHOIR_DTYPE_F64;
  choir_var_t* x = IN(0);
  if (!is_float) x = choir__onnx_convert_plainly(c, x, type, CHOIR_ONNX_DOUBLE);
  choir_var_t* is_below = DO(less, x, choir__onnx_scalar(c, dtype, -lambd));
  choir_var_t* is_above = DO(greater, x, choir__onnx_scalar(c, dtype, lambd));
  choir_var_t* shift = choir__onnx_scalar(c, dtype, bias);
  choir_var_t* y =
      DO(where, is_above, DO(sub, x, shift), choir__onnx_scalar(c, dtype, 0));
  y = DO(where, is_below, DO(add, x, shift), y);
  if (!is_float) y = choir__onnx_convert_plainly(c, y, CHOIR_ONNX_DOUBLE, type);
  OUT(0, y);
}

void choir__onnx_op_swiglu_gate(choir__onnx_call_t* c) {
  const double alpha = choir__onnx_float(c, "alpha", 1);
  const choir_scale_attrs_t attrs = {.factor = alpha};
  choir_var_t* gate =
      alpha == 1 ? DO(silu, IN(0))
                 : DO(mul, IN(0), DO(sigmoid, DO(scale, IN(0), &attrs)));
  OUT(0, DO(mul, gate, IN(1)));
}
