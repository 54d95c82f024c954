// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers as nodes: inputs R (the rate), T (the count of steps),
// then all tensors X, all gradients, all states of one kind, and so on; results
// new X, then new states.
#include <string.h>

#include "onnx/onnx_call_def.h"

typedef struct step_s {
  int32_t count;  // of tensors
  double decay;   // norm_coefficient
} step_t;

// kinds: how many inputs each tensor has.
static bool begin(choir__onnx_call_t* c, int32_t kinds, step_t* out_step) {
  const int32_t rest = c->in_count - 2;
  if (rest < kinds || rest % kinds != 0) {
    FAIL(INVALID_ARGUMENT,
         "there are %d inputs; needs two and then %d for each tensor",
         c->in_count, kinds);
    return false;
  }
  for (int32_t i = 0; i < c->in_count; ++i) {
    const choir_view_t* view = VIEW(i);
    if (!view) {
      if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input %d is missing", i);
      return false;
    }
    if (i < 2 && choir_view_count(view) != 1) {
      FAIL(INVALID_ARGUMENT, "input %d has %lld elements; needs one", i,
           (long long)choir_view_count(view));
      return false;
    }
    if (i >= 2 && !choir_dtype_is_float(view->dtype)) {
      FAIL(INVALID_ARGUMENT, "input %d is %s; needs floats", i,
           choir_dtype_name(view->dtype));
      return false;
    }
  }
  *out_step = (step_t){.count = rest / kinds,
                       .decay = choir__onnx_float(c, "norm_coefficient", 0)};
  return true;
}

// Input 0 or 1 as a scalar of the dtype of tensor i.
static choir_var_t* number(choir__onnx_call_t* c, int32_t input, int32_t i) {
  return choir__onnx_cast(c, choir__onnx_reshape(c, IN(input), 0, NULL),
                          VIEW(2 + i)->dtype);
}

static choir_var_t* tensor(choir__onnx_call_t* c, const step_t* step,
                           int32_t kind, int32_t i) {
  return IN(2 + kind * step->count + i);
}

static choir_var_t* line(choir__onnx_call_t* c, choir_var_t* x, double factor,
                         double shift) {
  const choir_scale_attrs_t attrs = {.factor = factor, .shift = shift};
  return DO(scale, x, &attrs);
}

// The gradient with the norm's part.
static choir_var_t* gradient(choir__onnx_call_t* c, const step_t* step,
                             int32_t i) {
  choir_var_t* g = tensor(c, step, 1, i);
  if (step->decay == 0) return g;
  return DO(add, line(c, tensor(c, step, 0, i), step->decay, 0), g);
}

// A result of the type of tensor i.
static void set(choir__onnx_call_t* c, const step_t* step, int32_t kind,
                int32_t i, choir_var_t* var) {
  choir__onnx_out_as(c, kind * step->count + i, var, TYPE(2 + i));
}

// Duchi et al., 2011.
void choir__onnx_op_adagrad(choir__onnx_call_t* c) {
  step_t step;
  if (!begin(c, 3, &step)) return;
  const double fade = choir__onnx_float(c, "decay_factor", 0);
  const double epsilon = choir__onnx_float(c, "epsilon", 1e-6);
  for (int32_t i = 0; i < step.count; ++i) {
    choir_var_t* rate =
        DO(div, number(c, 0, i), line(c, number(c, 1, i), fade, 1));
    choir_var_t* g = gradient(c, &step, i);
    choir_var_t* h = DO(add, tensor(c, &step, 2, i), DO(square, g));
    choir_var_t* root = line(c, DO(sqrt, h), 1, epsilon);
    choir_var_t* move = DO(div, DO(mul, g, rate), root);
    set(c, &step, 0, i, DO(sub, tensor(c, &step, 0, i), move));
    set(c, &step, 1, i, h);
  }
}

