// SPDX-License-Identifier: Apache-2.0
// The functions that a recurrent network's gates may have.
#include <strings.h>

#include "onnx/operators/onnx_recurrent_internal.h"

enum {
  TANH,
  RELU,
  SIGMOID,
  AFFINE,
  LEAKY_RELU,
  THRESHOLDED_RELU,
  SCALED_TANH,
  HARD_SIGMOID,
  ELU,
  SOFTSIGN,
  SOFTPLUS,
  KINDS
};

static const struct {
  const char* name;
  int32_t numbers;  // alpha, then beta
  double alpha, beta;
} kinds[KINDS] = {
    [TANH] = {"Tanh", 0, 0, 0},
    [RELU] = {"Relu", 0, 0, 0},
    [SIGMOID] = {"Sigmoid", 0, 0, 0},
    [AFFINE] = {"Affine", 2, 1, 0},
    [LEAKY_RELU] = {"LeakyRelu", 1, 0.01, 0},
    [THRESHOLDED_RELU] = {"ThresholdedRelu", 1, 1, 0},
    [SCALED_TANH] = {"ScaledTanh", 2, 1, 1},
    [HARD_SIGMOID] = {"HardSigmoid", 2, 0.2, 0.5},
    [ELU] = {"Elu", 1, 1, 0},
    [SOFTSIGN] = {"Softsign", 0, 0, 0},
    [SOFTPLUS] = {"Softplus", 0, 0, 0},
};

static const int32_t counts[] = {
    [CHOIR__ONNX_RNN] = 1, [CHOIR__ONNX_LSTM] = 3, [CHOIR__ONNX_GRU] = 2};

static int32_t kind_of(const char* name) {
  int32_t kind = 0;
  while (kind < KINDS && strcasecmp(name, kinds[kind].name) != 0) ++kind;
  return kind;
}

bool choir__onnx_read_activations(choir__onnx_call_t* c,
                                  choir__onnx_recurrent_t* n) {
  const int32_t count = counts[n->net];
  const bool is_given = choir__onnx_string_at(c, "activations", 0) != NULL;
  int32_t alpha_count, beta_count, alphas = 0, betas = 0;
  const float* alpha = choir__onnx_floats(c, "activation_alpha", &alpha_count);
  const float* beta = choir__onnx_floats(c, "activation_beta", &beta_count);
  for (int32_t i = 0; i < n->directions * count; ++i) {
    const int32_t place = i % count;
    int32_t kind = n->net != CHOIR__ONNX_RNN && place == 0 ? SIGMOID : TANH;
    if (is_given) {
      const char* name = choir__onnx_string_at(c, "activations", i);
      kind = name ? kind_of(name) : KINDS;
      if (kind == KINDS) {
        FAIL(INVALID_ARGUMENT,
             "activation %d is '%s'; needs %d names for each direction, such "
             "as Tanh",
             i, name ? name : "", count);
        return false;
      }
    }
    choir__onnx_activation_t* made = &n->activations[i / count][place];
    *made =
        (choir__onnx_activation_t){kind, kinds[kind].alpha, kinds[kind].beta};
    // Only functions that have such a number take the next one.
    if (kinds[kind].numbers > 0 && alphas < alpha_count)
      made->alpha = alpha[alphas++];
    if (kinds[kind].numbers > 1 && betas < beta_count)
      made->beta = beta[betas++];
  }
  return true;
}

bool choir__onnx_plain_cell(const choir__onnx_recurrent_t* n,
                            const choir__onnx_direction_t* d,
                            choir_cell_t* out_cell) {
  const choir__onnx_activation_t* a = d->activations;
  if (n->clip > 0 || d->p || n->is_coupled) return false;
  switch (n->net) {
    case CHOIR__ONNX_RNN:
      *out_cell = a[0].kind == RELU ? CHOIR_CELL_RNN_RELU : CHOIR_CELL_RNN_TANH;
      return a[0].kind == RELU || a[0].kind == TANH;
    case CHOIR__ONNX_LSTM:
      *out_cell = CHOIR_CELL_LSTM;
      return a[0].kind == SIGMOID && a[1].kind == TANH && a[2].kind == TANH;
    default:
      *out_cell = CHOIR_CELL_GRU;
      return n->is_reset_last && a[0].kind == SIGMOID && a[1].kind == TANH;
  }
}

static choir_var_t* scaled(choir__onnx_call_t* c, choir_var_t* x, double factor,
                           double shift) {
  return DO(scale, x, &(choir_scale_attrs_t){.factor = factor, .shift = shift});
}

choir_var_t* choir__onnx_activate(choir__onnx_call_t* c,
                                  const choir__onnx_activation_t* a,
                                  choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  switch (a->kind) {
    case TANH:
      return DO(tanh, x);
    case RELU:
      return DO(relu, x);
    case SIGMOID:
      return DO(sigmoid, x);
    case AFFINE:
      return scaled(c, x, a->alpha, a->beta);
    case LEAKY_RELU:
      return DO(leaky_relu, x, &(choir_leaky_relu_attrs_t){.alpha = a->alpha});
    case THRESHOLDED_RELU:
      return DO(where,
                DO(greater, x, choir__onnx_scalar(c, view->dtype, a->alpha)), x,
                choir__onnx_scalar(c, view->dtype, 0));
    case SCALED_TANH:
      return scaled(c, DO(tanh, scaled(c, x, a->beta, 0)), a->alpha, 0);
    case HARD_SIGMOID:
      return DO(
          hard_sigmoid, x,
          &(choir_hard_sigmoid_attrs_t){.alpha = a->alpha, .gamma = a->beta});
    case ELU:
      return DO(elu, x, &(choir_elu_attrs_t){.alpha = a->alpha});
    case SOFTSIGN:
      return DO(softsign, x);
    default:
      return DO(softplus, x);
  }
}
