// SPDX-License-Identifier: Apache-2.0
// Rounding to floating-point numbers of 8 and 4 bits.
#include "onnx/operators/onnx_small_floats_internal.h"

#include <math.h>

typedef struct format_s {
  int mantissa;    // bits of it that are written
  int least;       // exponent of the smallest normal number
  double largest;  // finite number
  bool has_infinity;
  bool is_unsigned_zero;  // -0 is 0
  bool has_nan;
} format_t;

static bool find_format(int32_t type, format_t* out_format) {
  switch (type) {
    case CHOIR_ONNX_FLOAT8E4M3FN:
      *out_format = (format_t){3, -6, 448, false, false, true};
      return true;
    case CHOIR_ONNX_FLOAT8E4M3FNUZ:
      *out_format = (format_t){3, -7, 240, false, true, true};
      return true;
    case CHOIR_ONNX_FLOAT8E5M2:
      *out_format = (format_t){2, -14, 57344, true, false, true};
      return true;
    case CHOIR_ONNX_FLOAT8E5M2FNUZ:
      *out_format = (format_t){2, -15, 57344, false, true, true};
      return true;
    case CHOIR_ONNX_FLOAT4E2M1:
      *out_format = (format_t){1, 0, 6, false, false, false};
      return true;
    default:
      return false;
  }
}

// A type without NaN has -0 for it.
static double round_to(const format_t* format, double x, bool does_saturate) {
  if (isnan(x)) return format->has_nan ? x : -0.0;
  double y = x;
  if (!isinf(x) && x != 0) {
    int exponent = ilogb(x);
    if (exponent < format->least) exponent = format->least;
    const double step = ldexp(1, exponent - format->mantissa);
    y = nearbyint(x / step) * step;
  }
  if (fabs(y) > format->largest) {
    if (does_saturate || !format->has_nan) return copysign(format->largest, y);
    return format->has_infinity ? copysign(INFINITY, y) : NAN;
  }
  return y == 0 ? format->is_unsigned_zero ? 0 : copysign(0, x) : y;
}

// A power of two; signs are lost.
static double power_of_two(double x, const choir__onnx_cast_rule_t* rule) {
  enum { LEAST = -127, LARGEST = 127 };
  const double size = fabs(x);
  if (isnan(x)) return x;
  if (isinf(x)) return rule->does_saturate ? ldexp(1, LARGEST) : NAN;
  int exponent = LEAST - 1;
  if (size > 0) {
    exponent = ilogb(size);
    const double fraction = ldexp(size, -exponent);  // from 1 to 2
    if (rule->round > 0 ? fraction > 1 : rule->round == 0 && fraction >= 1.5)
      ++exponent;
  }
  if (exponent < LEAST) return rule->does_saturate ? ldexp(1, LEAST) : NAN;
  if (exponent > LARGEST) return rule->does_saturate ? ldexp(1, LARGEST) : NAN;
  return ldexp(1, exponent);
}

static choir_status_t round_loop(const choir__onnx_array_t* srcs,
                                 const choir__onnx_array_t* dsts,
                                 const void* attrs) {
  const choir__onnx_cast_rule_t* rule = attrs;
  format_t format;
  const bool has_format = find_format(rule->type, &format);
  float* to = dsts->data;
  for (int64_t k = 0; k < dsts->count; ++k) {
    const double x = choir__onnx_number_at(&srcs[0], k);
    to[k] = (float)(has_format ? round_to(&format, x, rule->does_saturate)
                               : power_of_two(x, rule));
  }
  return NULL;
}

bool choir__onnx_is_small_float(int32_t type) {
  format_t format;
  return type == CHOIR_ONNX_FLOAT8E8M0 || find_format(type, &format);
}

choir_var_t* choir__onnx_round_small(choir__onnx_call_t* c, choir_var_t* x,
                                     const choir__onnx_cast_rule_t* rule) {
  const choir_view_t* from = choir_var_view(x);
  if (!from) return choir_scope_fail(c->scope, NULL);
  choir_view_t view = *from;
  view.dtype = CHOIR_DTYPE_F32;
  choir_var_t* y = NULL;
  choir__onnx_host(c, "onnx/round_small", round_loop, rule, sizeof *rule, &x, 1,
                   &view, 1, &y);
  return y;
}
