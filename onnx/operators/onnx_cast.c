// SPDX-License-Identifier: Apache-2.0
// Casts between all of ONNX's types of numbers. Those that Choir keeps in wider
// dtypes are brought into the range of their type, or rounded to one of its
// numbers.
#include <math.h>
#include <string.h>

#include "onnx/onnx_internal.h"
#include "onnx/operators/onnx_math_internal.h"
#include "onnx/operators/onnx_small_floats_internal.h"

// ---- Integers ----

static const double two_to_64 = 18446744073709551616.0;

// Of the bits of uint64, which are kept as int64.
static choir_var_t* float_of_uint64(choir__onnx_call_t* c, choir_var_t* x,
                                    choir_dtype_t dtype) {
  choir_var_t* is_large =
      DO(less, x, choir__onnx_scalar(c, CHOIR_DTYPE_I64, 0));
  choir_var_t* rest = DO(scale, choir__onnx_cast(c, is_large, CHOIR_DTYPE_F64),
                         &(choir_scale_attrs_t){.factor = two_to_64});
  choir_var_t* y = DO(add, choir__onnx_cast(c, x, CHOIR_DTYPE_F64), rest);
  return choir__onnx_cast(c, y, dtype);
}

static choir_var_t* uint64_of_float(choir__onnx_call_t* c, choir_var_t* x) {
  x = choir__onnx_cast(c, x, CHOIR_DTYPE_F64);
  choir_var_t* is_large = DO(
      greater_equal, x, choir__onnx_scalar(c, CHOIR_DTYPE_F64, two_to_64 / 2));
  choir_var_t* rest =
      DO(scale, is_large, &(choir_scale_attrs_t){.factor = two_to_64});
  return choir__onnx_cast(c, DO(sub, x, rest), CHOIR_DTYPE_I64);
}

// Whether each number of `from` is one of `to`.
static bool holds_all(int32_t to, int32_t from) {
  const int32_t bits = choir__onnx_integer_bits(to);
  const int32_t from_bits =
      from == CHOIR_ONNX_BOOL ? 1 : choir__onnx_integer_bits(from);
  if (choir__onnx_is_signed(from))
    return choir__onnx_is_signed(to) && from_bits <= bits;
  return choir__onnx_is_signed(to) ? from_bits < bits : from_bits <= bits;
}

// Bits that do not fit are cut off. dtype: how the type is kept.
static choir_var_t* to_integer(choir__onnx_call_t* c, choir_var_t* x,
                               int32_t from, int32_t to, choir_dtype_t dtype) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const bool is_float = choir_dtype_is_float(view->dtype);
  if (is_float && to == CHOIR_ONNX_UINT64) return uint64_of_float(c, x);
  if (is_float && to == CHOIR_ONNX_UINT8) return choir__onnx_cast(c, x, dtype);
  if (!is_float && holds_all(to, from)) return choir__onnx_cast(c, x, dtype);
  if (is_float || dtype == CHOIR_DTYPE_I64)
    x = choir__onnx_cast(c, x, dtype);
  else if (view->dtype == CHOIR_DTYPE_U8)
    x = choir__onnx_cast(c, x, CHOIR_DTYPE_I32);
  x = choir__onnx_wrap_bits(c, x, choir__onnx_integer_bits(to),
                            choir__onnx_is_signed(to));
  return choir__onnx_cast(c, x, dtype);
}

// ---- Any type ----

choir_var_t* choir__onnx_convert(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t from,
                                 const choir__onnx_cast_rule_t* rule) {
  choir_dtype_t dtype;
  choir_status_t status = choir_onnx_type_dtype(rule->type, &dtype);
  if (status) return choir__onnx_fail(c, status);
  if (from == rule->type || !choir_var_view(x)) return x;
  if (choir__onnx_integer_bits(rule->type) > 0)
    return to_integer(c, x, from, rule->type, dtype);
  if (from == CHOIR_ONNX_UINT64 && rule->type != CHOIR_ONNX_BOOL)
    x = float_of_uint64(c, x, CHOIR_DTYPE_F64);
  return choir__onnx_is_small_float(rule->type)
             ? choir__onnx_round_small(c, x, rule)
             : choir__onnx_cast(c, x, dtype);
}

choir_var_t* choir__onnx_convert_plainly(choir__onnx_call_t* c, choir_var_t* x,
                                         int32_t from, int32_t to) {
  return choir__onnx_convert(c, x, from,
                             &(choir__onnx_cast_rule_t){to, true, 1});
}

bool choir__onnx_precision(choir__onnx_call_t* c, const char* name,
                           choir_dtype_t* dtype) {
  const int64_t given = choir__onnx_int(c, name, 0);
  if (given == 0) return true;
  const int32_t type = given < 0 || given > INT32_MAX ? -1 : (int32_t)given;
  choir_status_t status = choir_onnx_type_dtype(type, dtype);
  if (status) {
    choir__onnx_fail(c, status);
    return false;
  }
  if (choir_dtype_is_float(*dtype)) return true;
  FAIL(INVALID_ARGUMENT, "%s is %s; needs a float", name,
       choir_onnx_type_name(type));
  return false;
}

