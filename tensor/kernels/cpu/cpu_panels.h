// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_PANELS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_PANELS_H_

#include <stdint.h>
#include <string.h>

// Small products inside of a kernel. The second factor is brought to panels of
// CHOIR__PANEL columns, which lie as the loops of cpu_panels_loops.inc read
// them.

enum { CHOIR__PANEL = 32 };  // floats

// What sums begin with that go on from nothing.
static const float choir__panel_zeros[CHOIR__PANEL] = {0};

typedef float choir__panel_f32_t __attribute__((vector_size(16), aligned(4)));
typedef double choir__panel_f64_t __attribute__((vector_size(32)));
typedef int64_t choir__panel_i64_t __attribute__((vector_size(32)));
typedef uint64_t choir__panel_u64_t __attribute__((vector_size(32)));

// a b + c, rounded once, for processors that have it, and for those without:
// the product is exact as a double; a sum that is not is rounded to odd (Boldo
// and Melquiond, "Emulation of FMA and Correctly Rounded Sums", 2008), so that
// rounding it to f32 is as if it were.
static inline choir__panel_f32_t choir__panel_fma(choir__panel_f32_t a,
                                                  choir__panel_f32_t b,
                                                  choir__panel_f32_t c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  for (int i = 0; i < 4; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  const choir__panel_f64_t term =
      __builtin_convertvector(c, choir__panel_f64_t);
  const choir__panel_f64_t product =
      __builtin_convertvector(a, choir__panel_f64_t) *
      __builtin_convertvector(b, choir__panel_f64_t);
  const choir__panel_f64_t sum = product + term, back = sum - product;
  const choir__panel_f64_t left = (product - (sum - back)) + (term - back);
  choir__panel_i64_t bits = (choir__panel_i64_t)sum;
  const choir__panel_i64_t is_even = (bits & 1) - 1;
  const choir__panel_i64_t is_inexact = (left > 0) | (left < 0);
  // The next double on the side of what is left.
  const choir__panel_u64_t differ =
      ((choir__panel_u64_t)left ^ (choir__panel_u64_t)bits) >> 63;
  const choir__panel_i64_t step = 1 - 2 * (choir__panel_i64_t)differ;
  bits += step & is_even & is_inexact;
  return __builtin_convertvector((choir__panel_f64_t)bits, choir__panel_f32_t);
#endif
}

static inline int64_t choir__panel_columns(int64_t columns) {
  return (columns + CHOIR__PANEL - 1) / CHOIR__PANEL * CHOIR__PANEL;
}

typedef float choir__panel_four_t __attribute__((vector_size(16), aligned(4)));

// Rows 0 .. 3 of `to`, CHOIR__PANEL apart, of which each has an element of each
// of four rows of `from`.
static inline void choir__panels_turn(const float* from, int64_t step,
                                      float* to) {
  choir__panel_four_t x[4], y[4];
  for (int i = 0; i < 4; i++)
    x[i] = *(const choir__panel_four_t*)(from + i * step);
  for (int i = 0; i < 2; i++) {
    y[2 * i] = __builtin_shufflevector(x[i], x[i + 2], 0, 4, 1, 5);
    y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + 2], 2, 6, 3, 7);
  }
  for (int i = 0; i < 2; i++) {
    x[2 * i] = __builtin_shufflevector(y[i], y[i + 2], 0, 4, 1, 5);
    x[2 * i + 1] = __builtin_shufflevector(y[i], y[i + 2], 2, 6, 3, 7);
  }
  for (int i = 0; i < 4; i++)
    *(choir__panel_four_t*)(to + i * CHOIR__PANEL) = x[i];
}

// Rows `row` .. of one panel, from columns `column` .. on.
static inline void choir__panels_copy(const float* w, int64_t row, int64_t rows,
                                      int64_t column, int64_t columns,
                                      int64_t row_step, int64_t column_step,
                                      float* panel) {
  for (int64_t i = row; i < rows; i++)
    for (int64_t c = column; c < columns; c++)
      panel[i * CHOIR__PANEL + c] = w[i * row_step + c * column_step];
}

// Panel j has rows 0 .. k - 1 of columns j CHOIR__PANEL .. of a matrix whose
// element (row, column) is w[row * row_step + column * column_step]; zeros
// beyond it. A column that lies densely is turned by squares of 4 by 4.
static inline void choir__panels_pack(const float* w, int64_t k,
                                      int64_t columns, int64_t row_step,
                                      int64_t column_step, float* panels) {
  for (int64_t j = 0; j < columns;
       j += CHOIR__PANEL, panels += k * CHOIR__PANEL) {
    const int64_t some =
        columns - j < CHOIR__PANEL ? columns - j : CHOIR__PANEL;
    const float* from = w + j * column_step;
    const int64_t rows = row_step == 1 ? k / 4 * 4 : 0;
    const int64_t turned = some / 4 * 4;
    for (int64_t i = 0; i < rows; i += 4)
      for (int64_t c = 0; c < turned; c += 4)
        choir__panels_turn(from + i + c * column_step, column_step,
                           panels + i * CHOIR__PANEL + c);
    choir__panels_copy(from, 0, rows, turned, some, row_step, column_step,
                       panels);
    choir__panels_copy(from, rows, k, 0, some, row_step, column_step, panels);
    for (int64_t i = 0; i < k && some < CHOIR__PANEL; i++)
      memset(panels + i * CHOIR__PANEL + some, 0,
             (size_t)(CHOIR__PANEL - some) * sizeof(float));
  }
}

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_PANELS_H_
