// SPDX-License-Identifier: Apache-2.0
// Poolings of regions of images, by loops of the host's.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operators/onnx_window_internal.h"

// ---- Poolings of regions ----

enum { MAX_SAMPLING = 1 << 10 };

typedef struct region_s {
  int64_t height, width;  // of the result
  int64_t sampling;       // points of a bin along each side; 0: as it is large
  double scale, offset;
  bool is_max, keeps_size;
  int64_t channels, rows, columns;  // of x
} region_t;

// One image of x.
typedef struct plane_s {
  const choir__onnx_array_t* x;
  int64_t base, rows, columns;
} plane_t;

// The four elements around (y, x) with their weights, as a mean, or the largest
// of the four products.
static double sample(const plane_t* plane, double y, double x, bool is_max) {
  const double last_row = (double)(plane->rows - 1);
  const double last_column = (double)(plane->columns - 1);
  if (!(y >= -1 && y <= last_row + 1 && x >= -1 && x <= last_column + 1))
    return 0;
  y = y < 0 ? 0 : y > last_row ? last_row : y;
  x = x < 0 ? 0 : x > last_column ? last_column : x;
  const int64_t row = (int64_t)y, column = (int64_t)x;
  const int64_t below = row + 1 < plane->rows ? row + 1 : row;
  const int64_t right = column + 1 < plane->columns ? column + 1 : column;
  const double dy = y - (double)row, dx = x - (double)column;
  const int64_t rows[] = {row, row, below, below};
  const int64_t columns[] = {column, right, column, right};
  const double weights[] = {(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx),
                            dy * dx};
  double sum = 0, most = -INFINITY;
  for (int32_t i = 0; i < 4; ++i) {
    const double value =
        weights[i] *
        choir__onnx_number_at(
            plane->x, plane->base + rows[i] * plane->columns + columns[i]);
    sum += value;
    if (value > most) most = value;
  }
  return is_max ? most : sum;
}

// Points of a bin along one side, and which of them, first .. last - 1, lie
// where they may count: a region may be far larger than the image.
typedef struct points_s {
  double count, from, step;
  int64_t first, last;
} points_t;

// The least whole number from x on, within 0 .. 2^53.
static int64_t number_from(double x) {
  const double most = 9007199254740992.0;
  if (!(x > 0)) return 0;
  return (int64_t)ceil(x < most ? x : most);
}

static points_t points_of(const region_t* region, double from, double side,
                          int64_t size) {
  points_t points = {.from = from};
  points.count = region->sampling > 0 ? (double)region->sampling : ceil(side);
  if (!(points.count >= 1)) points.count = 0;
  points.step = side / points.count;
  if (!(points.step > 0)) {
    // All points of an empty bin are one.
    points.last = points.step == 0 ? (int64_t)points.count : 0;
    return points;
  }
  points.first = number_from((-1 - from) / points.step - 0.5);
  points.last = number_from(((double)size - from) / points.step + 0.5);
  const int64_t count = number_from(points.count);
  if (points.last > count) points.last = count;
  return points;
}

// A bin from (top, left) on, with these sides.
static double pool_bin(const plane_t* plane, const region_t* region,
                       const double* from, const double* sides) {
  const points_t y = points_of(region, from[0], sides[0], plane->rows);
  const points_t x = points_of(region, from[1], sides[1], plane->columns);
  const double count = y.count * x.count;
  // Points that are not looked at are 0.
  double sum = 0, seen = 0, most = -INFINITY;
  for (int64_t i = y.first; i < y.last; ++i)
    for (int64_t j = x.first; j < x.last; ++j) {
      const double value =
          sample(plane, y.from + ((double)i + 0.5) * y.step,
                 x.from + ((double)j + 0.5) * x.step, region->is_max);
      sum += value;
      seen += 1;
      if (value > most) most = value;
    }
  if (!(count > 0)) return 0;
  if (!region->is_max) return sum / count;
  return seen < count && most < 0 ? 0 : most;
}

