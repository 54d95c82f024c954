// SPDX-License-Identifier: Apache-2.0
// FlexAttention of ai.onnx.preview: attention whose scores and weights go
// through graphs of the file.
#include <math.h>

#include "onnx/onnx_internal.h"
#include "onnx/operators/onnx_math_internal.h"

// x through graph attribute `name`, of one input and one result of x's shape;
// as it is where the node has no such graph.
static choir_var_t* modify(choir__onnx_call_t* c, const char* name,
                           choir_var_t* x, int32_t type) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  if (!choir__onnx_has_attr(c, name)) return x;
  const choir__onnx_graph_t* body = choir__onnx_body(c, name);
  if (!body) return choir_scope_fail(c->scope, NULL);
  if (choir__onnx_body_inputs(body) != 1 || choir__onnx_body_outputs(body) != 1)
    return FAIL(INVALID_ARGUMENT, "%s takes %d inputs and gives %d; needs one",
                name, choir__onnx_body_inputs(body),
                choir__onnx_body_outputs(body));
  const choir__onnx_value_t input = {
      .var = x, .type = type, .is_known = c->is_known};
  choir__onnx_value_t output = {0};
  if (!choir__onnx_run_body(c, body, &input, &output))
    return choir_scope_fail(c->scope, NULL);
  choir_var_t* y = output.var;
  if (y && output.is_known && !c->is_known)
    y = choir__onnx_move(c->run, choir_var_tensor(y), output.kept);
  const choir_view_t* made = choir_var_view(y);
  bool fits = made && made->dtype == view->dtype && made->ndim == view->ndim;
  for (int32_t d = 0; fits && d < view->ndim; ++d)
    fits = made->shape[d] == view->shape[d];
  if (!fits)
    return FAIL(INVALID_ARGUMENT,
                "%s does not give a tensor of its input's shape and type",
                name);
  return y;
}

// Whether the inputs are of 4 dimensions that go together.
static bool check_shapes(choir__onnx_call_t* c, const choir_view_t* q,
                         const choir_view_t* k, const choir_view_t* v) {
  const bool fits = q->ndim == 4 && k->ndim == 4 && v->ndim == 4 &&
                    q->shape[0] == k->shape[0] && k->shape[0] == v->shape[0] &&
                    k->shape[1] == v->shape[1] && k->shape[1] > 0 &&
                    q->shape[1] % k->shape[1] == 0 &&
                    k->shape[2] == v->shape[2] && q->shape[3] == k->shape[3] &&
                    choir_dtype_is_float(q->dtype);
  if (!fits)
    FAIL(INVALID_ARGUMENT,
         "inputs of %d, %d and %d dimensions; needs floats (n, heads, places, "
         "size) whose shapes go together",
         q->ndim, k->ndim, v->ndim);
  return fits;
}

void choir__onnx_op_flex_attention(choir__onnx_call_t* c) {
  const choir_view_t *q = VIEW(0), *k = VIEW(1), *v = VIEW(2);
  if (!q || !k || !v || !check_shapes(c, q, k, v)) return;
  choir_dtype_t dtype =
      q->dtype == CHOIR_DTYPE_F64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32;
  if (!choir__onnx_precision(c, "softmax_precision", &dtype)) return;
  const int32_t type = choir__onnx_dtype_type(dtype);
  const int64_t n = q->shape[0], heads = q->shape[1], places = q->shape[2];
  // Heads of q that share one of k and v are rows of one product.
  const int64_t grouped[] = {n, k->shape[1], heads / k->shape[1] * places,
                             q->shape[3]};
  const int64_t apart[] = {n, heads, places, k->shape[2]};
  const int64_t rows[] = {grouped[0], grouped[1], grouped[2], k->shape[2]};
  const int64_t result[] = {n, heads, places, v->shape[3]};
  const double size = (double)(q->shape[3] > 0 ? q->shape[3] : 1);
  const choir_scale_attrs_t scale = {
      .factor = choir__onnx_float(c, "scale", 1 / sqrt(size))};
  const choir_matmul_attrs_t across = {.transpose_b = true};
  choir_var_t* scores =
      DO(matmul,
         choir__onnx_reshape(c, choir__onnx_cast(c, IN(0), dtype), 4, grouped),
         choir__onnx_cast(c, IN(1), dtype), &across);
  scores = DO(scale, choir__onnx_reshape(c, scores, 4, apart), &scale);
  scores = modify(c, "score_mod", scores, type);
  choir_var_t* shares = modify(c, "prob_mod", DO(softmax, scores), type);
  choir_var_t* y = DO(matmul, choir__onnx_reshape(c, shares, 4, rows),
                      choir__onnx_cast(c, IN(2), dtype), NULL);
  y = choir__onnx_reshape(c, y, 4, result);
  OUT(0, choir__onnx_cast(c, y, q->dtype));
}
