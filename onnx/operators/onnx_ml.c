// SPDX-License-Identifier: Apache-2.0
// Features of ai.onnx.ml, by ops: ArrayFeatureExtractor, Binarizer, Normalizer,
// Scaler, Imputer, FeatureVectorizer.
#include <math.h>
#include <string.h>

#include "onnx/operators/onnx_ml_internal.h"

// The dtype in which numbers become features of F32.
static choir_dtype_t feature_dtype(const choir_view_t* x) {
  return x->dtype == CHOIR_DTYPE_F32 ? CHOIR_DTYPE_F32 : CHOIR_DTYPE_F64;
}

static void out_features(choir__onnx_call_t* c, choir_var_t* y) {
  OUT_AS(0, choir__onnx_cast(c, y, CHOIR_DTYPE_F32), FLOAT);
}

// `count` numbers for x: one, or one for each place of the last axis.
static bool fits_features(choir__onnx_call_t* c, const char* name,
                          const choir_view_t* x, int64_t count) {
  if (count == 1 || (x->ndim > 0 && count == x->shape[x->ndim - 1]))
    return true;
  FAIL(INVALID_ARGUMENT,
       "attribute %s has %lld numbers; needs one, or one for each feature",
       name, (long long)count);
  return false;
}

void choir__onnx_op_array_feature_extractor(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *indices = VIEW(1);
  if (!x || !indices) return;
  if (x->ndim < 1) {
    FAIL(INVALID_ARGUMENT, "the input has no dimensions");
    return;
  }
  const int64_t count = choir_view_count(indices);
  const choir_gather_attrs_t attrs = {.axis = x->ndim - 1};
  choir_var_t* flat = choir__onnx_reshape(c, IN(1), 1, &count);
  choir_var_t* y = DO(gather, IN(0), flat, &attrs);
  const int64_t shape[] = {1, count};
  OUT(0, x->ndim == 1 ? choir__onnx_reshape(c, y, 2, shape) : y);
}

// Whole numbers above t are those above the whole number below t.
void choir__onnx_op_binarizer(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  double threshold = choir__onnx_float(c, "threshold", 0);
  if (!choir_dtype_is_float(x->dtype)) threshold = floor(threshold);
  OUT(0, DO(greater, IN(0), choir__onnx_scalar(c, x->dtype, threshold)));
}

// Where a row's norm is 0 the row stays.
void choir__onnx_op_normalizer(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  const choir_dtype_t dtype = feature_dtype(view);
  const char* norm = choir__onnx_string(c, "norm", "MAX");
  if (view->ndim < 1) {
    FAIL(INVALID_ARGUMENT, "the input has no dimensions");
    return;
  }
  const choir_reduce_attrs_t attrs = {.axis = view->ndim - 1,
                                      .keep_dims = true};
  choir_var_t* x = choir__onnx_cast(c, IN(0), dtype);
  choir_var_t* size = NULL;
  if (strcmp(norm, "MAX") == 0)
    size = DO(max, x, &attrs);
  else if (strcmp(norm, "L1") == 0)
    size = DO(sum, DO(abs, x), &attrs);
  else if (strcmp(norm, "L2") == 0)
    size = DO(sqrt, DO(sum, DO(square, x), &attrs));
  else
    FAIL(INVALID_ARGUMENT, "norm is '%s'; needs MAX, L1 or L2", norm);
  if (!size) return;
  size = DO(where, size, size, choir__onnx_scalar(c, dtype, 1));
  out_features(c, DO(div, x, size));
}

// Numbers of floats attribute `name` as a constant of `dtype`.
static choir_var_t* feature_constant(choir__onnx_call_t* c, const char* name,
                                     const choir_view_t* x, double value,
                                     choir_dtype_t dtype) {
  choir__onnx_numbers_t numbers;
  if (!choir__onnx_ml_numbers(c, name, NULL, &numbers))
    return choir_scope_fail(c->scope, NULL);
  if (numbers.count == 0) return choir__onnx_scalar(c, dtype, value);
  if (!fits_features(c, name, x, numbers.count))
    return choir_scope_fail(c->scope, NULL);
  choir_var_t* y = choir__onnx_ml_reals(c, numbers.at, numbers.count);
  if (numbers.count == 1) y = choir__onnx_reshape(c, y, 0, NULL);
  return choir__onnx_cast(c, y, dtype);
}

