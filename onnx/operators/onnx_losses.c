// SPDX-License-Identifier: Apache-2.0
// Losses of class numbers, of ops, so that gradients flow.
#include <string.h>

#include "onnx/operators/onnx_reduce_internal.h"

typedef struct loss_s {
  choir_var_t* log_prob;  // (n, classes, ...)
  choir_var_t* labels;    // (n, ...)
  choir_var_t* is_kept;   // 0 where a label is the one to ignore; NULL: none is
  choir_var_t* weights;   // of the labels' classes; NULL: all 1
  const choir_view_t* scores;  // shape and dtype of log_prob
  const choir_view_t* target;  // of labels
} loss_t;

static bool set_shapes(choir__onnx_call_t* c, loss_t* loss) {
  const choir_view_t* x = VIEW(0);
  const choir_view_t* t = VIEW(1);
  if (!x || !t) return false;
  bool fits = x->ndim >= 2 && t->ndim == x->ndim - 1 &&
              choir_dtype_is_float(x->dtype) &&
              (t->dtype == CHOIR_DTYPE_I32 || t->dtype == CHOIR_DTYPE_I64);
  for (int32_t i = 0; fits && i < t->ndim; ++i)
    fits = t->shape[i] == x->shape[i == 0 ? 0 : i + 1];
  char texts[2][160];
  if (!fits)
    FAIL(INVALID_ARGUMENT,
         "scores are %s and labels %s; needs floats (n, classes, ...) and i32 "
         "or i64 (n, ...)",
         choir_view_print(x, texts[0], sizeof texts[0]),
         choir_view_print(t, texts[1], sizeof texts[1]));
  *loss = (loss_t){.labels = IN(1), .scores = x, .target = t};
  return fits;
}

// Labels to ignore become 0, a class that there is.
static void set_ignored(choir__onnx_call_t* c, loss_t* loss) {
  if (!choir__onnx_has_attr(c, "ignore_index")) return;
  const int64_t ignored = choir__onnx_int(c, "ignore_index", 0);
  const int32_t narrow = (int32_t)ignored;
  const bool is_wide = loss->target->dtype == CHOIR_DTYPE_I64;
  if (!is_wide && narrow != ignored) return;
  choir_var_t* number =
      choir__onnx_constant(c, loss->target->dtype, 0, NULL,
                           is_wide ? (const void*)&ignored : &narrow);
  choir_var_t* zero = choir__onnx_scalar(c, loss->target->dtype, 0);
  loss->is_kept = DO(not_equal, loss->labels, number);
  loss->labels = DO(where, loss->is_kept, loss->labels, zero);
}

// In which losses are computed; another than that of scores where a step takes
// 16 bits for these alone.
static choir_dtype_t dtype_of(const loss_t* loss) {
  const choir_view_t* view = choir_var_view(loss->log_prob);
  return view ? view->dtype : loss->scores->dtype;
}

static bool set_weights(choir__onnx_call_t* c, loss_t* loss) {
  const choir_view_t* view = VIEW(2);
  const choir_dtype_t dtype = dtype_of(loss);
  if (view) {
    if (view->ndim != 1 || view->shape[0] != loss->scores->shape[1]) {
      char text[160];
      FAIL(INVALID_ARGUMENT,
           "weights are %s; needs one for each of %lld "
           "classes",
           choir_view_print(view, text, sizeof text),
           (long long)loss->scores->shape[1]);
      return false;
    }
    loss->weights = DO(gather, choir__onnx_cast(c, IN(2), dtype), loss->labels,
                       &(choir_gather_attrs_t){.axis = 0});
  }
  if (!loss->is_kept) return true;
  choir_var_t* zero = choir__onnx_scalar(c, dtype, 0);
  loss->weights = loss->weights ? DO(where, loss->is_kept, loss->weights, zero)
                                : choir__onnx_cast(c, loss->is_kept, dtype);
  return true;
}

// -log_prob[label] for each label, times its weight.
static choir_var_t* element_losses(choir__onnx_call_t* c, const loss_t* loss) {
  int64_t shape[CHOIR_MAX_NDIM];
  memcpy(shape, loss->scores->shape, sizeof shape);
  shape[1] = 1;
  choir_var_t* labels =
      choir__onnx_reshape(c, loss->labels, loss->scores->ndim, shape);
  choir_var_t* y = DO(gather_elements, loss->log_prob, labels,
                      &(choir_gather_elements_attrs_t){.axis = 1});
  y = DO(neg,
         choir__onnx_reshape(c, y, loss->target->ndim, loss->target->shape));
  if (loss->is_kept)
    y = DO(where, loss->is_kept, y, choir__onnx_scalar(c, dtype_of(loss), 0));
  return loss->weights ? DO(mul, y, loss->weights) : y;
}

static choir_var_t* reduced(choir__onnx_call_t* c, const loss_t* loss) {
  const choir_reduce_attrs_t all = {.axis = -1};
  const char* how = choir__onnx_string(c, "reduction", "mean");
  choir_var_t* losses = element_losses(c, loss);
  if (strcmp(how, "none") == 0) return losses;
  if (strcmp(how, "sum") == 0) return DO(sum, losses, &all);
  if (strcmp(how, "mean") != 0)
    return FAIL(INVALID_ARGUMENT, "reduction is '%s'; needs none, sum or mean",
                how);
  if (!loss->weights) return DO(mean, losses, &all);
  return DO(div, DO(sum, losses, &all), DO(sum, loss->weights, &all));
}

void choir__onnx_op_negative_log_likelihood_loss(choir__onnx_call_t* c) {
  loss_t loss;
  if (!set_shapes(c, &loss)) return;
  loss.log_prob = IN(0);
  set_ignored(c, &loss);
  if (set_weights(c, &loss)) OUT(0, reduced(c, &loss));
}

static choir_var_t* log_softmax_of_classes(choir__onnx_call_t* c,
                                           choir_var_t* x, int32_t ndim) {
  int64_t axes[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < ndim; ++i) axes[i] = i;
  axes[1] = ndim - 1;
  axes[ndim - 1] = 1;
  if (ndim == 2) return DO(log_softmax, x);
  choir_var_t* y = DO(log_softmax, choir__onnx_transpose(c, x, axes));
  return choir__onnx_transpose(c, y, axes);
}

// What one op computes: the mean over rows, each label of the same weight.
static bool is_plain(choir__onnx_call_t* c, const loss_t* loss) {
  return loss->scores->ndim == 2 && loss->target->shape[0] > 0 &&
         !loss->is_kept && !HAS(2) && !choir__onnx_wants(c, 1) &&
         strcmp(choir__onnx_string(c, "reduction", "mean"), "mean") == 0;
}

void choir__onnx_op_softmax_cross_entropy_loss(choir__onnx_call_t* c) {
  loss_t loss;
  if (!set_shapes(c, &loss)) return;
  set_ignored(c, &loss);
  if (is_plain(c, &loss)) {
    choir_var_t* y = DO(softmax_cross_entropy, IN(0), loss.labels);
    OUT(0, choir__onnx_reshape(c, y, 0, NULL));
    return;
  }
  loss.log_prob = log_softmax_of_classes(c, IN(0), loss.scores->ndim);
  if (!set_weights(c, &loss)) return;
  OUT(0, reduced(c, &loss));
  OUT(1, loss.log_prob);
}
