// SPDX-License-Identifier: Apache-2.0
// Fourier transforms of any length on the host: Cooley and Tukey's for powers
// of two, by which Bluestein's convolution gives the others.
#include "onnx/operators/onnx_fourier_internal.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>

typedef double complex complex_t;

static const double pi = 3.14159265358979323846;

static complex_t turn(double share) {
  return cos(2 * pi * share) + I * sin(2 * pi * share);
}

// In place, of a power of two; roots[i] = e^(-2 pi i / count).
static void transform_power(complex_t* x, const complex_t* roots,
                            int64_t count) {
  for (int64_t i = 1, j = 0; i < count; ++i) {
    int64_t bit = count >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      const complex_t kept = x[i];
      x[i] = x[j];
      x[j] = kept;
    }
  }
  for (int64_t width = 2; width <= count; width *= 2)
    for (int64_t first = 0; first < count; first += width)
      for (int64_t k = 0; k < width / 2; ++k) {
        complex_t* even = &x[first + k];
        complex_t* odd = even + width / 2;
        const complex_t turned = *odd * roots[k * (count / width)];
        *odd = *even - turned;
        *even += turned;
      }
}

// Buffers of a transform of `length`, as a convolution of `count`.
typedef struct plan_s {
  int64_t length, count;
  complex_t* roots;   // count
  complex_t* chirp;   // length: e^(-pi i n^2 / length)
  complex_t* filter;  // count: the transform of the mirrored chirp
  complex_t* work;    // count
  complex_t* line;    // length
} plan_t;

static void make_plan(plan_t* plan, complex_t* memory) {
  const int64_t length = plan->length, count = plan->count;
  plan->roots = memory;
  plan->filter = plan->roots + count;
  plan->work = plan->filter + count;
  plan->chirp = plan->work + count;
  plan->line = plan->chirp + length;
  for (int64_t i = 0; i < count; ++i)
    plan->roots[i] = turn(-(double)i / (double)count);
  for (int64_t n = 0; n < length; ++n) {
    plan->chirp[n] = turn(-(double)(n * n % (2 * length)) / 2 / (double)length);
    plan->filter[n] = conj(plan->chirp[n]);
    if (n > 0) plan->filter[count - n] = plan->filter[n];
  }
  transform_power(plan->filter, plan->roots, count);
}

// plan->line in place: of length N, sum over n of x_n e^(-2 pi i n k / N).
static void transform_line(plan_t* plan) {
  const int64_t length = plan->length, count = plan->count;
  for (int64_t n = 0; n < count; ++n)
    plan->work[n] = n < length ? plan->line[n] * plan->chirp[n] : 0;
  transform_power(plan->work, plan->roots, count);
  for (int64_t n = 0; n < count; ++n)
    plan->work[n] = conj(plan->work[n] * plan->filter[n]);
  transform_power(plan->work, plan->roots, count);
  for (int64_t n = 0; n < length; ++n)
    plan->line[n] = conj(plan->work[n]) / (double)count * plan->chirp[n];
}

static double number(const choir__onnx_array_t* array, int64_t k) {
  return array->view.dtype == CHOIR_DTYPE_F64 ? ((const double*)array->data)[k]
                                              : ((const float*)array->data)[k];
}

static void store(const choir__onnx_array_t* array, int64_t k, double value) {
  if (array->view.dtype == CHOIR_DTYPE_F64)
    ((double*)array->data)[k] = value;
  else
    ((float*)array->data)[k] = (float)value;
}

// Row `row` of x, cut or filled with zeros; of half a spectrum all of it.
static void load_line(const choir__onnx_fourier_t* f, plan_t* plan,
                      const choir__onnx_array_t* x, int64_t row) {
  const int32_t ndim = x->view.ndim;
  const int64_t places = x->view.shape[ndim - 2];
  const int64_t parts = x->view.shape[ndim - 1];
  const bool is_half = f->inverse && f->onesided;
  for (int64_t n = 0; n < f->length; ++n) {
    const bool is_mirror = is_half && n > f->length / 2;
    const int64_t place = is_mirror ? f->length - n : n;
    const int64_t at = (row * places + place) * parts;
    complex_t value = 0;
    if (place < places)
      value = number(x, at) + (parts == 2 ? I * number(x, at + 1) : 0);
    plan->line[n] = is_mirror ? conj(value) : value;
    // The inverse is the mirror of the transform.
    if (f->inverse) plan->line[n] = conj(plan->line[n]);
  }
}

static void store_line(const choir__onnx_fourier_t* f, const plan_t* plan,
                       const choir__onnx_array_t* y, int64_t row) {
  for (int64_t k = 0; k < f->results; ++k) {
    complex_t value = plan->line[k];
    if (f->inverse) value = conj(value) / (double)f->length;
    const int64_t at = (row * f->results + k) * f->result_parts;
    store(y, at, creal(value));
    if (f->result_parts == 2) store(y, at + 1, cimag(value));
  }
}

static choir_status_t fourier_loop(const choir__onnx_array_t* srcs,
                                   const choir__onnx_array_t* dsts,
                                   const void* attrs) {
  const choir__onnx_fourier_t* f = attrs;
  plan_t plan = {.length = f->length, .count = 1};
  while (plan.count < 2 * f->length) plan.count *= 2;
  const int64_t numbers = 3 * plan.count + 2 * f->length;
  complex_t* memory = calloc((size_t)numbers, sizeof *memory);
  if (!memory)
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "no memory for a transform of length %lld",
                       (long long)f->length);
  make_plan(&plan, memory);
  const int64_t line = f->results * f->result_parts;
  const int64_t rows = dsts[0].count / line;
  for (int64_t row = 0; row < rows; ++row) {
    load_line(f, &plan, &srcs[0], row);
    transform_line(&plan);
    store_line(f, &plan, &dsts[0], row);
  }
  free(memory);
  return NULL;
}

choir_var_t* choir__onnx_fourier(choir__onnx_call_t* c, choir_var_t* x,
                                 const choir__onnx_fourier_t* f) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  choir_view_t result = *view;
  result.shape[view->ndim - 2] = f->results;
  result.shape[view->ndim - 1] = f->result_parts;
  // What the loop takes for itself: a power of two below 4 times the length.
  choir_status_t status =
      choir_device_check_memory(choir_scope_device(c->scope),
                                (uint64_t)f->length * 14 * sizeof(complex_t));
  if (status) return choir__onnx_fail(c, status);
  choir_var_t* y;
  choir__onnx_host(c, "onnx/fourier", fourier_loop, f, sizeof *f, &x, 1,
                   &result, 1, &y);
  return y;
}