// 1 - base^T.
static choir_var_t* unbias(choir__onnx_call_t* c, double base, int32_t i) {
  choir_var_t* scalar = choir__onnx_scalar(c, VIEW(2 + i)->dtype, base);
  return line(c, DO(pow, scalar, number(c, 1, i)), -1, 1);
}

// The rate with both corrections for early steps; at step 0 as it is.
static choir_var_t* adam_rate(choir__onnx_call_t* c, double alpha, double beta,
                              int32_t i) {
  choir_var_t* rate = number(c, 0, i);
  choir_var_t* corrected =
      DO(div, DO(mul, rate, DO(sqrt, unbias(c, beta, i))), unbias(c, alpha, i));
  choir_var_t* zero = choir__onnx_scalar(c, VIEW(2 + i)->dtype, 0);
  return DO(where, DO(greater, number(c, 1, i), zero), corrected, rate);
}

// Kingma and Ba, 2015.
void choir__onnx_op_adam(choir__onnx_call_t* c) {
  step_t step;
  if (!begin(c, 4, &step)) return;
  const double alpha = choir__onnx_float(c, "alpha", 0.9f);
  const double beta = choir__onnx_float(c, "beta", 0.999f);
  const double epsilon = choir__onnx_float(c, "epsilon", 1e-6f);
  const double shrink = choir__onnx_float(c, "norm_coefficient_post", 0);
  for (int32_t i = 0; i < step.count; ++i) {
    choir_var_t* g = gradient(c, &step, i);
    choir_var_t* v = DO(add, line(c, tensor(c, &step, 2, i), alpha, 0),
                        line(c, g, 1 - alpha, 0));
    choir_var_t* h = DO(add, line(c, tensor(c, &step, 3, i), beta, 0),
                        line(c, DO(square, g), 1 - beta, 0));
    choir_var_t* root = line(c, DO(sqrt, h), 1, epsilon);
    choir_var_t* move = DO(div, DO(mul, v, adam_rate(c, alpha, beta, i)), root);
    choir_var_t* x = DO(sub, tensor(c, &step, 0, i), move);
    set(c, &step, 0, i, line(c, x, 1 - shrink, 0));
    set(c, &step, 1, i, v);
    set(c, &step, 2, i, h);
  }
}

// alpha v + g, of which beta counts from step 1 on.
static choir_var_t* momentum_of(choir__onnx_call_t* c, const step_t* step,
                                int32_t i, choir_var_t* g) {
  const choir_dtype_t dtype = VIEW(2 + i)->dtype;
  const double alpha = choir__onnx_float(c, "alpha", 0);
  const double beta = choir__onnx_float(c, "beta", 1);
  choir_var_t* factor =
      DO(where, DO(greater, number(c, 1, i), choir__onnx_scalar(c, dtype, 0)),
         choir__onnx_scalar(c, dtype, beta), choir__onnx_scalar(c, dtype, 1));
  return DO(add, line(c, tensor(c, step, 2, i), alpha, 0), DO(mul, g, factor));
}

// Sutskever et al., 2013.
void choir__onnx_op_momentum(choir__onnx_call_t* c) {
  step_t step;
  if (!begin(c, 3, &step)) return;
  const char* mode = choir__onnx_string(c, "mode", "standard");
  const bool is_nesterov = strcmp(mode, "nesterov") == 0;
  if (!is_nesterov && strcmp(mode, "standard") != 0) {
    FAIL(INVALID_ARGUMENT, "mode is '%s'; needs standard or nesterov", mode);
    return;
  }
  const double alpha = choir__onnx_float(c, "alpha", 0);
  for (int32_t i = 0; i < step.count; ++i) {
    choir_var_t* g = gradient(c, &step, i);
    choir_var_t* v = momentum_of(c, &step, i, g);
    choir_var_t* move = is_nesterov ? DO(add, g, line(c, v, alpha, 0)) : v;
    set(c, &step, 0, i,
        DO(sub, tensor(c, &step, 0, i), DO(mul, move, number(c, 0, i))));
    set(c, &step, 1, i, v);
  }
}