void choir__onnx_op_scaler(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  const choir_dtype_t dtype = feature_dtype(x);
  choir_var_t* offset = feature_constant(c, "offset", x, 0, dtype);
  choir_var_t* scale = feature_constant(c, "scale", x, 1, dtype);
  choir_var_t* y = DO(sub, choir__onnx_cast(c, IN(0), dtype), offset);
  out_features(c, DO(mul, y, scale));
}

static void impute_whole(choir__onnx_call_t* c, const choir_view_t* x) {
  int32_t count;
  const int64_t* values = choir__onnx_ints(c, "imputed_value_int64s", &count);
  const int64_t replaced = choir__onnx_int(c, "replaced_value_int64", 0);
  if (!fits_features(c, "imputed_value_int64s", x, count)) return;
  choir_var_t* value = choir__onnx_ml_whole(c, values, count);
  if (count == 1) value = choir__onnx_reshape(c, value, 0, NULL);
  choir_var_t* old =
      choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &replaced);
  choir_var_t* wide = choir__onnx_cast(c, IN(0), CHOIR_DTYPE_I64);
  choir_var_t* y = DO(where, DO(equal, wide, old), value, wide);
  OUT(0, choir__onnx_cast(c, y, x->dtype));
}

void choir__onnx_op_imputer(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  if (!choir_dtype_is_float(x->dtype)) {
    impute_whole(c, x);
    return;
  }
  if (!choir__onnx_has_attr(c, "imputed_value_floats")) {
    FAIL(INVALID_ARGUMENT, "attribute imputed_value_floats is missing");
    return;
  }
  const double replaced = choir__onnx_float(c, "replaced_value_float", 0);
  choir_var_t* value =
      feature_constant(c, "imputed_value_floats", x, 0, x->dtype);
  choir_var_t* is_old =
      isnan(replaced)
          ? DO(not_equal, IN(0), IN(0))
          : DO(equal, IN(0), choir__onnx_scalar(c, x->dtype, replaced));
  OUT(0, DO(where, is_old, value, IN(0)));
}

// ---- FeatureVectorizer ----

// Input i as `count` columns (-1: as many as it has) of F32, cut or filled with
// zeros.
static choir_var_t* columns(choir__onnx_call_t* c, int32_t i, int64_t count) {
  const choir_view_t* x = VIEW(i);
  if (!x) return choir_scope_fail(c->scope, NULL);
  if (x->ndim != 1 && x->ndim != 2)
    return FAIL(INVALID_ARGUMENT, "input %d has %d dimensions; needs 1 or 2", i,
                x->ndim);
  choir_var_t* y = choir__onnx_cast(c, IN(i), CHOIR_DTYPE_F32);
  const int64_t given = x->shape[x->ndim - 1], row[] = {1, given};
  if (x->ndim == 1) y = choir__onnx_reshape(c, y, 2, row);
  if (count < given)
    return count < 0 ? y : choir__onnx_slice(c, y, 1, 0, count);
  choir_pad_attrs_t pad = {.mode = CHOIR_PAD_CONSTANT};
  pad.after[1] = count - given;
  return count == given ? y : DO(pad, y, &pad);
}

void choir__onnx_op_feature_vectorizer(choir__onnx_call_t* c) {
  int32_t count;
  const int64_t* sizes = choir__onnx_ints(c, "inputdimensions", &count);
  if (count > 0 && count != c->in_count) {
    FAIL(INVALID_ARGUMENT, "inputdimensions has %d numbers for %d inputs",
         count, c->in_count);
    return;
  }
  choir_var_t* y = NULL;
  const choir_concat_attrs_t attrs = {.axis = 1};
  for (int32_t i = 0; i < c->in_count && CALL_IS_OK; ++i) {
    if (count > 0 && (sizes[i] < 0 || sizes[i] > INT32_MAX)) {
      FAIL(INVALID_ARGUMENT, "inputdimensions has %lld", (long long)sizes[i]);
      return;
    }
    choir_var_t* pair[] = {y, columns(c, i, count > 0 ? sizes[i] : -1)};
    y = y ? DO(concat, pair, 2, &attrs) : pair[1];
  }
  if (y) OUT_AS(0, y, FLOAT);
}
