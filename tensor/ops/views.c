// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elements.h"

// Ops whose result shows its source's elements in another shape: a view where
// strides can say it. Each has a function
//
//   choir_status_t <op>_view(src, attrs, dst, out_is_view)
//
// that sets *dst to the result's shape and, if *out_is_view, to its elements
// within src; what is no view has src's elements in row-major order.

typedef choir_status_t (*view_fn_t)(const choir_view_t* src, const void* attrs,
                                    choir_view_t* dst, bool* out_is_view);

static choir_status_t infer(const choir_record_t* record, view_fn_t view,
                            choir_view_t* dsts) {
  const choir_view_t* src = choir_record_src(record, 0);
  choir_view_t result;
  bool is_view = false;
  CHOIR_TRY(view(src, record->attrs, &result, &is_view));
  return choir__infer_shape(src->dtype, result.ndim, result.shape, &dsts[0]);
}

static bool alias(view_fn_t view, const choir_view_t* src, const void* attrs,
                  choir_view_t* dst) {
  bool is_view = false;
  choir_status_t status = view(src, attrs, dst, &is_view);
  choir_status_free(status);
  return !status && is_view;
}

static choir_status_t reference(const choir_record_t* record, view_fn_t view) {
  choir_view_t elements;
  const choir_view_t *src = choir_record_src(record, 0),
                     *dst = choir_record_dst(record, 0);
  if (alias(view, src, record->attrs, &elements)) src = &elements;
  choir__walk_t from, to;
  bool more = choir__walk_start(&from, &src, 1);
  for (more = choir__walk_start(&to, &dst, 1) && more; more;
       more = choir__walk_next(&from) && choir__walk_next(&to))
    choir__element_copy(choir__src_data(record, 0), from.offsets[0],
                        choir__dst_data(record, 0), to.offsets[0], dst->dtype,
                        record->accumulate);
  return NULL;
}