static void cast_to(choir__onnx_call_t* c, int64_t type) {
  choir__onnx_cast_rule_t rule;
  memset(&rule, 0, sizeof rule);
  rule.type = type < 0 || type > 1000 ? CHOIR_ONNX_UNDEFINED : (int32_t)type;
  rule.does_saturate = choir__onnx_int(c, "saturate", 1) != 0;
  const char* round = choir__onnx_string(c, "round_mode", "up");
  if (strcmp(round, "up") == 0) {
    rule.round = 1;
  } else if (strcmp(round, "down") == 0) {
    rule.round = -1;
  } else if (strcmp(round, "nearest") != 0) {
    FAIL(INVALID_ARGUMENT, "round_mode '%s'; needs up, down or nearest", round);
    return;
  }
  if (!VIEW(0)) return;
  choir__onnx_out_as(c, 0, choir__onnx_convert(c, IN(0), TYPE(0), &rule),
                     rule.type);
}

void choir__onnx_op_cast(choir__onnx_call_t* c) {
  cast_to(c, choir__onnx_int(c, "to", CHOIR_ONNX_UNDEFINED));
}

void choir__onnx_op_cast_like(choir__onnx_call_t* c) { cast_to(c, TYPE(1)); }

// ---- The same bits as another type ----

typedef struct bits_attrs_s {
  int32_t from, to;
} bits_attrs_t;

// The width of a type; 0: it is none that Choir keeps.
static int32_t width_of(int32_t type) {
  choir_dtype_t dtype;
  choir_status_t status = choir_onnx_type_dtype(type, &dtype);
  if (status) {
    choir_status_free(status);
    return 0;
  }
  const int32_t bits = choir__onnx_integer_bits(type);
  if (bits > 0) return bits;
  if (type == CHOIR_ONNX_FLOAT4E2M1) return 4;
  return choir__onnx_is_small_float(type)
             ? 8
             : 8 * (int32_t)choir_dtype_bytes(dtype);
}

// What the bits of a small float stand for.
typedef struct small_table_s {
  int32_t count;
  float numbers[256];
} small_table_t;

static void fill_table(small_table_t* table, int32_t type) {
  table->count = choir__onnx_is_small_float(type) ? 1 << width_of(type) : 0;
  for (int32_t bits = 0; bits < table->count; ++bits)
    table->numbers[bits] = choir__onnx_small_float(type, (uint8_t)bits);
}

// The first of those that stand for x.
static uint64_t small_bits(const small_table_t* table, float x) {
  for (int32_t bits = 0; bits < table->count; ++bits) {
    const float y = table->numbers[bits];
    const bool is_same = x == y && !signbit(x) == !signbit(y);
    if (is_same || (isnan(x) && isnan(y))) return (uint64_t)bits;
  }
  return 0;
}

static uint64_t load_bits(const choir__onnx_array_t* array, int64_t k,
                          const small_table_t* table) {
  if (table->count > 0)
    return small_bits(table, ((const float*)array->data)[k]);
  if (!choir_dtype_is_float(array->view.dtype))
    return (uint64_t)choir__onnx_int_at(array, k);
  uint64_t bits = 0;
  const size_t width = choir_dtype_bytes(array->view.dtype);
  memcpy(&bits, (const char*)array->data + (size_t)k * width, width);
  return bits;
}

// The lower bits are the number's: ONNX's tensors are little-endian, and so are
// the hosts that Choir knows.
static void store_bits(const choir__onnx_array_t* array, int64_t k,
                       int32_t type, uint64_t bits) {
  const size_t width = choir_dtype_bytes(array->view.dtype);
  char* to = (char*)array->data + (size_t)k * width;
  const int32_t bits_of = choir__onnx_integer_bits(type);
  if (choir__onnx_is_small_float(type)) {
    const float number = choir__onnx_small_float(type, (uint8_t)bits);
    memcpy(to, &number, sizeof number);
    return;
  }
  if (type == CHOIR_ONNX_BOOL) bits = (bits & 255) != 0;
  if (bits_of > 0 && bits_of < 64) {
    const uint64_t mask = (UINT64_C(1) << bits_of) - 1;
    bits &= mask;
    if (choir__onnx_is_signed(type) && bits >> (bits_of - 1)) bits |= ~mask;
  }
  memcpy(to, &bits, width);
}

static choir_status_t bits_loop(const choir__onnx_array_t* srcs,
                                const choir__onnx_array_t* dsts,
                                const void* attrs) {
  const bits_attrs_t* types = attrs;
  small_table_t table;
  fill_table(&table, types->from);
  for (int64_t k = 0; k < dsts->count; ++k)
    store_bits(dsts, k, types->to, load_bits(srcs, k, &table));
  return NULL;
}

void choir__onnx_op_bitcast(choir__onnx_call_t* c) {
  if (!VIEW(0)) return;
  const int64_t to = choir__onnx_int(c, "to", CHOIR_ONNX_UNDEFINED);
  const bits_attrs_t types = {.from = TYPE(0),
                              .to = to < 0 || to > 1000 ? 0 : (int32_t)to};
  const int32_t width = width_of(types.from);
  if (width == 0 || width != width_of(types.to)) {
    FAIL(INVALID_ARGUMENT, "from %s to %s; needs types of as many bits",
         choir_onnx_type_name(types.from), choir_onnx_type_name(types.to));
    return;
  }
  choir_var_t* x = IN(0);
  if (types.from == types.to) {
    OUT(0, x);
    return;
  }
  choir_view_t view = *VIEW(0);
  choir_status_free(choir_onnx_type_dtype(types.to, &view.dtype));
  choir_var_t* y = NULL;
  choir__onnx_host(c, "onnx/bitcast", bits_loop, &types, sizeof types, &x, 1,
                   &view, 1, &y);
  choir__onnx_out_as(c, 0, y, types.to);
}
