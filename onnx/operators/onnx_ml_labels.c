// SPDX-License-Identifier: Apache-2.0
// LabelEncoder and OneHotEncoder of ai.onnx.ml, of numbers: lists that are
// searched on the host.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operators/onnx_ml_internal.h"

// ---- LabelEncoder ----

// A key of either kind, and where its value is.
typedef struct map_key_s {
  int64_t whole;
  double real;
  int64_t place;
} map_key_t;

// A NaN is equal to any NaN and lies behind all numbers.
static int compare_reals(double a, double b) {
  if (isnan(a) || isnan(b)) return (isnan(a) != 0) - (isnan(b) != 0);
  return (a > b) - (a < b);
}

static int compare_keys(const void* left, const void* right) {
  const map_key_t *a = left, *b = right;
  const int order = a->whole != b->whole ? (a->whole > b->whole ? 1 : -1)
                                         : compare_reals(a->real, b->real);
  return order ? order : (a->place > b->place) - (a->place < b->place);
}

// Sources: x, sorted keys (F64 or I64, as x), their values, the value of what
// is no key. Of equal keys the last one counts.
static choir_status_t encode_loop(const choir__onnx_array_t* srcs,
                                  const choir__onnx_array_t* dsts,
                                  const void* attrs) {
  (void)attrs;
  const choir__onnx_array_t *x = &srcs[0], *keys = &srcs[1];
  const bool is_real = keys->view.dtype == CHOIR_DTYPE_F64;
  const size_t width = choir_dtype_bytes(dsts[0].view.dtype);
  for (int64_t k = 0; k < x->count; ++k) {
    const double real = is_real ? ((const double*)x->data)[k] : 0;
    const int64_t whole = is_real ? 0 : ((const int64_t*)x->data)[k];
    int64_t low = 0, high = keys->count;  // keys before low are not above x
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const bool is_above =
          is_real ? compare_reals(((const double*)keys->data)[middle], real) > 0
                  : ((const int64_t*)keys->data)[middle] > whole;
      if (is_above)
        high = middle;
      else
        low = middle + 1;
    }
    const bool is_key =
        low > 0 &&
        (is_real
             ? compare_reals(((const double*)keys->data)[low - 1], real) == 0
             : ((const int64_t*)keys->data)[low - 1] == whole);
    const char* value =
        is_key ? (const char*)srcs[2].data + (size_t)(low - 1) * width
               : srcs[3].data;
    memcpy((char*)dsts[0].data + (size_t)k * width, value, width);
  }
  return NULL;
}

// The list `stem`_int64s, _floats or _tensor; false: it failed.
static bool read_list(choir__onnx_call_t* c, const char* const names[3],
                      choir__onnx_array_t* out, int32_t* out_type) {
  int32_t count;
  *out = (choir__onnx_array_t){0};
  if (choir__onnx_has_attr(c, names[0])) {
    out->data = (void*)(uintptr_t)choir__onnx_ints(c, names[0], &count);
    out->view.dtype = CHOIR_DTYPE_I64;
    *out_type = CHOIR_ONNX_INT64;
  } else if (choir__onnx_has_attr(c, names[1])) {
    out->data = (void*)(uintptr_t)choir__onnx_floats(c, names[1], &count);
    out->view.dtype = CHOIR_DTYPE_F32;
    *out_type = CHOIR_ONNX_FLOAT;
  } else if (choir__onnx_has_attr(c, names[2])) {
    return choir__onnx_ml_read_tensor(c, names[2], out, out_type);
  } else {
    FAIL(UNIMPLEMENTED,
         "neither %s, %s nor %s is given; Choir has no tensors of strings",
         names[0], names[1], names[2]);
    return false;
  }
  out->count = count;
  return true;
}

static choir_var_t* default_value(choir__onnx_call_t* c, choir_dtype_t dtype) {
  choir__onnx_array_t array;
  int32_t type;
  if (choir__onnx_ml_read_tensor(c, "default_tensor", &array, &type)) {
    if (array.count == 1 && array.view.dtype == dtype)
      return choir__onnx_constant(c, dtype, 0, NULL, array.data);
    return FAIL(INVALID_ARGUMENT,
                "default_tensor has %lld elements of type %s; needs one, of "
                "the values' type",
                (long long)array.count, choir_onnx_type_name(type));
  }
  const int64_t whole = choir__onnx_int(c, "default_int64", -1);
  if (dtype == CHOIR_DTYPE_I64)
    return choir__onnx_constant(c, dtype, 0, NULL, &whole);
  return choir__onnx_scalar(c, dtype,
                            choir_dtype_is_float(dtype)
                                ? choir__onnx_float(c, "default_float", -0.0)
                                : (double)whole);
}

