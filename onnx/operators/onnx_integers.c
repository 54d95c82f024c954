// SPDX-License-Identifier: Apache-2.0
// Integers: types that Choir keeps in wider dtypes, and what only loops compute
// (division, powers, bits).
#include <math.h>
#include <string.h>

#include "onnx/operators/onnx_math_internal.h"

int32_t choir__onnx_integer_bits(int32_t type) {
  switch (type) {
    case CHOIR_ONNX_INT64:
    case CHOIR_ONNX_UINT64:
      return 64;
    case CHOIR_ONNX_INT32:
    case CHOIR_ONNX_UINT32:
      return 32;
    case CHOIR_ONNX_INT16:
    case CHOIR_ONNX_UINT16:
      return 16;
    case CHOIR_ONNX_INT8:
    case CHOIR_ONNX_UINT8:
      return 8;
    case CHOIR_ONNX_INT4:
    case CHOIR_ONNX_UINT4:
      return 4;
    case CHOIR_ONNX_INT2:
    case CHOIR_ONNX_UINT2:
      return 2;
    default:
      return 0;
  }
}

bool choir__onnx_is_signed(int32_t type) {
  return type == CHOIR_ONNX_INT64 || type == CHOIR_ONNX_INT32 ||
         type == CHOIR_ONNX_INT16 || type == CHOIR_ONNX_INT8 ||
         type == CHOIR_ONNX_INT4 || type == CHOIR_ONNX_INT2;
}

// ---- Ranges ----

// A product with a power of two moves the lower bits to the top of the integer,
// where the highest of them is its sign. They fit in a float, whose scale moves
// them back.
choir_var_t* choir__onnx_wrap_bits(choir__onnx_call_t* c, choir_var_t* x,
                                   int32_t bits, bool is_signed) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const choir_dtype_t dtype = view->dtype;
  const int32_t width = dtype == CHOIR_DTYPE_I64 ? 64 : 32;
  if (bits >= width) return x;
  const double power = ldexp(1, width - bits);
  choir_var_t* y = DO(mul, x, choir__onnx_scalar(c, dtype, power));
  y = choir__onnx_cast(
      c, y, dtype == CHOIR_DTYPE_I64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32);
  y = DO(scale, y, &(choir_scale_attrs_t){.factor = 1 / power});
  y = choir__onnx_cast(c, y, dtype);
  if (is_signed) return y;
  choir_var_t* negative = DO(less, y, choir__onnx_scalar(c, dtype, 0));
  choir_var_t* range = choir__onnx_scalar(c, dtype, ldexp(1, bits));
  return DO(add, y, DO(mul, negative, range));
}

choir_var_t* choir__onnx_wrap(choir__onnx_call_t* c, choir_var_t* x,
                              int32_t type) {
  const int32_t bits = choir__onnx_integer_bits(type);
  if (bits == 0 || type == CHOIR_ONNX_UINT8) return x;
  return choir__onnx_wrap_bits(c, x, bits, choir__onnx_is_signed(type));
}

choir_var_t* choir__onnx_ordered(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t type) {
  if (type != CHOIR_ONNX_UINT64) return x;
  return DO(add, x,
            choir__onnx_scalar(c, CHOIR_DTYPE_I64, -9223372036854775808.0));
}

// ---- Loops ----

bool choir__onnx_broadcast_both(choir__onnx_call_t* c, choir_var_t** a,
                                choir_var_t** b) {
  const choir_view_t* a_view = choir_var_view(*a);
  const choir_view_t* b_view = choir_var_view(*b);
  if (!a_view || !b_view) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "an input is missing; needs two");
    return false;
  }
  if (choir_view_same_shape(a_view, b_view)) return true;
  choir_broadcast_to_attrs_t attrs = {.ndim = 0};
  int32_t ndim = 0;
  choir_status_t status =
      choir_view_broadcast_shape(a_view, b_view, &ndim, attrs.shape);
  if (status) {
    choir__onnx_fail(c, status);
    return false;
  }
  attrs.ndim = ndim;
  *a = DO(broadcast_to, *a, &attrs);
  *b = DO(broadcast_to, *b, &attrs);
  return CALL_IS_OK;
}

typedef struct integer_attrs_s {
  choir__onnx_integer_op_t op;
  int32_t type, bits;
  bool is_signed;
  bool is_b_signed;
} integer_attrs_t;

static int64_t cut(int64_t value, int32_t bits, bool is_signed) {
  if (bits >= 64) return value;
  const uint64_t mask = (UINT64_C(1) << bits) - 1;
  const uint64_t low = (uint64_t)value & mask;
  if (is_signed && low >> (bits - 1)) return (int64_t)(low | ~mask);
  return (int64_t)low;
}

void choir__onnx_set_integer(const choir__onnx_array_t* array, int64_t k,
                             int64_t value, int32_t type) {
  const int32_t bits = choir__onnx_integer_bits(type);
  if (bits > 0) value = cut(value, bits, choir__onnx_is_signed(type));
  if (array->view.dtype == CHOIR_DTYPE_I64)
    ((int64_t*)array->data)[k] = value;
  else if (array->view.dtype == CHOIR_DTYPE_I32)
    ((int32_t*)array->data)[k] = (int32_t)value;
  else if (array->view.dtype == CHOIR_DTYPE_BOOL)
    ((uint8_t*)array->data)[k] = value != 0;
  else
    ((uint8_t*)array->data)[k] = (uint8_t)value;
}

static int64_t negated(int64_t value) { return (int64_t) - (uint64_t)value; }

static int64_t divide(int64_t a, int64_t b, bool is_signed) {
  if (b == 0) return 0;
  if (!is_signed) return (int64_t)((uint64_t)a / (uint64_t)b);
  return b == -1 ? negated(a) : a / b;
}

