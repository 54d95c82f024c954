// SPDX-License-Identifier: Apache-2.0
// GridSample, by a loop of the host's, and the grids that AffineGrid makes.
#include <math.h>
#include <string.h>

#include "onnx/operators/onnx_constants_internal.h"
#include "onnx/operators/onnx_window_internal.h"

enum { NEAREST, LINEAR, CUBIC };
enum { ZEROS, BORDER, REFLECTION };
enum { MAX_TAPS = 4 };

// ---- GridSample ----

typedef struct sample_s {
  int32_t count;  // spatial dimensions
  int32_t mode, padding;
  bool align_corners;
  int64_t size[CHOIR__ONNX_SPATIAL];
} sample_t;

// The elements of one dimension that count at a place; -1: a zero.
typedef struct taps_s {
  int32_t count;
  int64_t at[MAX_TAPS];
  double weight[MAX_TAPS];
} taps_t;

// x mirrored at the borders until it lies between them.
static double reflect(double x, double low, double high) {
  const double range = high - low;
  if (!(range > 0)) return low;
  const double distance = x < low ? low - x : x > high ? x - high : -1;
  if (distance < 0) return x;
  const double rest = fmod(distance, range);
  const bool is_even = fmod(floor(distance / range), 2) == 0;
  return (x < low) == is_even ? low + rest : high - rest;
}

static double clamp(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}

// A place beyond the image as one within it, or -1.
static int64_t place_of(const sample_t* sample, double x, int64_t size) {
  const double last = (double)(size - 1);
  if (x >= 0 && x <= last) return (int64_t)x;
  if (sample->padding == ZEROS) return -1;
  if (sample->padding == REFLECTION)
    x = sample->align_corners ? reflect(x, 0, last)
                              : reflect(x, -0.5, last + 0.5);
  return (int64_t)clamp(x, 0, last);
}

// Keys' cubic (1981) for the elements around a place, which is `part` behind
// the second one.
static void cubic_weights(double part, double* weights) {
  const double a = -0.75;
  for (int32_t i = 0; i < 4; ++i) {
    const double d = fabs(part + 1 - i);
    weights[i] = d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1
                        : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  }
}

// The coordinate of a grid, from -1 to 1, as elements of a dimension.
static taps_t taps_of(const sample_t* sample, double coordinate, int64_t size) {
  const double last = (double)(size - 1);
  double x = sample->align_corners ? (coordinate + 1) / 2 * last
                                   : ((coordinate + 1) * (double)size - 1) / 2;
  taps_t taps = {.count = 1, .at = {-1}};
  // Neither a NaN nor what is too far to count.
  if (!(fabs(x) < 1e15)) return taps;
  if (sample->mode == NEAREST) x = nearbyint(x);
  // Of a cubic each element is moved into the image by itself.
  if (sample->padding == BORDER && sample->mode != CUBIC) x = clamp(x, 0, last);
  if (sample->padding == REFLECTION)
    x = sample->align_corners ? reflect(x, 0, last)
                              : reflect(x, -0.5, last + 0.5);
  const double low = floor(x);
  double first = low;
  if (sample->mode == NEAREST) {
    first = trunc(x);
    taps.weight[0] = 1;
  } else if (sample->mode == LINEAR) {
    taps.count = 2;
    taps.weight[0] = 1 - (x - low);
    taps.weight[1] = x - low;
  } else {
    taps.count = 4;
    first = low - 1;
    cubic_weights(x - low, taps.weight);
  }
  for (int32_t i = 0; i < taps.count; ++i)
    taps.at[i] = place_of(sample, first + i, size);
  return taps;
}

// The value of one image at the product of taps; dimensions that there are not
// have one tap.
static double value_at(const choir__onnx_array_t* x, int64_t base,
                       const sample_t* sample, const taps_t* taps) {
  double sum = 0;
  for (int32_t i = 0; i < taps[0].count; ++i)
    for (int32_t j = 0; j < taps[1].count; ++j)
      for (int32_t k = 0; k < taps[2].count; ++k) {
        if (taps[0].at[i] < 0 || taps[1].at[j] < 0 || taps[2].at[k] < 0)
          continue;
        const int64_t place =
            (taps[0].at[i] * sample->size[1] + taps[1].at[j]) *
                sample->size[2] +
            taps[2].at[k];
        sum += choir__onnx_number_at(x, base + place) * taps[0].weight[i] *
               taps[1].weight[j] * taps[2].weight[k];
      }
  return sum;
}

static choir_status_t run_sample(const choir__onnx_array_t* srcs,
                                 const choir__onnx_array_t* dsts,
                                 const void* attrs) {
  const sample_t* sample = attrs;
  const choir__onnx_array_t* x = &srcs[0];
  const int64_t* shape = dsts[0].view.shape;
  if (dsts[0].count == 0) return NULL;
  const int64_t places = dsts[0].count / shape[0] / shape[1];
  const int64_t image = sample->size[0] * sample->size[1] * sample->size[2];
  const int32_t skipped = CHOIR__ONNX_SPATIAL - sample->count;
  taps_t taps[CHOIR__ONNX_SPATIAL] = {{.count = 1, .weight = {1}}};
  for (int64_t i = 0; i < shape[0] * places; ++i) {
    // The last dimension's coordinate comes first.
    for (int32_t k = 0; k < sample->count; ++k)
      taps[skipped + k] =
          taps_of(sample,
                  choir__onnx_number_at(
                      &srcs[1], i * sample->count + sample->count - 1 - k),
                  sample->size[skipped + k]);
    for (int64_t channel = 0; channel < shape[1]; ++channel) {
      const int64_t plane = i / places * shape[1] + channel;
      const double value = value_at(x, plane * image, sample, taps);
      choir__onnx_set_number(&dsts[0], plane * places + i % places, value);
    }
  }
  return NULL;
}

