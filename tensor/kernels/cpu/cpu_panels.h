// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_PANELS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_PANELS_H_

#include <stdint.h>
#include <string.h>

// Small products inside of a kernel. The second factor is brought to panels of
// CHOIR__PANEL columns, which lie as the loops of cpu_panels_loops.inc read
// them.

enum { CHOIR__PANEL = 32 };  // floats

// Before loops of a constant few: sums are to be registers all along.
#if defined(__clang__)
#define CHOIR__PANEL_UNROLL _Pragma("unroll")
#else
#define CHOIR__PANEL_UNROLL _Pragma("GCC unroll 8")
#endif

static inline int64_t choir__panel_columns(int64_t columns) {
  return (columns + CHOIR__PANEL - 1) / CHOIR__PANEL * CHOIR__PANEL;
}

// Panel j has rows 0 .. k - 1 of columns j CHOIR__PANEL .. of a matrix whose
// element (row, column) is w[row * row_step + column * column_step]; zeros
// beyond it.
static inline void choir__panels_pack(const float* w, int64_t k,
                                      int64_t columns, int64_t row_step,
                                      int64_t column_step, float* panels) {
  for (int64_t j = 0; j < columns;
       j += CHOIR__PANEL, panels += k * CHOIR__PANEL) {
    const int64_t some =
        columns - j < CHOIR__PANEL ? columns - j : CHOIR__PANEL;
    for (int64_t i = 0; i < k; i++) {
      float* to = panels + i * CHOIR__PANEL;
      const float* from = w + i * row_step + j * column_step;
      for (int64_t c = 0; c < some; c++) to[c] = from[c * column_step];
      memset(to + some, 0, (size_t)(CHOIR__PANEL - some) * sizeof(float));
    }
  }
}

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_PANELS_H_
