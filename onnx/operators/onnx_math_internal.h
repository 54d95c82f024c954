// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_MATH_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_MATH_INTERNAL_H_

#include "onnx/onnx_call_def.h"

// What the files of elementwise operators share.

// Bits of an integer type of ONNX's list; 0: it is none (bool, floats).
int32_t choir__onnx_integer_bits(int32_t type);
bool choir__onnx_is_signed(int32_t type);

// Sets element k of an array of integers, or of bool, that are of that type:
// bits that it has not are cut off.
void choir__onnx_set_integer(const choir__onnx_array_t* array, int64_t k,
                             int64_t value, int32_t type);
// x, of I32 or I64, as numbers of so many bits: higher bits are cut off.
choir_var_t* choir__onnx_wrap_bits(choir__onnx_call_t* c, choir_var_t* x,
                                   int32_t bits, bool is_signed);
// x, which is kept as `type` is, within the range of that type.
choir_var_t* choir__onnx_wrap(choir__onnx_call_t* c, choir_var_t* x,
                              int32_t type);
// x as numbers that signed comparisons put in order: those of uint64 are moved
// by half the range. The same once more gives x back.
choir_var_t* choir__onnx_ordered(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t type);

// What onnx_integers.c computes in a loop of the host's.
typedef enum choir__onnx_integer_op_e {
  CHOIR__ONNX_DIVIDE,     // towards zero; by 0: 0
  CHOIR__ONNX_MODULO,     // with the divisor's sign; by 0: 0
  CHOIR__ONNX_REMAINDER,  // with the dividend's sign; by 0: 0
  CHOIR__ONNX_POWER,
  CHOIR__ONNX_SHIFT_LEFT,
  CHOIR__ONNX_SHIFT_RIGHT,
  CHOIR__ONNX_BIT_AND,
  CHOIR__ONNX_BIT_OR,
  CHOIR__ONNX_BIT_XOR,
  CHOIR__ONNX_BIT_NOT,  // of a
} choir__onnx_integer_op_t;
// Of inputs 0 and 1, whose types are looked at; b is input 1, aligned.
choir_var_t* choir__onnx_integers(choir__onnx_call_t* c,
                                  choir__onnx_integer_op_t op, choir_var_t* a,
                                  choir_var_t* b);
// Both in the shape that they broadcast to, for loops; false: it failed.
bool choir__onnx_broadcast_both(choir__onnx_call_t* c, choir_var_t** a,
                                choir_var_t** b);

// Input 1 of a binary operator. Before version 7 attribute `axis` says where in
// the dimensions of input 0 its first one is.
choir_var_t* choir__onnx_second(choir__onnx_call_t* c);

// onnx_cast.c: how numbers go to types that are narrower.
typedef struct choir__onnx_cast_rule_s {
  int32_t type;        // the result's
  bool does_saturate;  // floats of 8 bits: too large ones become the largest
  int32_t round;       // float8e8m0: 1: up, 0: to the nearest, -1: down
} choir__onnx_cast_rule_t;
// x, of type `from`, as elements of another type.
choir_var_t* choir__onnx_convert(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t from,
                                 const choir__onnx_cast_rule_t* rule);
// The same with the rules that Cast has by default.
choir_var_t* choir__onnx_convert_plainly(choir__onnx_call_t* c, choir_var_t* x,
                                         int32_t from, int32_t to);
// The dtype of attribute `name`, a type of floats; without it *dtype stays.
// False: it failed.
bool choir__onnx_precision(choir__onnx_call_t* c, const char* name,
                           choir_dtype_t* dtype);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_MATH_INTERNAL_H_
