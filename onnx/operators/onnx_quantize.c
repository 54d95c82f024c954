// SPDX-License-Identifier: Apache-2.0
// Numbers as multiples of a scale: QuantizeLinear, DequantizeLinear,
// DynamicQuantizeLinear. The scale is one number, one for each place along an
// axis, or one for each block of places along it.
#include "onnx/operators/onnx_quantize_internal.h"

#include "onnx/operators/onnx_small_floats_internal.h"

bool choir__onnx_quantized_range(int32_t type, double* out_low,
                                 double* out_high) {
  int bits;
  bool is_signed = true;
  switch (type) {
    case CHOIR_ONNX_UINT16:
    case CHOIR_ONNX_INT16:
      bits = 16, is_signed = type == CHOIR_ONNX_INT16;
      break;
    case CHOIR_ONNX_UINT8:
    case CHOIR_ONNX_INT8:
      bits = 8, is_signed = type == CHOIR_ONNX_INT8;
      break;
    case CHOIR_ONNX_UINT4:
    case CHOIR_ONNX_INT4:
      bits = 4, is_signed = type == CHOIR_ONNX_INT4;
      break;
    case CHOIR_ONNX_UINT2:
    case CHOIR_ONNX_INT2:
      bits = 2, is_signed = type == CHOIR_ONNX_INT2;
      break;
    default:
      return false;
  }
  *out_low = is_signed ? -(double)(1 << (bits - 1)) : 0;
  *out_high = (double)(1 << (is_signed ? bits - 1 : bits)) - 1;
  return true;
}

choir_var_t* choir__onnx_quantize(choir__onnx_call_t* c, choir_var_t* quotient,
                                  choir_var_t* zero, int32_t type) {
  double low, high;
  choir_dtype_t dtype;
  choir_status_t status = choir_onnx_type_dtype(type, &dtype);
  if (status) return choir__onnx_fail(c, status);
  if (!choir__onnx_quantized_range(type, &low, &high))
    return FAIL(
        UNIMPLEMENTED,
        "the result is of type %s; needs integers of up to 16 bits, or floats "
        "of 8 or 4",
        choir_onnx_type_name(type));
  choir_var_t* y = DO(round_even, quotient);
  if (zero) y = DO(add, y, zero);
  const choir_clip_attrs_t range = {.low = low, .high = high};
  return choir__onnx_cast(c, DO(clip, y, &range), dtype);
}

// ---- The shape of scales ----

// Along `axis` x has `size` places, and the scales have `blocks` of them.
static choir_var_t* spread_blocks(choir__onnx_call_t* c, choir_var_t* scale,
                                  int64_t axis, int64_t size, int64_t blocks,
                                  int64_t block_size) {
  const bool fits = size == 0
                        ? blocks == 0
                        : blocks > 0 && (size - 1) / block_size + 1 == blocks;
  if (!fits)
    return FAIL(INVALID_ARGUMENT,
                "%lld scales for %lld places of axis %lld in blocks of %lld",
                (long long)blocks, (long long)size, (long long)axis,
                (long long)block_size);
  const int64_t repeats = block_size < size ? block_size : size;
  if (repeats < 2) return scale;
  const choir_repeat_attrs_t attrs = {.repeats = repeats, .axis = axis};
  return choir__onnx_slice(c, DO(repeat, scale, &attrs), axis, 0, size);
}

// Scales, or zero points, in a shape that broadcasts to x.
static choir_var_t* spread(choir__onnx_call_t* c, const choir_view_t* x,
                           choir_var_t* scale) {
  const choir_view_t* view = choir_var_view(scale);
  if (!view) return choir_scope_fail(c->scope, NULL);
  if (choir_view_count(view) == 1)
    return choir__onnx_reshape(c, scale, 0, NULL);
  int64_t axis = choir__onnx_int(c, "axis", 1);
  const int64_t block_size = choir__onnx_int(c, "block_size", 0);
  if (block_size < 0)
    return FAIL(INVALID_ARGUMENT, "block_size %lld; needs a positive one",
                (long long)block_size);
  if (!choir__onnx_axis(c, &axis, x->ndim))
    return choir_scope_fail(c->scope, NULL);
  bool fits = view->ndim == (block_size ? x->ndim : 1);
  for (int32_t i = 0; fits && i < view->ndim; ++i)
    if (block_size ? i != axis : true)
      fits = view->shape[i] == x->shape[block_size ? i : axis];
  if (!fits)
    return FAIL(INVALID_ARGUMENT,
                "scales of %d dimensions do not fit axis %lld of an input of "
                "%d dimensions with block_size %lld",
                view->ndim, (long long)axis, x->ndim, (long long)block_size);
  if (block_size)
    return spread_blocks(c, scale, axis, x->shape[axis], view->shape[axis],
                         block_size);
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < x->ndim; ++i) shape[i] = 1;
  shape[axis] = view->shape[0];
  return choir__onnx_reshape(c, scale, x->ndim, shape);
}

// ---- The operators ----

static choir_var_t* round_to_small(choir__onnx_call_t* c, choir_var_t* x,
                                   int32_t type) {
  const choir__onnx_cast_rule_t rule = {
      .type = type, .does_saturate = choir__onnx_int(c, "saturate", 1) != 0};
  return choir__onnx_round_small(c, x, &rule);
}

