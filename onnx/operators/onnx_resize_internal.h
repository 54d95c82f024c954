// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_RESIZE_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_RESIZE_INTERNAL_H_

#include "onnx/operators/onnx_constants_internal.h"

// How places of a result are mapped to places of x, and weights follow.
#define CHOIR__ONNX_COORDINATES(X)                \
  X(HALF_PIXEL, "half_pixel")                     \
  X(HALF_PIXEL_SYMMETRIC, "half_pixel_symmetric") \
  X(PYTORCH_HALF_PIXEL, "pytorch_half_pixel")     \
  X(ALIGN_CORNERS, "align_corners")               \
  X(ASYMMETRIC, "asymmetric")                     \
  X(CROP, "tf_crop_and_resize")                   \
  X(HALF_PIXEL_FOR_NN, "tf_half_pixel_for_nn")
#define CHOIR__ONNX_ROUNDINGS(X)              \
  X(ROUND_PREFER_FLOOR, "round_prefer_floor") \
  X(ROUND_PREFER_CEIL, "round_prefer_ceil")   \
  X(FLOOR, "floor")                           \
  X(CEIL, "ceil")                             \
  X(SIMPLE, "simple")
#define CHOIR__ONNX_INTERPOLATIONS(X) \
  X(NEAREST, "nearest")               \
  X(LINEAR, "linear")                 \
  X(CUBIC, "cubic")
#define CHOIR__ONNX_ENUM_(NAME, text) CHOIR__ONNX_##NAME,
enum { CHOIR__ONNX_COORDINATES(CHOIR__ONNX_ENUM_) };
enum { CHOIR__ONNX_ROUNDINGS(CHOIR__ONNX_ENUM_) };
enum { CHOIR__ONNX_INTERPOLATIONS(CHOIR__ONNX_ENUM_) };

typedef struct choir__onnx_resize_s {
  int32_t coordinates, rounding, interpolation;
  bool antialias, exclude_outside;
  double cubic, extrapolation;
} choir__onnx_resize_t;

// One axis of it.
typedef struct choir__onnx_stretch_s {
  int64_t in, out;
  double scale;
  double start, end;  // of the region, from 0 to 1
} choir__onnx_stretch_t;

// Where place k of the result lies in x.
double choir__onnx_origin(const choir__onnx_resize_t* resize,
                          const choir__onnx_stretch_t* axis, int64_t k);
// The element of x that is nearest.
int64_t choir__onnx_nearest(const choir__onnx_resize_t* resize,
                            const choir__onnx_stretch_t* axis, int64_t k);
// Adds the weights of x's elements for place k to a row of a matrix.
void choir__onnx_add_weights(const choir__onnx_resize_t* resize,
                             const choir__onnx_stretch_t* axis, int64_t k,
                             double* row);
// Whether place k lies outside of what x covers, for tf_crop_and_resize.
bool choir__onnx_is_outside(const choir__onnx_resize_t* resize,
                            const choir__onnx_stretch_t* axis, int64_t k);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_RESIZE_INTERNAL_H_
