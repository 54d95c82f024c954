// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_ML_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_ML_INTERNAL_H_

#include "onnx/onnx_call_def.h"

// What operators of the domain ai.onnx.ml share (onnx_ml_common.c).

// How scores become results; the numbers are TreeEnsemble's.
typedef enum choir__onnx_post_e {
  CHOIR__ONNX_POST_NONE,
  CHOIR__ONNX_POST_SOFTMAX,
  CHOIR__ONNX_POST_LOGISTIC,
  CHOIR__ONNX_POST_SOFTMAX_ZERO,  // scores of 0 stay 0
  CHOIR__ONNX_POST_PROBIT,
} choir__onnx_post_t;
// By attribute post_transform, a string; false: it failed.
bool choir__onnx_ml_post(choir__onnx_call_t* c, int32_t* out_post);
// A row of scores in place.
void choir__onnx_ml_transform(int32_t post, double* scores, int64_t count);

// Input 0 as rows (n, features) of `dtype`; one dimension is one row.
choir_var_t* choir__onnx_ml_rows(choir__onnx_call_t* c, choir_dtype_t dtype);

// Numbers of a node's attribute.
typedef struct choir__onnx_numbers_s {
  double* at;
  int64_t count;
} choir__onnx_numbers_t;
// Of floats `name` or tensor `tensor` (either may be NULL); none: count 0.
// False: it failed.
bool choir__onnx_ml_numbers(choir__onnx_call_t* c, const char* name,
                            const char* tensor, choir__onnx_numbers_t* out);
// A tensor attribute's elements; false: there is none, or it failed.
bool choir__onnx_ml_read_tensor(choir__onnx_call_t* c, const char* name,
                                choir__onnx_array_t* out_array,
                                int32_t* out_type);
// Constants of one dimension, also of no elements.
choir_var_t* choir__onnx_ml_reals(choir__onnx_call_t* c, const double* at,
                                  int64_t count);
choir_var_t* choir__onnx_ml_whole(choir__onnx_call_t* c, const int64_t* at,
                                  int64_t count);
// Class labels of ints attribute `name`; at least one. `strings`: the attribute
// that has others, which fail. NULL: it failed.
const int64_t* choir__onnx_ml_labels(choir__onnx_call_t* c, const char* name,
                                     const char* strings, int32_t* out_count);
// Fails for an attribute of strings that the node has. True: it has not.
bool choir__onnx_ml_no_strings(choir__onnx_call_t* c, const char* name);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_ML_INTERNAL_H_
