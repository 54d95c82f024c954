// SPDX-License-Identifier: Apache-2.0
// Attention: by the op `attention` where that gives all that is asked for, else
// by products and a softmax.
#include <math.h>

#include "onnx/operators/onnx_math_internal.h"
#include "onnx/operators/onnx_sequences_internal.h"

typedef struct attention_s {
  choir_var_t *q, *k, *v;  // (n, heads, rows, depth)
  int64_t batch, heads, rows, columns, depth, past;
  choir_dtype_t dtype;
  double scale, cap;
  bool is_causal;
  int64_t left, right;   // of the window; -1: no end
  choir_var_t* lengths;  // (n, 1, 1, 1) I32: of k without padding, or NULL
  choir_var_t* allowed;  // BOOL: which places are seen, or NULL: all
  choir_var_t* bias;     // added to scores, or NULL
  choir_var_t* empty;    // which rows see nothing, or NULL: none does
} attention_t;

// ---- Inputs ----

// (n, t, heads d) as (n, heads, t, d).
static choir_var_t* by_heads(choir__onnx_call_t* c, choir_var_t* x,
                             const char* name) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || view->ndim == 4) return x;
  const int64_t heads = choir__onnx_int(c, name, 0);
  if (view->ndim != 3 || heads < 1 || view->shape[2] % heads != 0) {
    char text[160];
    return FAIL(INVALID_ARGUMENT,
                "an input is %s and %s is %lld; needs 4 dimensions, or 3 of "
                "which the last is a multiple of the heads",
                choir_view_print(view, text, sizeof text), name,
                (long long)heads);
  }
  const int64_t shape[] = {view->shape[0], view->shape[1], heads,
                           view->shape[2] / heads};
  return choir__onnx_transpose(c, choir__onnx_reshape(c, x, 4, shape),
                               (const int64_t[]){0, 2, 1, 3});
}

// What was kept of k or v, and x behind it.
static choir_var_t* with_past(choir__onnx_call_t* c, choir_var_t* x,
                              int32_t past) {
  return HAS(past)
             ? choir__onnx_join(c, (choir_var_t* const[]){IN(past), x}, 2, 2)
             : x;
}

static bool read_numbers(choir__onnx_call_t* c, attention_t* a) {
  a->scale = choir__onnx_float(c, "scale",
                               1 / sqrt(a->depth > 0 ? (double)a->depth : 1));
  a->cap = choir__onnx_float(c, "softcap", 0);
  a->is_causal = choir__onnx_int(c, "is_causal", 0) != 0;
  a->left = choir__onnx_int(c, "left_window_size", -1);
  a->right = choir__onnx_int(c, "right_window_size", -1);
  if (a->left < -1 || a->right < -1) {
    FAIL(INVALID_ARGUMENT,
         "the window's sizes are %lld and %lld; needs -1 or more",
         (long long)a->left, (long long)a->right);
    return false;
  }
  // Places are I32, and so are sums of two of these.
  const int64_t most = 1 << 29;
  if (a->rows > most || a->columns > most) {
    FAIL(UNIMPLEMENTED, "%lld rows and %lld columns; at most %lld are possible",
         (long long)a->rows, (long long)a->columns, (long long)most);
    return false;
  }
  if (a->left > most) a->left = most;
  if (a->right > most) a->right = most;
  return true;
}

static bool read_inputs(choir__onnx_call_t* c, attention_t* a) {
  if (HAS(4) != HAS(5)) {
    FAIL(INVALID_ARGUMENT, "needs past_key and past_value, or neither");
    return false;
  }
  a->q = by_heads(c, IN(0), "q_num_heads");
  a->k = with_past(c, by_heads(c, IN(1), "kv_num_heads"), 4);
  a->v = with_past(c, by_heads(c, IN(2), "kv_num_heads"), 5);
  const choir_view_t *q = choir_var_view(a->q), *k = choir_var_view(a->k);
  const choir_view_t* v = choir_var_view(a->v);
  if (!q || !k || !v) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "needs Q, K and V");
    return false;
  }
  if (k->ndim != 4 || v->ndim != 4 || k->shape[1] < 1 ||
      q->shape[1] % k->shape[1] != 0 || !choir_dtype_is_float(q->dtype)) {
    FAIL(INVALID_ARGUMENT,
         "needs numbers of heads of which Q's is a multiple of K's, and "
         "floating-point numbers");
    return false;
  }
  a->batch = q->shape[0];
  a->heads = q->shape[1];
  a->rows = q->shape[2];
  a->columns = k->shape[2];
  a->depth = q->shape[3];
  a->dtype = q->dtype;
  a->past = HAS(4) && VIEW(4)->ndim == 4 ? VIEW(4)->shape[2] : 0;
  if (HAS(6) && !HAS(4)) {
    const int64_t shape[] = {a->batch, 1, 1, 1};
    a->lengths = choir__onnx_reshape(
        c, choir__onnx_cast(c, IN(6), CHOIR_DTYPE_I32), 4, shape);
  }
  return read_numbers(c, a) && CALL_IS_OK;
}