#define DEFINE(ENUM, id, attrs_doc, ...)                             \
  static choir_status_t id##_infer(const choir_record_t* record,     \
                                   choir_view_t* dsts) {             \
    return infer(record, id##_view, dsts);                           \
  }                                                                  \
  static bool id##_alias(const choir_view_t* src, const void* attrs, \
                         choir_view_t* dst) {                        \
    return alias(id##_view, src, attrs, dst);                        \
  }                                                                  \
  static choir_status_t id##_reference(const choir_record_t* record, \
                                       choir_stream_t* stream) {     \
    (void)stream;                                                    \
    return reference(record, id##_view);                             \
  }                                                                  \
  CHOIR_OP_DEFINE(ENUM, id, 1, 1, __VA_ARGS__,                       \
                  CHOIR_OP_ATTRS(id, id##_fields, attrs_doc),        \
                  .alias = id##_alias, .dtypes = CHOIR_DTYPES_ALL,   \
                  .tolerance = 2e-7, .cases = id##_cases)

// ---- By sizes ----

static choir_status_t reshaped(const choir_view_t* src, int32_t ndim,
                               const int64_t* shape, choir_view_t* dst,
                               bool* out_is_view) {
  *out_is_view = choir_view_reshape(src, ndim, shape, dst);
  return *out_is_view ? NULL : choir_view_make(src->dtype, ndim, shape, dst);
}

static const choir_field_t reshape_fields[] = {
    CHOIR_FIELD_INT(choir_reshape_attrs_t, ndim, 1, 0, CHOIR_MAX_NDIM,
                    "dimensions of the result"),
    CHOIR_FIELD_INTS(choir_reshape_attrs_t, shape, CHOIR_MAX_NDIM, -1, -1,
                     INT64_MAX, "their sizes; one may be -1, what is left"),
};

// The shape with its -1 filled in; false when the elements do not fit.
static bool resolve(const choir_view_t* src, const choir_reshape_attrs_t* attrs,
                    int64_t* shape) {
  int32_t open = -1;
  int64_t known = 1;
  for (int32_t axis = 0; axis < attrs->ndim; ++axis) {
    shape[axis] = attrs->shape[axis];
    if (shape[axis] >= 0) {
      if (__builtin_mul_overflow(known, shape[axis], &known)) return false;
    } else if (open >= 0) {
      return false;
    } else {
      open = axis;
    }
  }
  int64_t count = choir_view_count(src);
  if (open < 0) return known == count;
  if (known == 0 || count % known != 0) return false;
  shape[open] = count / known;
  return true;
}

static choir_status_t reshape_view(const choir_view_t* src, const void* attrs,
                                   choir_view_t* dst, bool* out_is_view) {
  const choir_reshape_attrs_t* reshape = attrs;
  int64_t shape[CHOIR_MAX_NDIM];
  if (!resolve(src, reshape, shape)) {
    char text[160], attrs_text[160];
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "x is %s, asked for %s; needs as many elements (%lld), at most one "
        "size -1",
        choir_view_print(src, text, sizeof text),
        choir_struct_print(choir_op_attrs_def(CHOIR_OP_RESHAPE), attrs,
                           attrs_text, sizeof attrs_text),
        (long long)choir_view_count(src));
  }
  return reshaped(src, (int32_t)reshape->ndim, shape, dst, out_is_view);
}

static const choir_op_case_t reshape_cases[] = {
    {"12", "ndim=2 shape=3,4,1,1,1,1,1,1"},
    {"3,4", "ndim=1 shape=-1"},
    {"", "ndim=3 shape=1"},
    {"1,1", "ndim=0 shape=-1"},
    {"2,3,4,5", "ndim=2 shape=2,-1,1,1,1,1,1,1"},
    {"2,3,4,5", "ndim=4 shape=5,4,3,2,1,1,1,1"},
    {"2,12,5", "ndim=4 shape=2,3,4,5,1,1,1,1"},
    {"2,0,5", "ndim=2 shape=0,7,1,1,1,1,1,1"},
    {"3,1,7", "ndim=2 shape=7,3,1,1,1,1,1,1"},
    {NULL, NULL}};
DEFINE(RESHAPE, reshape, "a new shape",
       "the elements of x in row-major order, in another shape",
       .has_shape = true);

static const choir_field_t flatten_fields[] = {
    CHOIR_FIELD_INT(choir_flatten_attrs_t, axis, 1, 0, CHOIR_MAX_NDIM,
                    "first dimension of those that become one"),
};

// Sizes before `axis`, then the product of the others (1 when there is none).
static choir_status_t flatten_view(const choir_view_t* src, const void* attrs,
                                   choir_view_t* dst, bool* out_is_view) {
  const int64_t axis = ((const choir_flatten_attrs_t*)attrs)->axis;
  if (axis > src->ndim || axis >= CHOIR_MAX_NDIM) {
    char text[160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "axis is %lld, x is %s; needs an axis up to its "
                       "dimensions",
                       (long long)axis,
                       choir_view_print(src, text, sizeof text));
  }
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < axis; ++i) shape[i] = src->shape[i];
  shape[axis] = 1;
  for (int32_t i = (int32_t)axis; i < src->ndim; ++i)
    shape[axis] *= src->shape[i];
  return reshaped(src, (int32_t)axis + 1, shape, dst, out_is_view);
}

static const choir_op_case_t flatten_cases[] = {
    {"4,3,7,5", NULL}, {"4,3,7,5", "axis=0"}, {"4,3,7,5", "axis=2"},
    {"4,3", "axis=2"}, {"5", NULL},           {"", "axis=0"},
    {"3,0,2", NULL},   {"2,1,1,6", NULL},     {NULL, NULL}};
DEFINE(FLATTEN, flatten, "which dimensions become one",
       "x with the dimensions from axis on made one");

// ---- By strides: always a view ----

static const choir_field_t transpose_fields[] = {
    CHOIR_FIELD_INTS(choir_transpose_attrs_t, axes, CHOIR_MAX_NDIM, -1, -1,
                     CHOIR_MAX_NDIM - 1,
                     "dimension k of the result is dimension axes[k] of x; "
                     "all -1: reversed"),
};

static choir_status_t transpose_view(const choir_view_t* src, const void* attrs,
                                     choir_view_t* dst, bool* out_is_view) {
  const choir_transpose_attrs_t* transpose = attrs;
  int32_t axes[CHOIR_MAX_NDIM];
  bool reversed = true;
  for (int32_t i = 0; i < src->ndim; ++i) {
    axes[i] = (int32_t)transpose->axes[i];
    if (axes[i] != -1) reversed = false;
  }
  for (int32_t i = 0; reversed && i < src->ndim; ++i)
    axes[i] = src->ndim - 1 - i;
  *out_is_view = true;
  return choir_view_transpose(src, axes, dst);
}

static const choir_op_case_t transpose_cases[] = {
    {"3,5", NULL},
    {"3,5", "axes=1,0,-1,-1,-1,-1,-1,-1"},
    {"3,5", "axes=0,1,-1,-1,-1,-1,-1,-1"},
    {"7", NULL},
    {"", NULL},
    {"2,3,4", NULL},
    {"2,3,4,5", "axes=0,2,3,1,-1,-1,-1,-1"},
    {"2,3,4,5", "axes=0,3,1,2,-1,-1,-1,-1"},
    {"33,17", NULL},
    {"3,0,2", NULL},
    {"2,1,3,1,2,1,2,2", NULL},
    {NULL, NULL}};
DEFINE(TRANSPOSE, transpose, "an order of dimensions",
       "x with its dimensions in another order");

static const choir_field_t broadcast_to_fields[] = {
    CHOIR_FIELD_INT(choir_broadcast_to_attrs_t, ndim, 1, 0, CHOIR_MAX_NDIM,
                    "dimensions of the result"),
    CHOIR_FIELD_INTS(choir_broadcast_to_attrs_t, shape, CHOIR_MAX_NDIM, 1, 0,
                     INT64_MAX, "their sizes"),
};

static choir_status_t broadcast_to_view(const choir_view_t* src,
                                        const void* attrs, choir_view_t* dst,
                                        bool* out_is_view) {
  const choir_broadcast_to_attrs_t* larger = attrs;
  *out_is_view = true;
  return choir_view_broadcast(src, (int32_t)larger->ndim, larger->shape, dst);
}

static const choir_op_case_t broadcast_to_cases[] = {
    {"5", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"3,1", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"1,5", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"3,1,1", "ndim=4 shape=2,3,4,5,1,1,1,1"},
    {"2,3,4,5", "ndim=4 shape=2,3,4,5,1,1,1,1"},
    {"1", "ndim=1 shape=0"},
    {"", "ndim=0"},
    {NULL, NULL}};
DEFINE(BROADCAST_TO, broadcast_to, "a larger shape",
       "x repeated to a larger shape, as NumPy does", .has_shape = true);

// Exact as a double.
#define TO_THE_END (INT64_C(1) << 62)

static const choir_field_t slice_fields[] = {
    CHOIR_FIELD_INT(choir_slice_attrs_t, axis, 0, 0, CHOIR_MAX_NDIM - 1,
                    "dimension that is cut"),
    CHOIR_FIELD_INT(choir_slice_attrs_t, start, 0, 0, TO_THE_END,
                    "first element"),
    CHOIR_FIELD_INT(choir_slice_attrs_t, stop, TO_THE_END, 0, TO_THE_END,
                    "where to stop, this one excluded; the end if larger"),
    CHOIR_FIELD_INT(choir_slice_attrs_t, step, 1, 1, TO_THE_END,
                    "from one element to the next"),
};

static choir_status_t slice_view(const choir_view_t* src, const void* attrs,
                                 choir_view_t* dst, bool* out_is_view) {
  const choir_slice_attrs_t* slice = attrs;
  int64_t stop = slice->stop;
  if (slice->axis < src->ndim && stop > src->shape[slice->axis])
    stop = src->shape[slice->axis];
  *out_is_view = true;
  return choir_view_slice(src, (int32_t)slice->axis, slice->start, stop,
                          slice->step, dst);
}

static const choir_op_case_t slice_cases[] = {
    {"7", "start=2 stop=5"},
    {"7", "step=3"},
    {"5,9", "axis=1 start=1 stop=8 step=2"},
    {"5,9", "start=4"},
    {"4,3,7,5", "axis=1 start=1 stop=2"},
    {"4,3,7,5", "axis=0 start=1 stop=3"},
    {"4,3,7,5", "axis=3 start=0 stop=5 step=4"},
    {"5,9", "axis=1 start=3 stop=3"},
    {"3", NULL},
    {NULL, NULL}};
static bool slice_mixes(const choir_record_t* record, const int64_t* rows) {
  (void)rows;
  return ((const choir_slice_attrs_t*)record->attrs)->axis == 0;
}
DEFINE(SLICE, slice, "a range along one dimension",
       "elements start, start + step, ... below stop along an axis",
       .mixes_samples = slice_mixes);
