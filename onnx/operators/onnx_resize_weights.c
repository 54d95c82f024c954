// SPDX-License-Identifier: Apache-2.0
// Where the elements of a resized axis come from, and with which weights.
#include <math.h>

#include "onnx/operators/onnx_resize_internal.h"

double choir__onnx_origin(const choir__onnx_resize_t* resize,
                          const choir__onnx_stretch_t* axis, int64_t k) {
  const double in = (double)axis->in, x = (double)k;
  const double width = axis->scale * in;  // before it was made whole
  const double half = (x + 0.5) / axis->scale - 0.5;
  switch (resize->coordinates) {
    case CHOIR__ONNX_HALF_PIXEL_SYMMETRIC:
      return in / 2 * (1 - (double)axis->out / width) + half;
    case CHOIR__ONNX_PYTORCH_HALF_PIXEL:
      return axis->out > 1 ? half : 0;
    case CHOIR__ONNX_ALIGN_CORNERS:
      return width == 1 ? 0 : x * (in - 1) / (width - 1);
    case CHOIR__ONNX_ASYMMETRIC:
      return x / axis->scale;
    case CHOIR__ONNX_HALF_PIXEL_FOR_NN:
      return (x + 0.5) / axis->scale;
    case CHOIR__ONNX_CROP:
      return axis->out > 1 ? axis->start * (in - 1) +
                                 x * (axis->end - axis->start) * (in - 1) /
                                     ((double)axis->out - 1)
                           : 0.5 * (axis->start + axis->end) * (in - 1);
    default:
      return half;
  }
}

bool choir__onnx_is_outside(const choir__onnx_resize_t* resize,
                            const choir__onnx_stretch_t* axis, int64_t k) {
  if (resize->coordinates != CHOIR__ONNX_CROP) return false;
  const double x = choir__onnx_origin(resize, axis, k);
  return !(x >= 0 && x <= (double)(axis->in - 1));
}

// A whole number within 0 .. in - 1, whatever x is.
static int64_t within(double x, int64_t in) {
  if (!(x > 0)) return 0;
  return x >= (double)(in - 1) ? in - 1 : (int64_t)x;
}

int64_t choir__onnx_nearest(const choir__onnx_resize_t* resize,
                            const choir__onnx_stretch_t* axis, int64_t k) {
  const double x = choir__onnx_origin(resize, axis, k);
  const double low = floor(x), part = x - low;
  bool is_up = false;
  switch (resize->rounding) {
    case CHOIR__ONNX_ROUND_PREFER_FLOOR:
      is_up = part > 0.5;
      break;
    case CHOIR__ONNX_ROUND_PREFER_CEIL:
      is_up = part >= 0.5;
      break;
    case CHOIR__ONNX_CEIL:
      is_up = part > 0;
      break;
    case CHOIR__ONNX_SIMPLE:
      is_up = axis->scale < 1 && part > 0;
      break;
    default:
      break;
  }
  return within(is_up ? low + 1 : low, axis->in);
}

// The weight at a distance: a triangle, or Keys' cubic (1981).
static double weight_at(const choir__onnx_resize_t* resize, double distance) {
  const double d = fabs(distance), a = resize->cubic;
  if (resize->interpolation == CHOIR__ONNX_LINEAR) return d < 1 ? 1 - d : 0;
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

void choir__onnx_add_weights(const choir__onnx_resize_t* resize,
                             const choir__onnx_stretch_t* axis, int64_t k,
                             double* row) {
  const double x = choir__onnx_origin(resize, axis, k);
  const double last = (double)(axis->in - 1);
  const double radius = resize->interpolation == CHOIR__ONNX_LINEAR ? 1 : 2;
  // Antialiasing makes the weights wider as x is made smaller.
  const double narrow = resize->antialias && axis->scale < 1 ? axis->scale : 1;
  const double reach = radius / narrow;
  // All of the weights that lie far outside are the edge's.
  if (!(x + reach > 0) || !(x - reach < last)) {
    row[within(x, axis->in)] += 1;
    return;
  }
  const int64_t first = (int64_t)fmax(floor(x - reach) + 1, -1e15);
  const int64_t stop = (int64_t)fmin(ceil(x + reach), 1e15);
  double sum = 0;
  for (int64_t i = first; i < stop; ++i)
    if (!resize->exclude_outside || (i >= 0 && i < axis->in))
      sum += weight_at(resize, ((double)i - x) * narrow);
  if (sum == 0) sum = 1;
  for (int64_t i = first; i < stop; ++i) {
    if (resize->exclude_outside && (i < 0 || i >= axis->in)) continue;
    row[within((double)i, axis->in)] +=
        weight_at(resize, ((double)i - x) * narrow) / sum;
  }
}
