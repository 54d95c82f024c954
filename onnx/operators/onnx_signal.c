// SPDX-License-Identifier: Apache-2.0
// DFT and STFT. A transform is a product with a matrix of sines and cosines,
// so that it has gradients; one whose matrix would be large is a fast Fourier
// transform on the host (onnx_fourier.c).
#include <math.h>

#include "onnx/operators/onnx_fourier_internal.h"
#include "onnx/operators/onnx_sizes_internal.h"

// Numbers of the largest matrix.
enum { MOST_NUMBERS = 1 << 22 };

static const double pi = 3.14159265358979323846;

// Turns of 1 / length, as (cosine, sine).
static double* make_table(choir__onnx_call_t* c, int64_t length) {
  double* table =
      choir_scope_alloc(c->scope, (size_t)length * 2 * sizeof(double));
  for (int64_t i = 0; table && i < length; ++i) {
    const double turn = 2 * pi * (double)i / (double)length;
    table[2 * i] = cos(turn);
    table[2 * i + 1] = sin(turn);
  }
  return table;
}

// What place n (re or im) gives to place k of the result: elements [from][to].
static void set_factor(const choir__onnx_fourier_t* f, const double* table,
                       int64_t n, int64_t k, double out[2][2]) {
  const double cosine = table[2 * (n * k % f->length)];
  double sine = table[2 * (n * k % f->length) + 1];
  double weight = 1;
  if (f->inverse)
    weight = 1.0 / (double)f->length;
  else
    sine = -sine;
  // Of a real result only half of the spectrum is given; the other half is its
  // mirror.
  const bool is_half = f->inverse && f->onesided;
  if (is_half && n > 0 && 2 * n != f->length) weight *= 2;
  if (n >= (is_half ? f->length / 2 + 1 : f->length)) weight = 0;
  out[0][0] = weight * cosine;
  out[0][1] = weight * sine;
  out[1][0] = -weight * sine;
  out[1][1] = weight * cosine;
}

static choir_var_t* make_matrix(choir__onnx_call_t* c,
                                const choir__onnx_fourier_t* f, int64_t places,
                                int64_t parts, choir_dtype_t dtype) {
  const int64_t columns = f->results * f->result_parts;
  const int64_t shape[] = {places * parts, columns};
  const size_t width = choir_dtype_bytes(dtype);
  double* table = make_table(c, f->length);
  char* data =
      choir_scope_alloc(c->scope, (size_t)(shape[0] * shape[1] + 1) * width);
  if (!table || !data) return choir_scope_fail(c->scope, NULL);
  for (int64_t n = 0; n < places; ++n)
    for (int64_t k = 0; k < f->results; ++k) {
      double factor[2][2];
      set_factor(f, table, n, k, factor);
      for (int64_t i = 0; i < parts; ++i)
        for (int64_t o = 0; o < f->result_parts; ++o) {
          const int64_t at =
              (n * parts + i) * columns + k * f->result_parts + o;
          choir_element_store(data + (size_t)at * width, dtype, factor[i][o]);
        }
    }
  return choir__onnx_constant(c, dtype, 2, shape, data);
}

// The transform along the last but one axis; the last one: real and imaginary
// part.
static choir_var_t* transform(choir__onnx_call_t* c, choir_var_t* x,
                              const choir__onnx_fourier_t* f) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const int32_t ndim = view->ndim;
  int64_t shape[CHOIR_MAX_NDIM] = {0}, rows = 1;
  for (int32_t d = 0; d < ndim; ++d) shape[d] = view->shape[d];
  for (int32_t d = 0; d < ndim - 2; ++d) rows *= shape[d];
  const choir_dtype_t given = view->dtype;
  const choir_dtype_t dtype =
      given == CHOIR_DTYPE_F64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32;
  const int64_t places = shape[ndim - 2], parts = shape[ndim - 1];
  const int64_t flat[] = {rows, places * parts};
  x = choir__onnx_cast(c, x, dtype);
  choir_var_t* y;
  if ((double)(places * parts) * (double)(f->results * f->result_parts) <=
          MOST_NUMBERS &&
      f->length <= MOST_NUMBERS)
    y = DO(matmul, choir__onnx_reshape(c, x, 2, flat),
           make_matrix(c, f, places, parts, dtype), NULL);
  else
    y = choir__onnx_fourier(c, x, f);
  shape[ndim - 2] = f->results;
  shape[ndim - 1] = f->result_parts;
  return choir__onnx_cast(c, choir__onnx_reshape(c, y, ndim, shape), given);
}

// Input i as one whole number of 1 to 2^31 - 1; absent: value.
static bool take_count(choir__onnx_call_t* c, int32_t i, int64_t value,
                       int64_t* out) {
  *out = value;
  if (HAS(i) && choir__onnx_read_ints(c, i, out, 1) < 0) return false;
  if (*out >= 1 && *out <= INT32_MAX) return true;
  FAIL(INVALID_ARGUMENT, "a length, or step, of %lld; needs 1 to 2147483647",
       (long long)*out);
  return false;
}

