// SPDX-License-Identifier: Apache-2.0
// LinearAttention (a state instead of weights of all places; Katharopoulos et
// al., 2020; the delta rule: Yang et al., 2024).
#include <math.h>
#include <string.h>

#include "onnx/operators/onnx_constants_internal.h"
#include "onnx/operators/onnx_sequences_internal.h"

typedef struct linear_attention_s {
  bool has_decay, has_delta;
  int64_t samples, places, heads, group;  // of q's heads for one of k and v
  int64_t key_size, value_size;
  choir_dtype_t dtype;
  double scale;
  // (samples, heads, places, ...) but of `columns` and decay: (..., places)
  choir_var_t *q, *k, *columns, *v, *decay, *beta;
} linear_attention_t;

// Input i, (samples, places, heads size), as (samples, heads, places, size).
static choir_var_t* unpack(choir__onnx_call_t* c, int32_t i,
                           const linear_attention_t* a, int64_t heads) {
  const choir_view_t* x = VIEW(i);
  if (!x) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input %d is missing", i);
    return choir_scope_fail(c->scope, NULL);
  }
  if (x->ndim != 3 || x->shape[0] != a->samples || x->shape[1] != a->places ||
      x->shape[2] % heads != 0)
    return FAIL(INVALID_ARGUMENT,
                "input %d is not (%lld, %lld, n) with n a multiple of %lld", i,
                (long long)a->samples, (long long)a->places, (long long)heads);
  const int64_t shape[] = {a->samples, a->places, heads, x->shape[2] / heads};
  static const int64_t heads_first[] = {0, 2, 1, 3};
  choir_var_t* y = choir__onnx_cast(c, IN(i), a->dtype);
  return choir__onnx_transpose(c, choir__onnx_reshape(c, y, 4, shape),
                               heads_first);
}

static choir_var_t* turn(choir__onnx_call_t* c, choir_var_t* x) {
  static const int64_t last_swapped[] = {0, 1, 3, 2};
  return choir__onnx_transpose(c, x, last_swapped);
}

static bool take_attrs(choir__onnx_call_t* c, linear_attention_t* a) {
  const char* rule = choir__onnx_string(c, "update_rule", "gated_delta");
  const choir_view_t* x = VIEW(0);
  const int64_t heads = choir__onnx_int(c, "q_num_heads", 0);
  a->heads = choir__onnx_int(c, "kv_num_heads", 0);
  a->has_decay = strncmp(rule, "gated", 5) == 0;
  a->has_delta = strcmp(rule, "delta") == 0 || strcmp(rule, "gated_delta") == 0;
  if (!x) return false;
  if ((!a->has_delta && strcmp(rule, "linear") != 0 &&
       strcmp(rule, "gated") != 0) ||
      a->heads < 1 || heads < 1 || heads % a->heads != 0) {
    FAIL(INVALID_ARGUMENT, "update_rule '%s', %lld heads of q, %lld of k", rule,
         (long long)heads, (long long)a->heads);
    return false;
  }
  if (x->ndim != 3 || x->shape[1] < 1 || !choir_dtype_is_float(x->dtype)) {
    FAIL(
        INVALID_ARGUMENT,
        "the query has %d dimensions; needs 3, of floats, with a place or more",
        x->ndim);
    return false;
  }
  a->group = heads / a->heads;
  a->samples = x->shape[0];
  a->places = x->shape[1];
  a->dtype = x->dtype == CHOIR_DTYPE_F64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32;
  return true;
}

