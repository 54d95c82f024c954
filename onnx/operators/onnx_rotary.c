// SPDX-License-Identifier: Apache-2.0
// RotaryEmbedding, with sines and cosines as inputs.
#include "onnx/operators/onnx_sequences_internal.h"

typedef struct rotary_s {
  choir_var_t* x;      // (n, heads, t, d), or (n, t, heads, d)
  int64_t heads_axis;  // 1 or 2
  int64_t batch, rows, depth;
  int64_t turned;  // columns that are turned; the others stay
  bool is_interleaved;
} rotary_t;

static bool read_sizes(choir__onnx_call_t* c, rotary_t* r) {
  const choir_view_t* x = VIEW(0);
  if (!x) return false;
  const int64_t heads = x->ndim == 4 ? 1 : choir__onnx_int(c, "num_heads", 0);
  const bool is_flat = x->ndim == 3;
  if ((x->ndim != 4 && !is_flat) || heads < 1 ||
      (is_flat && x->shape[2] % heads != 0)) {
    char text[160];
    FAIL(INVALID_ARGUMENT,
         "X is %s and num_heads is %lld; needs 4 dimensions, or 3 of which the "
         "last is a multiple of the heads",
         choir_view_print(x, text, sizeof text), (long long)heads);
    return false;
  }
  r->batch = x->shape[0];
  r->heads_axis = is_flat ? 2 : 1;
  r->rows = x->shape[is_flat ? 1 : 2];
  r->depth = is_flat ? x->shape[2] / heads : x->shape[3];
  r->is_interleaved = choir__onnx_int(c, "interleaved", 0) != 0;
  r->turned = choir__onnx_int(c, "rotary_embedding_dim", 0);
  if (r->turned == 0) r->turned = r->depth;
  if (r->turned < 2 || r->turned > r->depth || r->turned % 2 != 0) {
    FAIL(INVALID_ARGUMENT,
         "%lld of %lld columns are to be turned; needs an even number",
         (long long)r->turned, (long long)r->depth);
    return false;
  }
  const int64_t shape[] = {r->batch, r->rows, heads, r->depth};
  r->x = is_flat ? choir__onnx_reshape(c, IN(0), 4, shape) : IN(0);
  return true;
}

// Input i, cosines or sines, of each row: (n, t, columns) with an axis for
// heads.
static choir_var_t* angles(choir__onnx_call_t* c, const rotary_t* r,
                           int32_t i) {
  const choir_view_t* view = VIEW(i);
  if (!view) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input %d is missing", i);
    return choir_scope_fail(c->scope, NULL);
  }
  choir_var_t* x = IN(i);
  if (HAS(3) && view->ndim == 2)
    x = DO(gather, x, IN(3), &(choir_gather_attrs_t){.axis = 0});
  const choir_view_t* own = choir_var_view(x);
  if (!own) return x;
  if (own->ndim != 3 || own->shape[2] != r->turned / 2) {
    char text[160];
    return FAIL(INVALID_ARGUMENT,
                "input %d is %s; needs %lld columns of each row, with "
                "position_ids in 2 dimensions, else in 3",
                i, choir_view_print(view, text, sizeof text),
                (long long)(r->turned / 2));
  }
  return choir__onnx_unsqueeze(c, x, &r->heads_axis, 1);
}

static choir_var_t* columns(choir__onnx_call_t* c, choir_var_t* x,
                            int64_t start, int64_t stop, int64_t step) {
  return DO(slice, x,
            &(choir_slice_attrs_t){
                .axis = 3, .start = start, .stop = stop, .step = step});
}

void choir__onnx_op_rotary_embedding(choir__onnx_call_t* c) {
  rotary_t r = {0};
  if (!read_sizes(c, &r)) return;
  choir_var_t *cosines = angles(c, &r, 1), *sines = angles(c, &r, 2);
  const int64_t half = r.turned / 2;
  const bool mixed = r.is_interleaved;
  choir_var_t* a = columns(c, r.x, 0, mixed ? r.turned : half, mixed ? 2 : 1);
  choir_var_t* b = columns(c, r.x, mixed ? 1 : half, r.turned, mixed ? 2 : 1);
  choir_var_t* const parts[] = {DO(sub, DO(mul, cosines, a), DO(mul, sines, b)),
                                DO(add, DO(mul, sines, a), DO(mul, cosines, b)),
                                columns(c, r.x, r.turned, r.depth, 1)};
  const choir_view_t* view = choir_var_view(parts[0]);
  if (!view) return;
  const int64_t shape[] = {view->shape[0], view->shape[1], view->shape[2],
                           r.turned};
  choir_var_t* y = mixed ? choir__onnx_reshape(
                               c, choir__onnx_stack(c, parts, 2, 4), 4, shape)
                         : choir__onnx_join(c, parts, 2, 3);
  if (r.turned < r.depth)
    y = choir__onnx_join(c, (choir_var_t* const[]){y, parts[2]}, 2, 3);
  const choir_view_t* x = VIEW(0);
  OUT(0, choir__onnx_reshape(c, y, x->ndim, x->shape));
}
