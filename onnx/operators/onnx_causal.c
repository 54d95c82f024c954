// SPDX-License-Identifier: Apache-2.0
// CausalConvWithState: each channel with its own kernel over what lies before.
#include <string.h>

#include "onnx/operators/onnx_window_internal.h"

// What lies before x (n, c, places): the state, or zeros, `width` of them.
static choir_var_t* put_before(choir__onnx_call_t* c, int64_t width) {
  const choir_view_t *x = VIEW(0), *state = VIEW(3);
  if (!state || width == 0) {
    choir_pad_attrs_t attrs = {.mode = CHOIR_PAD_CONSTANT};
    attrs.before[2] = width;
    return width ? DO(pad, IN(0), &attrs) : IN(0);
  }
  if (state->ndim != 3 || state->shape[0] != x->shape[0] ||
      state->shape[1] != x->shape[1] || state->shape[2] != width)
    return FAIL(
        INVALID_ARGUMENT, "the state has another shape than (%lld, %lld, %lld)",
        (long long)x->shape[0], (long long)x->shape[1], (long long)width);
  const choir_concat_attrs_t attrs = {.axis = 2};
  choir_var_t* parts[] = {choir__onnx_cast(c, IN(3), x->dtype), IN(0)};
  return DO(concat, parts, 2, &attrs);
}

static choir_var_t* zeros(choir__onnx_call_t* c, int32_t ndim,
                          const int64_t* shape, choir_dtype_t dtype) {
  size_t count = 1;
  for (int32_t i = 0; i < ndim; ++i) count *= (size_t)shape[i];
  void* data = choir_scope_alloc(c->scope, (count + 1) * sizeof(double));
  if (!data) return choir_scope_fail(c->scope, NULL);
  return choir__onnx_constant(c, dtype, ndim, shape, data);
}

void choir__onnx_op_causal_conv(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *w = VIEW(1);
  const char* activation = choir__onnx_string(c, "activation", "none");
  const bool has_silu =
      strcmp(activation, "silu") == 0 || strcmp(activation, "swish") == 0;
  if (!x || !w) return;
  if (!has_silu && strcmp(activation, "none") != 0) {
    FAIL(INVALID_ARGUMENT, "activation is '%s'", activation);
    return;
  }
  if (x->ndim != 3 || w->ndim != 3 || w->shape[0] != x->shape[1] ||
      w->shape[1] != 1 || w->shape[2] < 1) {
    FAIL(INVALID_ARGUMENT,
         "an input of %d dimensions, weights of %d; needs (n, channels, "
         "places) and (channels, 1, taps)",
         x->ndim, w->ndim);
    return;
  }
  const int64_t taps = w->shape[2], channels = x->shape[1];
  choir_var_t* whole = put_before(c, taps - 1);
  choir_var_t* bias = HAS(2) ? IN(2) : zeros(c, 1, &channels, x->dtype);
  const choir_conv2d_attrs_t attrs = {
      .stride = {1, 1}, .dilation = {1, 1}, .groups = channels};
  choir_var_t* y = DO(conv2d, choir__onnx_with_rows(c, whole),
                      choir__onnx_with_rows(c, IN(1)), bias, &attrs);
  if (!CALL_IS_OK) return;
  y = choir__onnx_reshape(c, y, 3, x->shape);
  OUT(0, has_silu ? DO(silu, y) : y);
  if (!choir__onnx_wants(c, 1)) return;
  const int64_t state[] = {x->shape[0], channels, taps - 1};
  OUT(1, taps == 1 ? zeros(c, 3, state, x->dtype)
                   : choir__onnx_slice(c, whole, 2, x->shape[2],
                                       x->shape[2] + taps - 1));
}
