// SPDX-License-Identifier: Apache-2.0
// What operators are written with.
#include <string.h>

#include "onnx/onnx_internal.h"

choir_var_t* choir__onnx_fail(choir__onnx_call_t* c, choir_status_t status) {
  return choir_scope_fail(c->scope, status);
}

// ---- Inputs and results ----

bool choir__onnx_has(const choir__onnx_call_t* c, int32_t i) {
  return i < c->in_count && (c->inputs[i]->var || c->inputs[i]->is_sequence);
}

choir_var_t* choir__onnx_in(choir__onnx_call_t* c, int32_t i) {
  if (i >= c->in_count || !c->inputs[i]->var) return NULL;
  choir__onnx_value_t* value = c->inputs[i];
  if (c->is_known == value->is_known) return value->var;
  if (c->is_known)
    return FAIL(INTERNAL, "input %d is not known before the step runs", i);
  if (!value->moved)
    value->moved =
        choir__onnx_move(c->run, choir_var_tensor(value->var), value->kept);
  return value->moved;
}

const choir_view_t* choir__onnx_view(const choir__onnx_call_t* c, int32_t i) {
  return choir__onnx_has(c, i) && c->inputs[i]->var
             ? choir_var_view(c->inputs[i]->var)
             : NULL;
}

int32_t choir__onnx_type(const choir__onnx_call_t* c, int32_t i) {
  return choir__onnx_has(c, i) ? c->inputs[i]->type : CHOIR_ONNX_UNDEFINED;
}

bool choir__onnx_wants(const choir__onnx_call_t* c, int32_t i) {
  return i < c->out_count && c->node->outputs[i] >= 0;
}

bool choir__onnx_is_training(const choir__onnx_call_t* c) {
  return c->scope == c->run->scope && c->run->is_training;
}

void choir__onnx_out_as(choir__onnx_call_t* c, int32_t i, choir_var_t* var,
                        int32_t type) {
  if (!choir__onnx_wants(c, i)) return;
  if (!choir_var_view(var)) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "an input is missing");
    return;
  }
  c->outputs[i] =
      (choir__onnx_value_t){.var = var, .type = type, .is_known = c->is_known};
}

void choir__onnx_out(choir__onnx_call_t* c, int32_t i, choir_var_t* var) {
  const choir_view_t* view = choir_var_view(var);
  if (!view) {
    choir__onnx_out_as(c, i, var, CHOIR_ONNX_UNDEFINED);
    return;
  }
  int32_t type = choir__onnx_type(c, 0);
  choir_dtype_t dtype = CHOIR_DTYPE_COUNT;
  choir_status_free(choir_onnx_type_dtype(type, &dtype));
  if (type == CHOIR_ONNX_UNDEFINED || dtype != view->dtype)
    type = choir__onnx_dtype_type(view->dtype);
  choir__onnx_out_as(c, i, var, type);
}

// ---- Attributes ----

// Of AttributeProto.type. A writer may leave a value of 0 out.
enum { TYPE_FLOAT = 1, TYPE_INT = 2, TYPE_STRING = 3 };

static const Onnx__AttributeProto* attr_of(const choir__onnx_call_t* c,
                                           const char* name) {
  return choir__onnx_find_attr(c->node, name, NULL);
}

bool choir__onnx_has_attr(const choir__onnx_call_t* c, const char* name) {
  return attr_of(c, name) != NULL;
}

int64_t choir__onnx_int(const choir__onnx_call_t* c, const char* name,
                        int64_t value) {
  const Onnx__AttributeProto* attr = attr_of(c, name);
  return attr && (attr->has_i || attr->type == TYPE_INT) ? attr->i : value;
}

double choir__onnx_float(const choir__onnx_call_t* c, const char* name,
                         double value) {
  const Onnx__AttributeProto* attr = attr_of(c, name);
  return attr && (attr->has_f || attr->type == TYPE_FLOAT) ? (double)attr->f
                                                           : value;
}

// A copy that ends with 0: bytes of the file need not. What is longer than any
// text that an operator knows is cut off: a loop asks for it again and again.
static const char* text_of(const choir__onnx_call_t* c,
                           ProtobufCBinaryData bytes) {
  const size_t length = bytes.len < 1024 ? bytes.len : 1024;
  char* text = choir_scope_alloc(c->run->known, length + 1);
  if (!text) return "";
  if (length > 0) memcpy(text, bytes.data, length);
  return text;
}

static int32_t count_of(size_t count) {
  return count < INT32_MAX ? (int32_t)count : INT32_MAX;
}

const char* choir__onnx_string(const choir__onnx_call_t* c, const char* name,
                               const char* value) {
  const Onnx__AttributeProto* attr = attr_of(c, name);
  return attr && (attr->has_s || attr->type == TYPE_STRING)
             ? text_of(c, attr->s)
             : value;
}

const char* choir__onnx_string_at(const choir__onnx_call_t* c, const char* name,
                                  int32_t i) {
  const Onnx__AttributeProto* attr = attr_of(c, name);
  return attr && i >= 0 && (size_t)i < attr->n_strings
             ? text_of(c, attr->strings[i])
             : NULL;
}