// Sorts keys, and values with them, into constants.
static void sort_list(choir__onnx_call_t* c, const choir__onnx_array_t* keys,
                      const choir__onnx_array_t* values, bool is_real,
                      choir_var_t** out_keys, choir_var_t** out_values) {
  const int64_t count = keys->count;
  const size_t width = choir_dtype_bytes(values->view.dtype);
  map_key_t* order =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *order);
  int64_t* sorted =
      choir_scope_alloc(c->scope, (size_t)(count + 1) * sizeof *sorted);
  char* moved = choir_scope_alloc(c->scope, (size_t)(count + 1) * width);
  *out_keys = *out_values = NULL;
  if (!order || !sorted || !moved) return;
  for (int64_t k = 0; k < count; ++k)
    order[k] = (map_key_t){.whole = is_real ? 0 : choir__onnx_int_at(keys, k),
                           .real = is_real ? choir__onnx_number_at(keys, k) : 0,
                           .place = k};
  qsort(order, (size_t)count, sizeof *order, compare_keys);
  for (int64_t k = 0; k < count; ++k) {
    memcpy(&sorted[k], is_real ? (const void*)&order[k].real : &order[k].whole,
           sizeof *sorted);
    memcpy(moved + (size_t)k * width,
           (const char*)values->data + (size_t)order[k].place * width, width);
  }
  *out_keys = choir__onnx_constant(
      c, is_real ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_I64, 1, &count, sorted);
  *out_values = choir__onnx_constant(c, values->view.dtype, 1, &count, moved);
}

void choir__onnx_op_label_encoder(choir__onnx_call_t* c) {
  static const char* const key_names[] = {"keys_int64s", "keys_floats",
                                          "keys_tensor"};
  static const char* const value_names[] = {"values_int64s", "values_floats",
                                            "values_tensor"};
  const choir_view_t* x = VIEW(0);
  choir__onnx_array_t keys, values;
  int32_t key_type, type;
  if (!x || !read_list(c, key_names, &keys, &key_type) ||
      !read_list(c, value_names, &values, &type))
    return;
  const bool is_real = choir_dtype_is_float(x->dtype);
  if (keys.count != values.count ||
      is_real != choir_dtype_is_float(keys.view.dtype)) {
    FAIL(INVALID_ARGUMENT,
         "%lld keys of type %s and %lld values, for an input of type %s",
         (long long)keys.count, choir_onnx_type_name(key_type),
         (long long)values.count, choir_onnx_type_name(TYPE(0)));
    return;
  }
  choir_var_t* srcs[4];
  srcs[0] =
      choir__onnx_cast(c, IN(0), is_real ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_I64);
  sort_list(c, &keys, &values, is_real, &srcs[1], &srcs[2]);
  srcs[3] = default_value(c, values.view.dtype);
  choir_view_t result = *x;
  result.dtype = values.view.dtype;
  choir_var_t* y;
  choir__onnx_host(c, "onnx/label_encoder", encode_loop, NULL, 0, srcs, 4,
                   &result, 1, &y);
  choir__onnx_out_as(c, 0, y, type);
}

// ---- OneHotEncoder ----

static choir_status_t one_hot_loop(const choir__onnx_array_t* srcs,
                                   const choir__onnx_array_t* dsts,
                                   const void* attrs) {
  const bool* gives_zeros = attrs;
  const int64_t *x = srcs[0].data, *classes = srcs[1].data;
  const int64_t count = srcs[1].count;
  for (int64_t k = 0; k < srcs[0].count; ++k) {
    float* row = (float*)dsts[0].data + k * count;
    int64_t found = -1;
    for (int64_t i = 0; i < count; ++i) {
      row[i] = 0;
      if (classes[i] == x[k]) found = i;
    }
    if (found >= 0) row[found] = 1;
    if (found < 0 && !*gives_zeros)
      return CHOIR_ERROR(INVALID_ARGUMENT, "%lld is no category",
                         (long long)x[k]);
  }
  return NULL;
}

void choir__onnx_op_one_hot_encoder(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int32_t count;
  if (!x) return;
  const int64_t* classes =
      choir__onnx_ml_labels(c, "cats_int64s", "cats_strings", &count);
  if (!classes) return;
  if (x->ndim >= CHOIR_MAX_NDIM) {
    FAIL(UNIMPLEMENTED, "%d dimensions; at most %d are possible", x->ndim + 1,
         CHOIR_MAX_NDIM);
    return;
  }
  const bool gives_zeros = choir__onnx_int(c, "zeros", 1) != 0;
  choir_view_t result = *x;
  result.dtype = CHOIR_DTYPE_F32;
  result.shape[result.ndim++] = count;
  choir_var_t* srcs[] = {choir__onnx_cast(c, IN(0), CHOIR_DTYPE_I64),
                         choir__onnx_ml_whole(c, classes, count)};
  choir_var_t* y;
  choir__onnx_host(c, "onnx/one_hot_encoder", one_hot_loop, &gives_zeros,
                   sizeof gives_zeros, srcs, 2, &result, 1, &y);
  OUT_AS(0, y, FLOAT);
}