// Whether the last axis is of real and imaginary parts, or of real numbers.
static bool is_signal(choir__onnx_call_t* c, const choir_view_t* x) {
  if (x->ndim >= 2 && choir_dtype_is_float(x->dtype) &&
      (x->shape[x->ndim - 1] == 1 || x->shape[x->ndim - 1] == 2))
    return true;
  FAIL(INVALID_ARGUMENT,
       "the signal is of type %s and has %d dimensions; needs floats, and 1 or "
       "2 of them along a last axis",
       choir_onnx_type_name(TYPE(0)), x->ndim);
  return false;
}

// The axis of a DFT, an attribute before version 20.
static bool take_axis(choir__onnx_call_t* c, const choir_view_t* x,
                      int64_t* out_axis) {
  if (c->version < 20)
    *out_axis = choir__onnx_int(c, "axis", 1);
  else
    *out_axis = -2;
  if (c->version >= 20 && HAS(2) &&
      choir__onnx_read_ints(c, 2, out_axis, 1) < 0)
    return false;
  if (!choir__onnx_axis(c, out_axis, x->ndim)) return false;
  if (*out_axis < x->ndim - 1) return true;
  FAIL(INVALID_ARGUMENT, "axis %lld is that of real and imaginary parts",
       (long long)*out_axis);
  return false;
}

void choir__onnx_op_dft(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  int64_t axis;
  choir__onnx_fourier_t f = {
      .inverse = choir__onnx_int(c, "inverse", 0) != 0,
      .onesided = choir__onnx_int(c, "onesided", 0) != 0};
  if (!x || !is_signal(c, x) || !take_axis(c, x, &axis)) return;
  const bool is_half = f.inverse && f.onesided;
  const int64_t places = x->shape[axis];
  if (!take_count(c, 1, is_half ? 2 * (places - 1) : places, &f.length)) return;
  f.results = f.onesided && !f.inverse ? f.length / 2 + 1 : f.length;
  f.result_parts = is_half ? 1 : 2;
  int64_t axes[CHOIR_MAX_NDIM];
  const int32_t last = x->ndim - 2;
  for (int32_t d = 0; d < x->ndim; ++d) axes[d] = d;
  axes[axis] = last;
  axes[last] = axis;
  choir_var_t* y = choir__onnx_transpose(c, IN(0), axes);
  y = transform(c, y, &f);
  OUT(0, choir__onnx_transpose(c, y, axes));
}

// ---- STFT ----

// Frames of `width` places of x (n, places, parts), `step` apart: (n, frames,
// width, parts).
static choir_var_t* take_frames(choir__onnx_call_t* c, choir_var_t* x,
                                int64_t frames, int64_t width, int64_t step) {
  const int64_t shape[] = {frames, width};
  if (!choir__onnx_has_room(c, CHOIR_DTYPE_I64, 2, shape))
    return choir_scope_fail(c->scope, NULL);
  int64_t* indices = choir_scope_alloc(
      c->scope, (size_t)frames * (size_t)width * sizeof(int64_t));
  if (!indices) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; i < frames; ++i)
    for (int64_t j = 0; j < width; ++j) indices[i * width + j] = i * step + j;
  const choir_gather_attrs_t attrs = {.axis = 1};
  return DO(gather, x,
            choir__onnx_constant(c, CHOIR_DTYPE_I64, 2, shape, indices),
            &attrs);
}

void choir__onnx_op_stft(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *window = VIEW(2);
  choir__onnx_fourier_t f = {.onesided = choir__onnx_int(c, "onesided", 1) != 0,
                             .result_parts = 2};
  int64_t step;
  if (!x || !is_signal(c, x)) return;
  if (x->ndim != 3 || (window && window->ndim != 1)) {
    FAIL(INVALID_ARGUMENT,
         "a signal of %d dimensions, a window of %d; needs 3 and 1", x->ndim,
         window ? window->ndim : 1);
    return;
  }
  if (!HAS(1)) {
    FAIL(INVALID_ARGUMENT, "input 1, the step of frames, is missing");
    return;
  }
  if (!take_count(c, 1, 1, &step) ||
      !take_count(c, 3, window ? window->shape[0] : x->shape[1], &f.length))
    return;
  const int64_t width = window ? window->shape[0] : f.length;
  if (width < 1 || width > f.length || f.length > x->shape[1]) {
    FAIL(INVALID_ARGUMENT,
         "a window of %lld places and frames of %lld on %lld places",
         (long long)width, (long long)f.length, (long long)x->shape[1]);
    return;
  }
  f.results = f.onesided ? f.length / 2 + 1 : f.length;
  const int64_t frames = (x->shape[1] - f.length) / step + 1;
  choir_var_t* y = take_frames(c, IN(0), frames, width, step);
  if (window) {
    const int64_t shape[] = {width, 1};
    choir_var_t* weights = choir__onnx_reshape(c, IN(2), 2, shape);
    y = DO(mul, y, choir__onnx_cast(c, weights, x->dtype));
  }
  OUT(0, transform(c, y, &f));
}