static bool take_inputs(choir__onnx_call_t* c, linear_attention_t* a) {
  a->q = unpack(c, 0, a, a->heads);
  a->k = unpack(c, 1, a, a->heads);
  a->v = unpack(c, 2, a, a->heads);
  if (!CALL_IS_OK) return false;
  a->key_size = choir_var_view(a->k)->shape[3];
  a->value_size = choir_var_view(a->v)->shape[3];
  const int64_t query_size = choir_var_view(a->q)->shape[3];
  if (a->key_size < 1 || query_size % a->group != 0 ||
      query_size / a->group != a->key_size) {
    FAIL(INVALID_ARGUMENT, "heads of q of size %lld, of k of size %lld",
         (long long)(query_size / a->group), (long long)a->key_size);
    return false;
  }
  a->scale = choir__onnx_float(c, "scale", 0);
  if (a->scale == 0) a->scale = 1 / sqrt((double)a->key_size);
  a->columns = turn(c, a->k);
  if (a->has_decay) a->decay = DO(exp, turn(c, unpack(c, 4, a, a->heads)));
  const choir_view_t* beta = VIEW(5);
  const bool is_shared = beta && beta->ndim == 3 && beta->shape[2] == 1;
  if (a->has_delta) a->beta = unpack(c, 5, a, is_shared ? 1 : a->heads);
  if (!CALL_IS_OK) return false;
  const int64_t size = a->has_decay ? choir_var_view(a->decay)->shape[2] : 1;
  if ((size == 1 || size == a->key_size) &&
      (!a->has_delta || choir_var_view(a->beta)->shape[3] == 1))
    return true;
  FAIL(INVALID_ARGUMENT,
       "decay is of each head or each element of a key, beta of each head");
  return false;
}

static choir_var_t* first_state(choir__onnx_call_t* c,
                                const linear_attention_t* a) {
  const int64_t shape[] = {a->samples, a->heads, a->key_size, a->value_size};
  const choir_view_t* given = VIEW(3);
  if (!given) return choir__onnx_filled(c, a->dtype, 4, shape, 0);
  bool fits = given->ndim == 4;
  for (int32_t d = 0; fits && d < 4; ++d) fits = given->shape[d] == shape[d];
  if (!fits)
    return FAIL(INVALID_ARGUMENT, "the state is not (%lld, %lld, %lld, %lld)",
                (long long)shape[0], (long long)shape[1], (long long)shape[2],
                (long long)shape[3]);
  return choir__onnx_cast(c, IN(3), a->dtype);
}

// The state after place t.
static choir_var_t* next_state(choir__onnx_call_t* c,
                               const linear_attention_t* a, int64_t t,
                               choir_var_t* state) {
  choir_var_t* value = choir__onnx_slice(c, a->v, 2, t, t + 1);
  if (a->has_decay)
    state = DO(mul, state, choir__onnx_slice(c, a->decay, 3, t, t + 1));
  if (a->has_delta) {
    choir_var_t* known =
        DO(matmul, choir__onnx_slice(c, a->k, 2, t, t + 1), state, NULL);
    value = DO(mul, DO(sub, value, known),
               choir__onnx_slice(c, a->beta, 2, t, t + 1));
  }
  return DO(add, state,
            DO(mul, choir__onnx_slice(c, a->columns, 3, t, t + 1), value));
}

void choir__onnx_op_linear_attention(choir__onnx_call_t* c) {
  linear_attention_t a = {0};
  if (!take_attrs(c, &a) || !take_inputs(c, &a)) return;
  choir_var_t* state = first_state(c, &a);
  choir_var_t** parts =
      choir_scope_alloc(c->scope, (size_t)a.places * sizeof(choir_var_t*));
  if (!parts) return;
  const int64_t rows[] = {a.samples, a.heads, a.group, a.key_size};
  for (int64_t t = 0; t < a.places && CALL_IS_OK; ++t) {
    state = next_state(c, &a, t, state);
    choir_var_t* q = choir__onnx_slice(c, a.q, 2, t, t + 1);
    parts[t] = DO(matmul, choir__onnx_reshape(c, q, 4, rows), state, NULL);
  }
  if (!CALL_IS_OK) return;
  const int64_t apart[] = {a.samples, a.heads, a.places, a.group, a.value_size};
  const int64_t packed[] = {a.samples, a.places,
                            a.heads * a.group * a.value_size};
  static const int64_t places_first[] = {0, 2, 1, 3, 4};
  choir_var_t* y =
      choir__onnx_reshape(c, choir__onnx_join(c, parts, a.places, 2), 5, apart);
  y = choir__onnx_reshape(c, choir__onnx_transpose(c, y, places_first), 3,
                          packed);
  y = DO(scale, y, &((choir_scale_attrs_t){.factor = a.scale}));
  OUT(0, choir__onnx_cast(c, y, VIEW(0)->dtype));
  const int32_t type = HAS(3) ? TYPE(3) : TYPE(0);
  const choir_view_t* like = HAS(3) ? VIEW(3) : VIEW(0);
  choir__onnx_out_as(c, 1, choir__onnx_cast(c, state, like->dtype), type);
}