const int64_t* choir__onnx_ints(const choir__onnx_call_t* c, const char* name,
                                int32_t* out_count) {
  const Onnx__AttributeProto* attr = attr_of(c, name);
  *out_count = attr ? count_of(attr->n_ints) : 0;
  return attr ? attr->ints : NULL;
}

const float* choir__onnx_floats(const choir__onnx_call_t* c, const char* name,
                                int32_t* out_count) {
  const Onnx__AttributeProto* attr = attr_of(c, name);
  *out_count = attr ? count_of(attr->n_floats) : 0;
  return attr ? attr->floats : NULL;
}

choir_var_t* choir__onnx_tensor(choir__onnx_call_t* c, const char* name,
                                int32_t* out_type) {
  *out_type = CHOIR_ONNX_UNDEFINED;
  const Onnx__AttributeProto* attr = attr_of(c, name);
  if (!attr || (!attr->t && !attr->sparse_tensor)) return NULL;
  choir_tensor_t* tensor;
  choir_status_t status =
      attr->t
          ? choir__onnx_make_tensor(c->run->onnx, attr->t, &tensor, out_type)
          : choir__onnx_make_sparse(c->run->onnx, attr->sparse_tensor, &tensor,
                                    out_type);
  if (status) return choir__onnx_fail(c, status);
  return c->is_known ? choir_scope_input(c->scope, tensor)
                     : choir__onnx_move(c->run, tensor, NULL);
}

// ---- What an operator has to know ----

bool choir__onnx_read_var(choir__onnx_call_t* c, choir_var_t* var,
                          bool is_known, choir__onnx_array_t* out_array) {
  *out_array = (choir__onnx_array_t){0};
  choir_tensor_t* tensor = choir_var_tensor(var);
  if (!tensor || !CALL_IS_OK) return false;
  if (!is_known && choir_scope_step(c->scope)->keeps_all) {
    FAIL(UNIMPLEMENTED,
         "what it computes follows from elements of the inputs; a file that is "
         "written would have those of this forward");
    return false;
  }
  out_array->view = *choir_tensor_view(tensor);
  out_array->view.buffer = NULL;
  out_array->view.offset = 0;
  choir_view_set_contiguous(&out_array->view);
  out_array->count = choir_view_count(&out_array->view);
  const size_t bytes =
      (size_t)out_array->count * choir_dtype_bytes(out_array->view.dtype);
  out_array->data = choir_scope_alloc(c->scope, bytes);
  if (!out_array->data) return false;
  choir_status_t status = choir_tensor_read(tensor, out_array->data, bytes);
  if (status) choir__onnx_fail(c, status);
  return !status;
}

bool choir__onnx_read(choir__onnx_call_t* c, int32_t i,
                      choir__onnx_array_t* out_array) {
  *out_array = (choir__onnx_array_t){0};
  return choir__onnx_has(c, i) &&
         choir__onnx_read_var(c, c->inputs[i]->var, c->inputs[i]->is_known,
                              out_array);
}

double choir__onnx_number_at(const choir__onnx_array_t* array, int64_t k) {
  const size_t width = choir_dtype_bytes(array->view.dtype);
  return choir_element_load((const char*)array->data + (size_t)k * width,
                            array->view.dtype);
}

int64_t choir__onnx_int_at(const choir__onnx_array_t* array, int64_t k) {
  switch (array->view.dtype) {
    case CHOIR_DTYPE_I64:
      return ((const int64_t*)array->data)[k];
    case CHOIR_DTYPE_I32:
      return ((const int32_t*)array->data)[k];
    case CHOIR_DTYPE_U8:
    case CHOIR_DTYPE_BOOL:
      return ((const uint8_t*)array->data)[k];
    default: {
      const double number = choir__onnx_number_at(array, k);
      return number >= 9.2e18    ? INT64_MAX
             : number <= -9.2e18 ? INT64_MIN
             : number != number  ? 0
                                 : (int64_t)number;
    }
  }
}

void choir__onnx_set_number(const choir__onnx_array_t* array, int64_t k,
                            double value) {
  const size_t width = choir_dtype_bytes(array->view.dtype);
  choir_element_store((char*)array->data + (size_t)k * width, array->view.dtype,
                      value);
}

int32_t choir__onnx_read_ints(choir__onnx_call_t* c, int32_t i, int64_t* out,
                              int32_t most) {
  choir__onnx_array_t array;
  if (!choir__onnx_read(c, i, &array)) return -1;
  if (array.count > most) {
    FAIL(INVALID_ARGUMENT, "input %d has %lld numbers; at most %d are possible",
         i, (long long)array.count, most);
    return -1;
  }
  for (int64_t k = 0; k < array.count; ++k)
    out[k] = choir__onnx_int_at(&array, k);
  return (int32_t)array.count;
}