static choir_status_t run_align(const choir__onnx_array_t* srcs,
                                const choir__onnx_array_t* dsts,
                                const void* attrs) {
  const region_t* region = attrs;
  const int64_t images = srcs[0].view.shape[0];
  plane_t plane = {
      .x = &srcs[0], .rows = region->rows, .columns = region->columns};
  const int64_t bins = region->height * region->width;
  for (int64_t i = 0; i < dsts[0].count; ++i) {
    const int64_t roi = i / bins / region->channels;
    const int64_t image = choir__onnx_int_at(&srcs[2], roi);
    if (image < 0 || image >= images)
      return CHOIR_ERROR(OUT_OF_RANGE, "region %lld is of image %lld of %lld",
                         (long long)roi, (long long)image, (long long)images);
    double edges[4];
    for (int32_t k = 0; k < 4; ++k)
      edges[k] = choir__onnx_number_at(&srcs[1], roi * 4 + k) * region->scale -
                 region->offset;
    double sides[] = {edges[3] - edges[1], edges[2] - edges[0]};
    for (int32_t k = 0; k < 2; ++k) {
      if (!region->keeps_size && !(sides[k] >= 1)) sides[k] = 1;
      sides[k] /= (double)(k == 0 ? region->height : region->width);
    }
    const int64_t row = i % bins / region->width;
    const double from[] = {edges[1] + (double)row * sides[0],
                           edges[0] + (double)(i % region->width) * sides[1]};
    plane.base = (image * region->channels + i / bins % region->channels) *
                 region->rows * region->columns;
    choir__onnx_set_number(&dsts[0], i, pool_bin(&plane, region, from, sides));
  }
  return NULL;
}

// The result of `rois` regions of x, if the sizes are possible.
static bool set_region(choir__onnx_call_t* c, const choir_view_t* x,
                       int64_t rois, region_t* region, choir_view_t* out_y) {
  if (x->ndim != 4 || choir_view_count(x) < 1 || region->height < 1 ||
      region->width < 1 || region->height > CHOIR__ONNX_LARGEST ||
      region->width > CHOIR__ONNX_LARGEST) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions, regions become %lld x %lld; needs 4, with "
         "elements, and sizes from 1 to %d",
         x->ndim, (long long)region->height, (long long)region->width,
         CHOIR__ONNX_LARGEST);
    return false;
  }
  region->channels = x->shape[1];
  region->rows = x->shape[2];
  region->columns = x->shape[3];
  *out_y = (choir_view_t){
      .dtype = x->dtype,
      .ndim = 4,
      .shape = {rois, x->shape[1], region->height, region->width}};
  return true;
}

void choir__onnx_op_roi_align(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *rois = VIEW(1), *images = VIEW(2);
  if (!x || !rois || !images) return;
  if (rois->ndim != 2 || rois->shape[1] != 4 ||
      choir_view_count(images) != rois->shape[0]) {
    FAIL(INVALID_ARGUMENT,
         "the regions have %d dimensions; needs (n, 4), and n images",
         rois->ndim);
    return;
  }
  // Until version 16 places were not moved by half an element.
  const char* mode =
      choir__onnx_string(c, "coordinate_transformation_mode",
                         c->version < 16 ? "output_half_pixel" : "half_pixel");
  const bool is_half = strcmp(mode, "half_pixel") == 0;
  region_t region = {
      .height = choir__onnx_int(c, "output_height", 1),
      .width = choir__onnx_int(c, "output_width", 1),
      .sampling = choir__onnx_int(c, "sampling_ratio", 0),
      .scale = choir__onnx_float(c, "spatial_scale", 1),
      .offset = is_half ? 0.5 : 0,
      .keeps_size = is_half,
      .is_max = strcmp(choir__onnx_string(c, "mode", "avg"), "max") == 0};
  if (region.sampling > MAX_SAMPLING) {
    FAIL(UNIMPLEMENTED, "sampling_ratio is %lld; at most %d is possible",
         (long long)region.sampling, MAX_SAMPLING);
    return;
  }
  choir_view_t y;
  if (!set_region(c, x, rois->shape[0], &region, &y)) return;
  choir_var_t* const srcs[] = {IN(0), IN(1), IN(2)};
  choir_var_t* out;
  choir__onnx_host(c, "roi_align", run_align, &region, sizeof region, srcs, 3,
                   &y, 1, &out);
  OUT(0, out);
}