// ---- Which places are seen ----

// Numbers 0 .. count - 1 along dimension `axis` of two.
static choir_var_t* places(choir__onnx_call_t* c, int64_t count, int32_t axis) {
  int32_t* numbers = choir_scope_alloc(
      c->scope, sizeof(*numbers) * (size_t)(count > 0 ? count : 1));
  if (!numbers) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; i < count; ++i) numbers[i] = (int32_t)i;
  const int64_t shape[] = {axis == 0 ? count : 1, axis == 1 ? count : 1};
  return choir__onnx_constant(c, CHOIR_DTYPE_I32, 2, shape, numbers);
}

// Places are seen where this, whatever its dtype, is not 0 as well.
static void allow(choir__onnx_call_t* c, attention_t* a, choir_var_t* seen) {
  seen = choir__onnx_cast(c, seen, CHOIR_DTYPE_BOOL);
  a->allowed = a->allowed ? DO(logical_and, a->allowed, seen) : seen;
}

// By places alone. Column j lies j - i - offset behind the place of row i.
static void allow_places(choir__onnx_call_t* c, attention_t* a) {
  if (a->is_causal || a->left >= 0 || a->right >= 0) {
    choir_var_t* ahead =
        DO(sub, places(c, a->columns, 1), places(c, a->rows, 0));
    choir_var_t* offset =
        a->lengths ? DO(sub, a->lengths,
                        choir__onnx_scalar(c, CHOIR_DTYPE_I32, (double)a->rows))
                   : choir__onnx_scalar(c, CHOIR_DTYPE_I32, (double)a->past);
    ahead = DO(sub, ahead, offset);
    const int64_t ends[] = {a->is_causal ? 0 : -1, a->right};
    for (int k = 0; k < 2; ++k)
      if (ends[k] >= 0)
        allow(c, a,
              DO(less_equal, ahead,
                 choir__onnx_scalar(c, CHOIR_DTYPE_I32, (double)ends[k])));
    if (a->left >= 0)
      allow(c, a,
            DO(greater_equal, ahead,
               choir__onnx_scalar(c, CHOIR_DTYPE_I32, -(double)a->left)));
  }
  if (a->lengths) allow(c, a, DO(less, places(c, a->columns, 1), a->lengths));
}

// Input 3, whose last dimension may be too short.
static void read_mask(choir__onnx_call_t* c, attention_t* a) {
  const choir_view_t* view = VIEW(3);
  if (!view) return;
  choir_var_t* mask = IN(3);
  const bool is_bool = view->dtype == CHOIR_DTYPE_BOOL;
  if (!is_bool) mask = choir__onnx_cast(c, mask, a->dtype);
  const int32_t last = view->ndim - 1;
  if (view->ndim > 4 || last < 0) {
    FAIL(INVALID_ARGUMENT, "the mask has %d dimensions; needs 1 to 4",
         view->ndim);
    return;
  }
  if (view->shape[last] < a->columns) {
    choir_pad_attrs_t attrs = {.mode = CHOIR_PAD_CONSTANT,
                               .value = is_bool ? 0 : -INFINITY};
    attrs.after[last] = a->columns - view->shape[last];
    mask = DO(pad, mask, &attrs);
  }
  if (is_bool)
    allow(c, a, mask);
  else
    a->bias = mask;
}

// Rows that see nothing give 0: they see all instead, and what comes of that is
// replaced by 0, so that no NaN gets into gradients.
static void find_empty_rows(choir__onnx_call_t* c, attention_t* a) {
  const choir_reduce_attrs_t rows = {.axis = 0, .keep_dims = true};
  choir_var_t* low = NULL;
  choir_var_t* of = a->bias;
  if (a->bias) {
    low = choir__onnx_scalar(c, a->dtype, -INFINITY);
    if (a->allowed) of = a->bias = DO(where, a->allowed, a->bias, low);
    a->allowed = NULL;
  } else if (a->allowed) {
    of = choir__onnx_cast(c, a->allowed, CHOIR_DTYPE_F32);
    low = choir__onnx_scalar(c, CHOIR_DTYPE_F32, 0);
  }
  const choir_view_t* view = of ? choir_var_view(of) : NULL;
  if (!view || view->shape[view->ndim - 1] < 1) return;
  choir_max_attrs_t attrs = rows;
  attrs.axis = view->ndim - 1;
  a->empty = choir__onnx_cast(c, DO(equal, DO(max, of, &attrs), low),
                              CHOIR_DTYPE_BOOL);
  if (a->bias)
    a->bias = DO(where, a->empty, choir__onnx_scalar(c, a->dtype, 0), a->bias);
  else
    a->allowed = DO(logical_or, a->allowed, a->empty);
}

