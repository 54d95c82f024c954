// SPDX-License-Identifier: Apache-2.0
// LinearRegressor and LinearClassifier of ai.onnx.ml: products with the numbers
// of an attribute.
#include <math.h>

#include "onnx/operators/onnx_ml_internal.h"

// Scores (n, targets) of F32: x W^T + b, by attributes coefficients (targets,
// features), with `targets` 0 as many as there are, and intercepts.
static choir_var_t* scores_of(choir__onnx_call_t* c, int64_t targets) {
  choir_var_t* x = choir__onnx_ml_rows(c, CHOIR_DTYPE_F32);
  const choir_view_t* view = choir_var_view(x);
  int32_t count, shifts;
  const float* factors = choir__onnx_floats(c, "coefficients", &count);
  const float* intercepts = choir__onnx_floats(c, "intercepts", &shifts);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const int64_t features = view->shape[1];
  if (targets == 0 && features > 0) targets = count / features;
  int64_t numbers;
  if (count == 0 || targets < 1 ||
      __builtin_mul_overflow(targets, features, &numbers) || numbers != count)
    return FAIL(INVALID_ARGUMENT,
                "%d coefficients for %lld features and %lld targets", count,
                (long long)features, (long long)targets);
  if (shifts > 0 && shifts != targets)
    return FAIL(INVALID_ARGUMENT, "%d intercepts for %lld targets", shifts,
                (long long)targets);
  const int64_t shape[] = {targets, features};
  const choir_matmul_attrs_t attrs = {.transpose_b = true};
  choir_var_t* y =
      DO(matmul, x, choir__onnx_constant(c, CHOIR_DTYPE_F32, 2, shape, factors),
         &attrs);
  if (shifts == 0) return y;
  return DO(add, y,
            choir__onnx_constant(c, CHOIR_DTYPE_F32, 1, &targets, intercepts));
}

static choir_status_t post_loop(const choir__onnx_array_t* srcs,
                                const choir__onnx_array_t* dsts,
                                const void* attrs) {
  const int32_t* post = attrs;
  const int64_t count = srcs[0].view.shape[1];
  double* to = dsts[0].data;
  for (int64_t k = 0; k < srcs[0].count; ++k)
    to[k] = ((const double*)srcs[0].data)[k];
  for (int64_t k = 0; k < srcs[0].count; k += count)
    choir__onnx_ml_transform(*post, to + k, count);
  return NULL;
}

static choir_var_t* transform(choir__onnx_call_t* c, choir_var_t* scores,
                              int32_t post) {
  if (post == CHOIR__ONNX_POST_NONE) return scores;
  if (post == CHOIR__ONNX_POST_SOFTMAX) return DO(softmax, scores);
  if (post == CHOIR__ONNX_POST_LOGISTIC) return DO(sigmoid, scores);
  scores = choir__onnx_cast(c, scores, CHOIR_DTYPE_F64);
  const choir_view_t* view = choir_var_view(scores);
  if (!view) return choir_scope_fail(c->scope, NULL);
  choir_var_t* y;
  choir__onnx_host(c, "onnx/scores", post_loop, &post, sizeof post, &scores, 1,
                   view, 1, &y);
  return choir__onnx_cast(c, y, CHOIR_DTYPE_F32);
}

void choir__onnx_op_linear_regressor(choir__onnx_call_t* c) {
  int32_t post;
  const int64_t targets = choir__onnx_int(c, "targets", 1);
  if (targets < 1) {
    FAIL(INVALID_ARGUMENT, "targets is %lld", (long long)targets);
    return;
  }
  if (!choir__onnx_ml_post(c, &post)) return;
  OUT_AS(0, transform(c, scores_of(c, targets), post), FLOAT);
}

// The class of one score: the second where it is above 0.
static choir_var_t* sign_class(choir__onnx_call_t* c, choir_var_t* score) {
  choir_var_t* is_above =
      DO(greater, score, choir__onnx_scalar(c, CHOIR_DTYPE_F32, 0));
  const choir_view_t* view = choir_var_view(is_above);
  if (!view) return choir_scope_fail(c->scope, NULL);
  return choir__onnx_cast(c, choir__onnx_reshape(c, is_above, 1, view->shape),
                          CHOIR_DTYPE_I64);
}

void choir__onnx_op_linear_classifier(choir__onnx_call_t* c) {
  int32_t post, count;
  const int64_t* labels = choir__onnx_ml_labels(c, "classlabels_ints",
                                                "classlabels_strings", &count);
  if (!labels || !choir__onnx_ml_post(c, &post)) return;
  choir_var_t* scores = scores_of(c, 0);
  const choir_view_t* view = choir_var_view(scores);
  if (!view) return;
  const int64_t targets = view->shape[1];
  const bool is_one = targets == 1 && count <= 2;
  if (!is_one && targets != count) {
    FAIL(INVALID_ARGUMENT, "%d class labels for %lld scores", count,
         (long long)targets);
    return;
  }
  const choir_reduce_attrs_t along = {.axis = 1};
  const choir_concat_attrs_t beside = {.axis = 1};
  const choir_gather_attrs_t first = {.axis = 0};
  choir_var_t* place =
      is_one ? sign_class(c, scores) : DO(argmax, scores, &along);
  if (is_one && count == 2) {
    choir_var_t* both[] = {DO(neg, scores), scores};
    scores = DO(concat, both, 2, &beside);
  }
  // Of one class the label says whether it is that one, or 0.
  const int64_t pair[] = {0, labels[0]};
  choir_var_t* names = count > 1 ? choir__onnx_ml_whole(c, labels, count)
                                 : choir__onnx_ml_whole(c, pair, 2);
  OUT_AS(0, DO(gather, names, place, &first), INT64);
  OUT_AS(1, transform(c, scores, post), FLOAT);
}