// From `*first` to before `*last`: bin k of `bins` of a side that begins at
// `start` with so many elements, within an image's side of `size`.
static void bin_of(int64_t k, int64_t bins, double start, double length,
                   int64_t size, int64_t* first, int64_t* last) {
  const double bin = length / (double)bins;
  const double limits[] = {start + floor((double)k * bin),
                           start + ceil((double)(k + 1) * bin)};
  int64_t whole[2];
  for (int32_t i = 0; i < 2; ++i)
    whole[i] = !(limits[i] > 0)           ? 0
               : limits[i] < (double)size ? (int64_t)limits[i]
                                          : size;
  *first = whole[0];
  *last = whole[1];
}

static choir_status_t run_max(const choir__onnx_array_t* srcs,
                              const choir__onnx_array_t* dsts,
                              const void* attrs) {
  const region_t* region = attrs;
  const int64_t images = srcs[0].view.shape[0];
  const int64_t bins = region->height * region->width;
  for (int64_t i = 0; i < dsts[0].count; ++i) {
    const int64_t roi = i / bins / region->channels;
    double numbers[5];
    for (int32_t k = 0; k < 5; ++k)
      numbers[k] = choir__onnx_number_at(&srcs[1], roi * 5 + k);
    if (!(numbers[0] >= 0 && numbers[0] < (double)images))
      return CHOIR_ERROR(OUT_OF_RANGE, "region %lld is of image %g of %lld",
                         (long long)roi, numbers[0], (long long)images);
    double edges[4];
    for (int32_t k = 0; k < 4; ++k)
      edges[k] = round(numbers[1 + k] * region->scale);
    int64_t rows[2], columns[2];
    bin_of(i % bins / region->width, region->height, edges[1],
           fmax(edges[3] - edges[1] + 1, 1), region->rows, &rows[0], &rows[1]);
    bin_of(i % region->width, region->width, edges[0],
           fmax(edges[2] - edges[0] + 1, 1), region->columns, &columns[0],
           &columns[1]);
    const int64_t plane =
        (int64_t)numbers[0] * region->channels + i / bins % region->channels;
    double most = 0;
    bool is_first = true;
    for (int64_t r = rows[0]; r < rows[1]; ++r)
      for (int64_t k = columns[0]; k < columns[1]; ++k) {
        const double value = choir__onnx_number_at(
            &srcs[0], (plane * region->rows + r) * region->columns + k);
        if (is_first || value > most) most = value;
        is_first = false;
      }
    choir__onnx_set_number(&dsts[0], i, most);
  }
  return NULL;
}

void choir__onnx_op_max_roi_pool(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *rois = VIEW(1);
  if (!x || !rois) return;
  int32_t count;
  const int64_t* sizes = choir__onnx_ints(c, "pooled_shape", &count);
  if (count != 2 || rois->ndim != 2 || rois->shape[1] != 5) {
    FAIL(INVALID_ARGUMENT,
         "pooled_shape has %d numbers, the regions %d dimensions; needs 2 and "
         "(n, 5)",
         count, rois->ndim);
    return;
  }
  region_t region = {.height = sizes[0],
                     .width = sizes[1],
                     .scale = choir__onnx_float(c, "spatial_scale", 1)};
  choir_view_t y;
  if (!set_region(c, x, rois->shape[0], &region, &y)) return;
  choir_var_t* const srcs[] = {IN(0), IN(1)};
  choir_var_t* out;
  choir__onnx_host(c, "max_roi_pool", run_max, &region, sizeof region, srcs, 2,
                   &y, 1, &out);
  OUT(0, out);
}