// The type of a quantized result: of the zero point, or of output_dtype.
static int32_t result_type(choir__onnx_call_t* c) {
  const int32_t given = (int32_t)choir__onnx_int(c, "output_dtype", 0);
  if (!HAS(2)) return given ? given : CHOIR_ONNX_UINT8;
  if (given && given != TYPE(2)) {
    FAIL(INVALID_ARGUMENT, "output_dtype is %s, and the zero point's type %s",
         choir_onnx_type_name(given), choir_onnx_type_name(TYPE(2)));
    return CHOIR_ONNX_UNDEFINED;
  }
  return TYPE(2);
}

static bool same_shape(const choir_view_t* a, const choir_view_t* b) {
  return choir_view_same_shape(a, b) ||
         (choir_view_count(a) == 1 && choir_view_count(b) == 1);
}

// Scale and zero point (NULL: none), spread to x, the latter as F32.
static bool take_scale(choir__onnx_call_t* c, const choir_view_t* x,
                       choir_var_t** out_scale, choir_var_t** out_zero) {
  const choir_view_t* scale = VIEW(1);
  *out_zero = NULL;
  if (!scale) return false;
  if (!choir_dtype_is_float(scale->dtype)) {
    FAIL(INVALID_ARGUMENT, "the scale is of type %s; needs a float",
         choir_onnx_type_name(TYPE(1)));
    return false;
  }
  *out_scale = spread(c, x, IN(1));
  if (HAS(2)) {
    if (!VIEW(2)) return false;
    if (!same_shape(VIEW(1), VIEW(2))) {
      FAIL(INVALID_ARGUMENT, "scale and zero point have different shapes");
      return false;
    }
    *out_zero = choir__onnx_cast(c, spread(c, x, IN(2)), CHOIR_DTYPE_F32);
  }
  return CALL_IS_OK;
}

void choir__onnx_op_quantize_linear(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  choir_var_t *scale, *zero;
  if (!x || !take_scale(c, x, &scale, &zero)) return;
  const int32_t type = result_type(c);
  choir_dtype_t dtype = VIEW(1)->dtype;
  if (!choir__onnx_precision(c, "precision", &dtype)) return;
  choir_var_t* y = DO(div, choir__onnx_cast(c, IN(0), dtype),
                      choir__onnx_cast(c, scale, dtype));
  y = choir__onnx_cast(c, y, CHOIR_DTYPE_F32);
  if (choir__onnx_is_small_float(type) && type != CHOIR_ONNX_FLOAT8E8M0)
    y = round_to_small(c, zero ? DO(add, y, zero) : y, type);
  else
    y = choir__onnx_quantize(c, y, zero, type);
  choir__onnx_out_as(c, 0, y, type);
}

void choir__onnx_op_dequantize_linear(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  choir_var_t *scale, *zero;
  if (!x || !take_scale(c, x, &scale, &zero)) return;
  const int32_t given = (int32_t)choir__onnx_int(c, "output_dtype", 0);
  const int32_t type = given ? given : TYPE(1);
  choir_dtype_t dtype;
  choir_status_t status = choir_onnx_type_dtype(type, &dtype);
  if (status) {
    choir__onnx_fail(c, status);
    return;
  }
  if (!choir_dtype_is_float(dtype) || choir__onnx_is_small_float(type)) {
    FAIL(INVALID_ARGUMENT,
         "output_dtype is %s; needs a float of 16 bits or more",
         choir_onnx_type_name(type));
    return;
  }
  choir_var_t* y = choir__onnx_cast(c, IN(0), CHOIR_DTYPE_F32);
  if (zero) y = DO(sub, y, zero);
  y = DO(mul, y, choir__onnx_cast(c, scale, CHOIR_DTYPE_F32));
  choir__onnx_out_as(c, 0, choir__onnx_cast(c, y, dtype), type);
}

// The largest element, at least 0, as a scalar.
static choir_var_t* largest(choir__onnx_call_t* c, choir_var_t* x) {
  const choir_reduce_attrs_t attrs = {.axis = -1};
  choir_var_t* y = choir__onnx_reshape(c, DO(max, x, &attrs), 0, NULL);
  return DO(relu, y);
}

void choir__onnx_op_dynamic_quantize_linear(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  if (view->dtype != CHOIR_DTYPE_F32) {
    FAIL(INVALID_ARGUMENT, "the input is of type %s; needs float",
         choir_onnx_type_name(TYPE(0)));
    return;
  }
  choir_var_t* x = IN(0);
  choir_var_t* high = largest(c, x);
  choir_var_t* low = DO(neg, largest(c, DO(neg, x)));
  choir_var_t* range = DO(sub, high, low);
  choir_var_t* one = choir__onnx_scalar(c, CHOIR_DTYPE_F32, 1);
  choir_var_t* steps = choir__onnx_scalar(c, CHOIR_DTYPE_F32, 255);
  choir_var_t* scale = DO(div, DO(where, range, range, one), steps);
  const choir_clip_attrs_t limits = {.low = 0, .high = 255};
  choir_var_t* zero = DO(clip, DO(neg, DO(div, low, scale)), &limits);
  zero = DO(round_even, zero);
  choir_var_t* y =
      choir__onnx_quantize(c, DO(div, x, scale), zero, CHOIR_ONNX_UINT8);
  OUT_AS(0, y, UINT8);
  OUT_AS(1, scale, FLOAT);
  OUT_AS(2, choir__onnx_cast(c, zero, CHOIR_DTYPE_U8), UINT8);
}
