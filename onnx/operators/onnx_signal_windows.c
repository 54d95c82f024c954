// SPDX-License-Identifier: Apache-2.0
// Tables for spectra: HannWindow, HammingWindow, BlackmanWindow,
// MelWeightMatrix.
#include <math.h>

#include "onnx/onnx_call_def.h"

static const double pi = 3.14159265358979323846;

// w_n = a_0 - a_1 cos(t_n) + a_2 cos(2 t_n)
typedef struct cosines_s {
  double a[3];
  bool is_periodic;
} cosines_t;

static choir_status_t window_loop(const choir__onnx_array_t* srcs,
                                  const choir__onnx_array_t* dsts,
                                  const void* attrs) {
  (void)srcs;
  const cosines_t* w = attrs;
  const int64_t count = dsts[0].count;
  const double period = (double)(w->is_periodic ? count : count - 1);
  for (int64_t n = 0; n < count; ++n) {
    const double t = period > 0 ? 2 * pi * (double)n / period : pi;
    choir__onnx_set_number(&dsts[0], n,
                           w->a[0] - w->a[1] * cos(t) + w->a[2] * cos(2 * t));
  }
  return NULL;
}

// output_datatype; false: it failed.
static bool take_type(choir__onnx_call_t* c, int32_t* out_type,
                      choir_dtype_t* out_dtype) {
  *out_type = (int32_t)choir__onnx_int(c, "output_datatype", CHOIR_ONNX_FLOAT);
  choir_status_t status = choir_onnx_type_dtype(*out_type, out_dtype);
  if (status) choir__onnx_fail(c, status);
  return !status;
}

// Sizes up to this one; no spectrum has more.
enum { MOST_PLACES = 1 << 26 };

// Input i as one whole number from `least` to MOST_PLACES; false: it failed.
static bool take_count(choir__onnx_call_t* c, int32_t i, int64_t least,
                       int64_t* out) {
  if (!HAS(i)) {
    FAIL(INVALID_ARGUMENT, "input %d is missing", i);
    return false;
  }
  const int32_t count = choir__onnx_read_ints(c, i, out, 1);
  if (count < 0) return false;
  if (count == 1 && *out >= least && *out <= MOST_PLACES) return true;
  FAIL(INVALID_ARGUMENT, "input %d is %lld; needs %lld to %d", i,
       count == 1 ? (long long)*out : 0LL, (long long)least, MOST_PLACES);
  return false;
}

static void window(choir__onnx_call_t* c, double a0, double a1, double a2) {
  int32_t type;
  choir_view_t view;
  int64_t count;
  if (!take_type(c, &type, &view.dtype) || !take_count(c, 0, 0, &count)) return;
  choir_status_t status = choir_view_make(view.dtype, 1, &count, &view);
  if (status) {
    choir__onnx_fail(c, status);
    return;
  }
  const cosines_t attrs = {.a = {a0, a1, a2},
                           .is_periodic = choir__onnx_int(c, "periodic", 1)};
  choir_var_t* y;
  choir__onnx_host(c, "onnx/window", window_loop, &attrs, sizeof attrs, NULL, 0,
                   &view, 1, &y);
  choir__onnx_out_as(c, 0, y, type);
}

void choir__onnx_op_hann_window(choir__onnx_call_t* c) {
  window(c, 0.5, 0.5, 0);
}

void choir__onnx_op_hamming_window(choir__onnx_call_t* c) {
  window(c, 25.0 / 46, 21.0 / 46, 0);
}

void choir__onnx_op_blackman_window(choir__onnx_call_t* c) {
  window(c, 0.42, 0.5, 0.08);
}

// ---- Mel ----

typedef struct mel_s {
  double low;  // of the lowest edge, in mel
  double step;
  double bins_per_hertz;
} mel_t;

static double to_mel(double hertz) { return 2595 * log10(1 + hertz / 700); }

// The row of a spectrum where edge k of the triangles lies.
static int64_t edge_row(const mel_t* mel, int64_t k, int64_t rows) {
  const double hertz =
      700 * (pow(10, (mel->low + mel->step * (double)k) / 2595) - 1);
  const double row = floor(hertz * mel->bins_per_hertz);
  return row >= 0 && row < (double)rows ? (int64_t)row : -1;
}

// Column i is a triangle over rows from edge i to i + 2, 1 at edge i + 1.
static choir_status_t mel_loop(const choir__onnx_array_t* srcs,
                               const choir__onnx_array_t* dsts,
                               const void* attrs) {
  (void)srcs;
  const int64_t rows = dsts[0].view.shape[0], columns = dsts[0].view.shape[1];
  for (int64_t k = 0; k < dsts[0].count; ++k)
    choir__onnx_set_number(&dsts[0], k, 0);
  for (int64_t i = 0; i < columns; ++i) {
    const int64_t left = edge_row(attrs, i, rows);
    const int64_t centre = edge_row(attrs, i + 1, rows);
    const int64_t right = edge_row(attrs, i + 2, rows);
    if (left < 0 || centre < left || right < centre)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "edges of mel bin %lld lie outside a spectrum of "
                         "%lld rows, or fall",
                         (long long)i, (long long)rows);
    for (int64_t j = left; j < centre; ++j)
      choir__onnx_set_number(&dsts[0], j * columns + i,
                             (double)(j - left) / (double)(centre - left));
    choir__onnx_set_number(&dsts[0], centre * columns + i, 1);
    for (int64_t j = centre; j < right; ++j)
      choir__onnx_set_number(&dsts[0], j * columns + i,
                             (double)(right - j) / (double)(right - centre));
  }
  return NULL;
}

void choir__onnx_op_mel_weight_matrix(choir__onnx_call_t* c) {
  int32_t type;
  choir_view_t view;
  int64_t bins, length, rate;
  if (!take_type(c, &type, &view.dtype) || !take_count(c, 0, 0, &bins) ||
      !take_count(c, 1, 0, &length) || !take_count(c, 2, 1, &rate))
    return;
  const double low = choir__onnx_read_number(c, 3, 0);
  const double high = choir__onnx_read_number(c, 4, 0);
  if (!CALL_IS_OK) return;
  if (!(low >= 0 && high >= low && high < 1e12)) {
    FAIL(INVALID_ARGUMENT, "edges at %g and %g hertz", low, high);
    return;
  }
  const int64_t shape[] = {length / 2 + 1, bins};
  choir_status_t status = choir_view_make(view.dtype, 2, shape, &view);
  if (status) {
    choir__onnx_fail(c, status);
    return;
  }
  const mel_t mel = {.low = to_mel(low),
                     .step = (to_mel(high) - to_mel(low)) / (double)(bins + 2),
                     .bins_per_hertz = (double)(length + 1) / (double)rate};
  choir_var_t* y;
  choir__onnx_host(c, "onnx/mel", mel_loop, &mel, sizeof mel, NULL, 0, &view, 1,
                   &y);
  choir__onnx_out_as(c, 0, y, type);
}