int32_t choir__onnx_ints_of(choir__onnx_call_t* c, int32_t i, const char* name,
                            int64_t* out, int32_t most) {
  if (choir__onnx_has(c, i)) return choir__onnx_read_ints(c, i, out, most);
  int32_t count;
  const int64_t* ints = choir__onnx_ints(c, name, &count);
  if (!ints && !choir__onnx_has_attr(c, name)) return -1;
  if (count > most) {
    FAIL(INVALID_ARGUMENT,
         "attribute %s has %d numbers; at most %d are possible", name, count,
         most);
    return -1;
  }
  if (ints && count > 0) memcpy(out, ints, sizeof(int64_t) * (size_t)count);
  return count;
}

double choir__onnx_read_number(choir__onnx_call_t* c, int32_t i, double value) {
  choir__onnx_array_t array;
  if (!choir__onnx_has(c, i) || !choir__onnx_read(c, i, &array)) return value;
  if (array.count == 1) return choir__onnx_number_at(&array, 0);
  FAIL(INVALID_ARGUMENT, "input %d has %lld numbers; needs one", i,
       (long long)array.count);
  return value;
}

bool choir__onnx_axis(choir__onnx_call_t* c, int64_t* axis, int32_t ndim) {
  if (!CALL_IS_OK) return false;
  const int64_t given = *axis;
  if (*axis < 0) *axis += ndim;
  if (*axis >= 0 && *axis < ndim) return true;
  FAIL(INVALID_ARGUMENT, "axis %lld; of %d dimensions it is from %d to %d",
       (long long)given, ndim, -ndim, ndim - 1);
  return false;
}

// ---- Results ----

choir_var_t* choir__onnx_constant(choir__onnx_call_t* c, choir_dtype_t dtype,
                                  int32_t ndim, const int64_t* shape,
                                  const void* data) {
  if (!CALL_IS_OK) return choir_scope_fail(c->scope, NULL);
  choir_tensor_t* tensor = NULL;
  choir_status_t status = choir_tensor_from_data(c->run->onnx->host, dtype,
                                                 ndim, shape, data, &tensor);
  if (status) return choir__onnx_fail(c, status);
  choir_var_t* var = choir_scope_input(c->run->known, tensor);
  if (!c->is_known) var = choir__onnx_move(c->run, tensor, NULL);
  choir_tensor_release(tensor);
  return var;
}

choir_var_t* choir__onnx_scalar(choir__onnx_call_t* c, choir_dtype_t dtype,
                                double value) {
  char element[8];
  choir_element_store(element, dtype, value);
  return choir__onnx_constant(c, dtype, 0, NULL, element);
}

choir_var_t* choir__onnx_reshape(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t ndim, const int64_t* shape) {
  choir_reshape_attrs_t attrs = {.ndim = ndim};
  if (ndim > CHOIR_MAX_NDIM)
    return FAIL(UNIMPLEMENTED, "%d dimensions; at most %d are possible", ndim,
                CHOIR_MAX_NDIM);
  for (int32_t i = 0; i < ndim; ++i) attrs.shape[i] = shape[i];
  return choir_var_reshape(c->scope, x, &attrs);
}

choir_var_t* choir__onnx_unsqueeze(choir__onnx_call_t* c, choir_var_t* x,
                                   const int64_t* axes, int32_t count) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  if (count > CHOIR_MAX_NDIM - view->ndim)
    return FAIL(UNIMPLEMENTED,
                "%d dimensions and %d new ones; at most %d are possible",
                view->ndim, count, CHOIR_MAX_NDIM);
  const int32_t ndim = view->ndim + count;
  bool is_new[CHOIR_MAX_NDIM] = {false};
  for (int32_t i = 0; i < count; ++i) {
    int64_t axis = axes[i];
    if (!choir__onnx_axis(c, &axis, ndim))
      return choir_scope_fail(c->scope, NULL);
    if (is_new[axis])
      return FAIL(INVALID_ARGUMENT, "axis %lld is named twice",
                  (long long)axis);
    is_new[axis] = true;
  }
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0, k = 0; i < ndim; ++i)
    shape[i] = is_new[i] ? 1 : view->shape[k++];
  return choir__onnx_reshape(c, x, ndim, shape);
}

choir_var_t* choir__onnx_transpose(choir__onnx_call_t* c, choir_var_t* x,
                                   const int64_t* axes) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  choir_transpose_attrs_t attrs;
  for (int32_t i = 0; i < CHOIR_MAX_NDIM; ++i)
    attrs.axes[i] = i < view->ndim ? axes[i] : -1;
  return view->ndim < 2 ? x : choir_var_transpose(c->scope, x, &attrs);
}

choir_var_t* choir__onnx_cast(choir__onnx_call_t* c, choir_var_t* x,
                              choir_dtype_t dtype) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || view->dtype == dtype) return x;
  return choir_var_cast(c->scope, x, &(choir_cast_attrs_t){.dtype = dtype});
}

choir_var_t* choir__onnx_slice(choir__onnx_call_t* c, choir_var_t* x,
                               int64_t axis, int64_t start, int64_t stop) {
  return choir_var_slice(
      c->scope, x,
      &(choir_slice_attrs_t){
          .axis = axis, .start = start, .stop = stop, .step = 1});
}
