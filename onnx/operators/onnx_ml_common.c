// SPDX-License-Identifier: Apache-2.0
// What operators of the domain ai.onnx.ml share.
#include <math.h>
#include <string.h>

#include "onnx/operators/onnx_ml_internal.h"

// ---- Scores ----

bool choir__onnx_ml_post(choir__onnx_call_t* c, int32_t* out_post) {
  static const char* const names[] = {"NONE", "SOFTMAX", "LOGISTIC",
                                      "SOFTMAX_ZERO", "PROBIT"};
  const char* given = choir__onnx_string(c, "post_transform", "NONE");
  for (int32_t i = 0; i < (int32_t)(sizeof names / sizeof *names); ++i)
    if (strcmp(given, names[i]) == 0) {
      *out_post = i;
      return true;
    }
  FAIL(INVALID_ARGUMENT, "post_transform is '%s'", given);
  return false;
}

// e^x over their sum. Where `keeps_zero`, scores of 0 get none of it.
static void softmax(double* scores, int64_t count, bool keeps_zero) {
  double most = -INFINITY, sum = 0;
  for (int64_t i = 0; i < count; ++i) most = fmax(most, scores[i]);
  for (int64_t i = 0; i < count; ++i) {
    const bool is_zero = keeps_zero && fabs(scores[i]) <= 1e-7;
    scores[i] = is_zero ? scores[i] * exp(-most) : exp(scores[i] - most);
    sum += scores[i];
  }
  for (int64_t i = 0; i < count; ++i)
    scores[i] = sum == 0 ? 0.5 : scores[i] / sum;
}

// The quantile of the normal distribution, by Winitzki's approximation of the
// inverse of erf with a = 0.147, which other programs take here too.
static double probit(double share) {
  const double a = 0.147, x = 2 * share - 1, rest = (1 - x) * (1 + x);
  if (rest == 0) return 0;
  const double l = log(rest);
  const double v = 2 / (3.14159265358979323846 * a) + l / 2;
  return copysign(sqrt(2 * (sqrt(v * v - l / a) - v)), x);
}

void choir__onnx_ml_transform(int32_t post, double* scores, int64_t count) {
  if (post == CHOIR__ONNX_POST_SOFTMAX ||
      post == CHOIR__ONNX_POST_SOFTMAX_ZERO) {
    softmax(scores, count, post == CHOIR__ONNX_POST_SOFTMAX_ZERO);
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    if (post == CHOIR__ONNX_POST_LOGISTIC)
      scores[i] = 1 / (1 + exp(-scores[i]));
    else if (post == CHOIR__ONNX_POST_PROBIT)
      scores[i] = probit(scores[i]);
}

// ---- Inputs and attributes ----

choir_var_t* choir__onnx_ml_rows(choir__onnx_call_t* c, choir_dtype_t dtype) {
  const choir_view_t* x = VIEW(0);
  if (!x) return choir_scope_fail(c->scope, NULL);
  if (x->ndim != 1 && x->ndim != 2)
    return FAIL(INVALID_ARGUMENT,
                "the input has %d dimensions; needs 2, of rows, or 1", x->ndim);
  choir_var_t* rows = choir__onnx_cast(c, IN(0), dtype);
  const int64_t shape[] = {1, x->shape[0]};
  return x->ndim == 2 ? rows : choir__onnx_reshape(c, rows, 2, shape);
}

bool choir__onnx_ml_read_tensor(choir__onnx_call_t* c, const char* name,
                                choir__onnx_array_t* out_array,
                                int32_t* out_type) {
  if (!choir__onnx_has_attr(c, name)) return false;
  // The host keeps attributes, so that reading one waits for nothing.
  choir__onnx_call_t host = *c;
  host.is_known = true;
  choir_var_t* var = choir__onnx_tensor(&host, name, out_type);
  if (!var && CALL_IS_OK)
    FAIL(INVALID_ARGUMENT, "attribute %s is no tensor", name);
  return var && choir__onnx_read_var(&host, var, true, out_array);
}

bool choir__onnx_ml_numbers(choir__onnx_call_t* c, const char* name,
                            const char* tensor, choir__onnx_numbers_t* out) {
  *out = (choir__onnx_numbers_t){0};
  int32_t count, type;
  const float* floats = name ? choir__onnx_floats(c, name, &count) : NULL;
  choir__onnx_array_t array = {0};
  const bool is_tensor = !floats && tensor && choir__onnx_has_attr(c, tensor);
  if (is_tensor && !choir__onnx_ml_read_tensor(c, tensor, &array, &type))
    return false;
  out->count = is_tensor ? array.count : floats ? count : 0;
  out->at =
      choir_scope_alloc(c->scope, (size_t)(out->count + 1) * sizeof(double));
  if (!out->at) return false;
  for (int64_t k = 0; k < out->count; ++k)
    out->at[k] =
        is_tensor ? choir__onnx_number_at(&array, k) : (double)floats[k];
  return CALL_IS_OK;
}

choir_var_t* choir__onnx_ml_reals(choir__onnx_call_t* c, const double* at,
                                  int64_t count) {
  static const double none = 0;
  return choir__onnx_constant(c, CHOIR_DTYPE_F64, 1, &count, at ? at : &none);
}

choir_var_t* choir__onnx_ml_whole(choir__onnx_call_t* c, const int64_t* at,
                                  int64_t count) {
  static const int64_t none = 0;
  return choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count, at ? at : &none);
}

bool choir__onnx_ml_no_strings(choir__onnx_call_t* c, const char* name) {
  if (!choir__onnx_has_attr(c, name)) return true;
  FAIL(UNIMPLEMENTED, "attribute %s has strings; Choir has no tensors of them",
       name);
  return false;
}

const int64_t* choir__onnx_ml_labels(choir__onnx_call_t* c, const char* name,
                                     const char* strings, int32_t* out_count) {
  const int64_t* labels = choir__onnx_ints(c, name, out_count);
  if (*out_count > 0) return labels;
  if (choir__onnx_ml_no_strings(c, strings))
    FAIL(INVALID_ARGUMENT, "attribute %s, the class labels, is missing", name);
  return NULL;
}