static int64_t remain(int64_t a, int64_t b, bool is_signed) {
  if (b == 0) return 0;
  if (!is_signed) return (int64_t)((uint64_t)a % (uint64_t)b);
  return b == -1 ? 0 : a % b;
}

static int64_t modulo(int64_t a, int64_t b, bool is_signed) {
  const int64_t rest = remain(a, b, is_signed);
  return is_signed && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Of a negative exponent what is left of the fraction without its digits.
static int64_t power(int64_t base, int64_t exponent, bool is_b_signed) {
  if (is_b_signed && exponent < 0) {
    if (base == -1) return exponent & 1 ? -1 : 1;
    return base == 1;
  }
  uint64_t product = 1;
  uint64_t factor = (uint64_t)base;
  for (uint64_t left = (uint64_t)exponent; left > 0; left >>= 1) {
    if (left & 1) product *= factor;
    factor *= factor;
  }
  return (int64_t)product;
}

// A shift by a negative number, or by all bits or more, leaves the sign.
static int64_t shift_right(int64_t a, int64_t by,
                           const integer_attrs_t* attrs) {
  const int64_t sign = attrs->is_signed && a < 0 ? -1 : 0;
  if (by < 0 || by >= attrs->bits) return sign;
  if (by == 0) return a;
  const uint64_t filled = sign ? ~(UINT64_MAX >> by) : 0;
  return (int64_t)((uint64_t)a >> by | filled);
}

static int64_t compute(const integer_attrs_t* attrs, int64_t a, int64_t b) {
  switch (attrs->op) {
    case CHOIR__ONNX_DIVIDE:
      return divide(a, b, attrs->is_signed);
    case CHOIR__ONNX_MODULO:
      return modulo(a, b, attrs->is_signed);
    case CHOIR__ONNX_REMAINDER:
      return remain(a, b, attrs->is_signed);
    case CHOIR__ONNX_POWER:
      return power(a, b, attrs->is_b_signed);
    case CHOIR__ONNX_SHIFT_LEFT:
      return b < 0 || b >= attrs->bits ? 0 : (int64_t)((uint64_t)a << b);
    case CHOIR__ONNX_SHIFT_RIGHT:
      return shift_right(a, b, attrs);
    case CHOIR__ONNX_BIT_AND:
      return a & b;
    case CHOIR__ONNX_BIT_OR:
      return a | b;
    case CHOIR__ONNX_BIT_XOR:
      return a ^ b;
    default:
      return ~a;
  }
}

static choir_status_t integer_loop(const choir__onnx_array_t* srcs,
                                   const choir__onnx_array_t* dsts,
                                   const void* attrs) {
  const integer_attrs_t* rule = attrs;
  for (int64_t k = 0; k < dsts->count; ++k)
    choir__onnx_set_integer(dsts, k,
                            compute(rule, choir__onnx_int_at(&srcs[0], k),
                                    choir__onnx_int_at(&srcs[1], k)),
                            rule->type);
  return NULL;
}

choir_var_t* choir__onnx_integers(choir__onnx_call_t* c,
                                  choir__onnx_integer_op_t op, choir_var_t* a,
                                  choir_var_t* b) {
  const int32_t type = TYPE(0);
  const int32_t b_type = op == CHOIR__ONNX_BIT_NOT ? type : TYPE(1);
  if (!choir__onnx_broadcast_both(c, &a, &b))
    return choir_scope_fail(c->scope, NULL);
  const integer_attrs_t attrs = {.op = op,
                                 .type = type,
                                 .bits = choir__onnx_integer_bits(type),
                                 .is_signed = choir__onnx_is_signed(type),
                                 .is_b_signed = choir__onnx_is_signed(b_type)};
  const bool is_mixed = type != b_type && op != CHOIR__ONNX_POWER;
  if (attrs.bits == 0 || choir__onnx_integer_bits(b_type) == 0 || is_mixed)
    return FAIL(INVALID_ARGUMENT, "inputs of types %s and %s; needs integers%s",
                choir_onnx_type_name(type), choir_onnx_type_name(b_type),
                is_mixed ? " of one type" : "");
  choir_var_t* y = NULL;
  choir__onnx_host(c, "onnx/integers", integer_loop, &attrs, sizeof attrs,
                   (choir_var_t*[]){a, b}, 2, choir_var_view(a), 1, &y);
  return y;
}

// ---- Operators on bits ----

void choir__onnx_op_bitshift(choir__onnx_call_t* c) {
  const char* direction = choir__onnx_string(c, "direction", "");
  const bool is_left = strcmp(direction, "LEFT") == 0;
  if (!is_left && strcmp(direction, "RIGHT") != 0) {
    FAIL(INVALID_ARGUMENT, "direction '%s'; needs LEFT or RIGHT", direction);
    return;
  }
  OUT(0, choir__onnx_integers(
             c, is_left ? CHOIR__ONNX_SHIFT_LEFT : CHOIR__ONNX_SHIFT_RIGHT,
             IN(0), IN(1)));
}

void choir__onnx_op_bitwise_and(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_integers(c, CHOIR__ONNX_BIT_AND, IN(0), IN(1)));
}

void choir__onnx_op_bitwise_or(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_integers(c, CHOIR__ONNX_BIT_OR, IN(0), IN(1)));
}

void choir__onnx_op_bitwise_xor(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_integers(c, CHOIR__ONNX_BIT_XOR, IN(0), IN(1)));
}

void choir__onnx_op_bitwise_not(choir__onnx_call_t* c) {
  OUT(0, choir__onnx_integers(c, CHOIR__ONNX_BIT_NOT, IN(0), IN(0)));
}