static choir_var_t* without_empty(choir__onnx_call_t* c, const attention_t* a,
                                  choir_var_t* y) {
  const choir_view_t* view = choir_var_view(y);
  return a->empty && view
             ? DO(where, a->empty, choir__onnx_scalar(c, view->dtype, 0), y)
             : y;
}

// ---- Results ----

static choir_var_t* by_op(choir__onnx_call_t* c, attention_t* a) {
  const bool is_plain =
      a->is_causal && !HAS(3) && a->left < 0 && a->right < 0 && !a->lengths;
  const choir_attention_attrs_t attrs = {
      .scale = a->scale, .causal = is_plain, .offset = is_plain ? a->past : 0};
  if (!is_plain) {
    read_mask(c, a);
    allow_places(c, a);
    find_empty_rows(c, a);
  }
  choir_var_t* mask = a->bias ? a->bias : a->allowed;
  choir_var_t* const srcs[] = {a->q, a->k, choir__onnx_cast(c, a->v, a->dtype),
                               mask};
  return without_empty(c, a, DO(attention, srcs, mask ? 4 : 3, &attrs));
}

static choir_var_t* scaled(choir__onnx_call_t* c, choir_var_t* x,
                           double factor) {
  return DO(scale, x, &(choir_scale_attrs_t){.factor = factor});
}

// Each head as often as Q's heads share it.
static choir_var_t* repeated(choir__onnx_call_t* c, const attention_t* a,
                             choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || view->shape[1] < 1 || view->shape[1] == a->heads) return x;
  const choir_repeat_attrs_t attrs = {.repeats = a->heads / view->shape[1],
                                      .axis = 1};
  return DO(repeat, x, &attrs);
}

// In which dtype the softmax is computed.
static choir_dtype_t softmax_dtype(choir__onnx_call_t* c,
                                   const attention_t* a) {
  choir_dtype_t dtype = a->dtype;
  (void)choir__onnx_precision(c, "softmax_precision", &dtype);
  return dtype;
}

static choir_var_t* by_products(choir__onnx_call_t* c, attention_t* a) {
  const choir_matmul_attrs_t by_rows = {.transpose_b = true};
  const int64_t mode = choir__onnx_int(c, "qk_matmul_output_mode", 0);
  const double root = a->scale > 0 ? sqrt(a->scale) : 1;
  choir_var_t* q = scaled(c, a->q, a->scale > 0 ? root : a->scale);
  choir_var_t* k = scaled(c, repeated(c, a, a->k), root);
  choir_var_t* scores = DO(matmul, q, k, &by_rows);
  choir_var_t* shown = scores;
  if (a->cap > 0)
    scores = scaled(c, DO(tanh, scaled(c, scores, 1 / a->cap)), a->cap);
  if (mode == 1) shown = scores;
  read_mask(c, a);
  allow_places(c, a);
  choir_var_t* low = choir__onnx_scalar(c, a->dtype, -INFINITY);
  if (mode == 2) {
    shown = a->bias ? DO(add, scores, a->bias) : scores;
    if (a->allowed) shown = DO(where, a->allowed, shown, low);
  }
  find_empty_rows(c, a);
  if (a->bias) scores = DO(add, scores, a->bias);
  if (a->allowed) scores = DO(where, a->allowed, scores, low);
  if (a->empty)
    scores = DO(where, a->empty, choir__onnx_scalar(c, a->dtype, 0), scores);
  scores = choir__onnx_cast(c, scores, softmax_dtype(c, a));
  choir_var_t* weights = without_empty(c, a, DO(softmax, scores));
  weights = choir__onnx_cast(c, weights, a->dtype);
  if (mode == 3) shown = weights;
  OUT(3, shown);
  choir_var_t* v = repeated(c, a, choir__onnx_cast(c, a->v, a->dtype));
  return DO(matmul, weights, v, NULL);
}

void choir__onnx_op_attention(choir__onnx_call_t* c) {
  attention_t a = {0};
  if (!read_inputs(c, &a)) return;
  const bool is_wide =
      softmax_dtype(c, &a) == CHOIR_DTYPE_F64 && a.dtype != CHOIR_DTYPE_F64;
  choir_var_t* y =
      a.cap > 0 || choir__onnx_wants(c, 3) || is_wide || !(a.scale > 0)
          ? by_products(c, &a)
          : by_op(c, &a);
  const choir_view_t* view = choir_var_view(y);
  if (!view) return;
  if (VIEW(0)->ndim == 3) {
    const int64_t shape[] = {a.batch, a.rows, a.heads * view->shape[3]};
    y = choir__onnx_transpose(c, y, (const int64_t[]){0, 2, 1, 3});
    y = choir__onnx_reshape(c, y, 3, shape);
  }
  OUT(0, y);
  OUT(1, a.k);
  OUT(2, a.v);
}