static bool find(choir__onnx_call_t* c, const char* name, const char* value,
                 const char* const* names, int32_t count, int32_t* out) {
  const char* text = choir__onnx_string(c, name, value);
  for (*out = 0; *out < count; ++*out)
    if (strcmp(names[*out], text) == 0) return true;
  FAIL(INVALID_ARGUMENT, "attribute %s is '%.40s', which is not in ONNX's list",
       name, text);
  return false;
}

static bool read_sample(choir__onnx_call_t* c, sample_t* out) {
  static const char* const modes[] = {"nearest", "linear", "cubic", "bilinear",
                                      "bicubic"};
  static const char* const paddings[] = {"zeros", "border", "reflection"};
  if (!find(c, "mode", "linear", modes, 5, &out->mode) ||
      !find(c, "padding_mode", "zeros", paddings, 3, &out->padding))
    return false;
  // The names of version 16.
  if (out->mode > CUBIC) out->mode -= CUBIC;
  out->align_corners = choir__onnx_int(c, "align_corners", 0) != 0;
  return true;
}

void choir__onnx_op_grid_sample(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *grid = VIEW(1);
  sample_t sample = {.size = {1, 1, 1}};
  if (!x || !grid || !read_sample(c, &sample)) return;
  sample.count = x->ndim - 2;
  if (sample.count < 1 || sample.count > CHOIR__ONNX_SPATIAL ||
      grid->ndim != x->ndim || grid->shape[0] != x->shape[0] ||
      grid->shape[grid->ndim - 1] != sample.count) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions, the grid %d; needs as many, 3 to 5, as many "
         "samples, and a coordinate for each spatial dimension",
         x->ndim, grid->ndim);
    return;
  }
  choir_view_t y = {
      .dtype = x->dtype, .ndim = x->ndim, .shape = {x->shape[0], x->shape[1]}};
  int64_t elements;
  for (int32_t i = 0; i < sample.count; ++i) {
    sample.size[CHOIR__ONNX_SPATIAL - sample.count + i] = x->shape[2 + i];
    y.shape[2 + i] = grid->shape[1 + i];
  }
  if (!choir__onnx_product(c, x->shape, 2, x->ndim, &elements)) return;
  if (elements < 1) {
    FAIL(INVALID_ARGUMENT, "the images have no elements");
    return;
  }
  choir_var_t* const srcs[] = {IN(0), IN(1)};
  choir_var_t* out;
  choir__onnx_host(c, "grid_sample", run_sample, &sample, sizeof sample, srcs,
                   2, &y, 1, &out);
  OUT(0, out);
}

// ---- AffineGrid ----

// Coordinate k of `size` from -1 to 1, of the middle of elements or of corners.
static double coordinate_of(int64_t k, int64_t size, bool align_corners) {
  if (!align_corners) return (2 * (double)k + 1) / (double)size - 1;
  return size > 1 ? 2 * (double)k / (double)(size - 1) - 1 : -1;
}

// Rows (x, y, 1) or (x, y, z, 1) of all places.
static double* base_grid(choir__onnx_call_t* c, const int64_t* sizes,
                         int32_t count, int64_t places) {
  double* rows = choir__onnx_matrix(c, places, count + 1);
  const bool align = choir__onnx_int(c, "align_corners", 0) != 0;
  for (int64_t i = 0; rows && i < places; ++i) {
    int64_t rest = i;
    for (int32_t k = count - 1; k >= 0; --k) {
      rows[i * (count + 1) + count - 1 - k] =
          coordinate_of(rest % sizes[k], sizes[k], align);
      rest /= sizes[k];
    }
    rows[i * (count + 1) + count] = 1;
  }
  return rows;
}

void choir__onnx_op_affine_grid(choir__onnx_call_t* c) {
  const choir_view_t* theta = VIEW(0);
  int64_t size[CHOIR_MAX_NDIM], places;
  if (!theta) return;
  const int32_t ndim = choir__onnx_read_ints(c, 1, size, CHOIR_MAX_NDIM);
  const int32_t count = ndim - 2;
  if (!CALL_IS_OK) return;
  if ((count != 2 && count != 3) || theta->ndim != 3 ||
      theta->shape[0] != size[0] || theta->shape[1] != count ||
      theta->shape[2] != count + 1) {
    FAIL(INVALID_ARGUMENT,
         "theta has %d dimensions, size %d numbers; needs (n, 2, 3) and 4, or "
         "(n, 3, 4) and 5",
         theta->ndim, ndim);
    return;
  }
  for (int32_t i = 2; i < ndim; ++i)
    if (size[i] < 1 || size[i] > CHOIR__ONNX_LARGEST) {
      FAIL(INVALID_ARGUMENT, "size has %lld; needs 1 to %d", (long long)size[i],
           CHOIR__ONNX_LARGEST);
      return;
    }
  if (!choir__onnx_product(c, size, 2, ndim, &places)) return;
  const int64_t sizes[] = {size[0], places, count};
  if (!choir__onnx_fits(c, theta->dtype, 3, sizes)) return;
  const double* rows = base_grid(c, size + 2, count, places);
  if (!rows) return;
  const int64_t shape[] = {places, count + 1};
  choir_var_t* base = choir__onnx_numbers(c, theta->dtype, 2, shape, rows);
  int64_t grid[CHOIR_MAX_NDIM] = {size[0]};
  for (int32_t i = 0; i < count; ++i) grid[1 + i] = size[2 + i];
  grid[1 + count] = count;
  choir_var_t* y =
      DO(matmul, base, IN(0), &(choir_matmul_attrs_t){.transpose_b = true});
  OUT(0, choir__onnx_reshape(c, y, ndim, grid));
}
