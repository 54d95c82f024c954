// SPDX-License-Identifier: Apache-2.0
#include "core/view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace {

using Dims = std::vector<int64_t>;

choir_view_t Make(const Dims& shape, choir_dtype_t dtype = CHOIR_DTYPE_F32) {
  choir_view_t view;
  EXPECT_OK(choir_view_make(dtype, static_cast<int32_t>(shape.size()),
                            shape.data(), &view));
  return view;
}

Dims Shape(const choir_view_t& view) {
  return Dims(view.shape, view.shape + view.ndim);
}

Dims Strides(const choir_view_t& view) {
  return Dims(view.strides, view.strides + view.ndim);
}

// The place of each element, in row-major order of the view: what two views of
// one buffer must agree on.
std::vector<int64_t> Places(const choir_view_t& view) {
  std::vector<int64_t> places;
  int64_t count = choir_view_count(&view);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t place = view.offset;
    for (int32_t k = view.ndim - 1; k >= 0; --k) {
      place += rest % view.shape[k] * view.strides[k];
      rest /= view.shape[k];
    }
    places.push_back(place);
  }
  return places;
}

std::string Print(const choir_view_t& view) {
  char text[512];
  return choir_view_print(&view, text, sizeof(text));
}

TEST(ViewTest, MakeIsRowMajor) {
  choir_view_t view = Make({2, 3, 4});
  EXPECT_EQ(Strides(view), (Dims{12, 4, 1}));
  EXPECT_EQ(choir_view_count(&view), 24);
  EXPECT_EQ(choir_view_extent(&view), 24);
  EXPECT_EQ(view.buffer, nullptr);
  EXPECT_EQ(view.offset, 0);
  EXPECT_TRUE(choir_view_is_contiguous(&view));
  EXPECT_TRUE(choir_view_is_dense(&view));

  choir_view_t scalar = Make({});
  EXPECT_EQ(choir_view_count(&scalar), 1);
  EXPECT_EQ(choir_view_extent(&scalar), 1);
  EXPECT_TRUE(choir_view_is_contiguous(&scalar));

  choir_view_t empty = Make({2, 0, 4});
  EXPECT_EQ(choir_view_count(&empty), 0);
  EXPECT_EQ(choir_view_extent(&empty), 0);
  EXPECT_TRUE(choir_view_is_contiguous(&empty));
  EXPECT_TRUE(choir_view_is_dense(&empty));
}

TEST(ViewTest, MakeRefusesWhatCannotBe) {
  choir_view_t view;
  Dims nine(9, 1);
  EXPECT_STATUS(INVALID_ARGUMENT, "9 dimensions; needs 0 to 8",
                choir_view_make(CHOIR_DTYPE_F32, 9, nine.data(), &view));
  EXPECT_STATUS(INVALID_ARGUMENT, "-1 dimensions",
                choir_view_make(CHOIR_DTYPE_F32, -1, nine.data(), &view));
  EXPECT_STATUS(INVALID_ARGUMENT, "no dtype",
                choir_view_make(CHOIR_DTYPE_COUNT, 1, nine.data(), &view));
  EXPECT_STATUS(INVALID_ARGUMENT, "shape is NULL",
                choir_view_make(CHOIR_DTYPE_F32, 1, nullptr, &view));
  EXPECT_OK(choir_view_make(CHOIR_DTYPE_F32, 0, nullptr, &view));
  Dims negative = {3, -1};
  EXPECT_STATUS(OUT_OF_RANGE, "(3, -1) of f32",
                choir_view_make(CHOIR_DTYPE_F32, 2, negative.data(), &view));
  Dims large = {int64_t{1} << 31, int64_t{1} << 30};
  EXPECT_OK(choir_view_make(CHOIR_DTYPE_U8, 2, large.data(), &view));
  EXPECT_STATUS(OUT_OF_RANGE, "63 bits",
                choir_view_make(CHOIR_DTYPE_F32, 2, large.data(), &view));
  // A size of 0 does not hide the others.
  Dims hidden = {int64_t{1} << 32, int64_t{1} << 32, 0};
  EXPECT_STATUS(OUT_OF_RANGE, "63 bits",
                choir_view_make(CHOIR_DTYPE_U8, 3, hidden.data(), &view));
  EXPECT_EQ(view.ndim, 0);
}

TEST(ViewTest, SizesThatOverflowAreTheLargest) {
  choir_view_t view = Make({2, 2});
  view.shape[0] = view.shape[1] = int64_t{1} << 40;
  EXPECT_EQ(choir_view_count(&view), INT64_MAX);
  view.strides[0] = int64_t{1} << 40;
  EXPECT_EQ(choir_view_extent(&view), INT64_MAX);
}

TEST(ViewTest, SameShape) {
  choir_view_t a = Make({2, 3});
  choir_view_t b = Make({2, 3}, CHOIR_DTYPE_U8);
  choir_view_t c = Make({3, 2});
  choir_view_t d = Make({2, 3, 1});
  EXPECT_TRUE(choir_view_same_shape(&a, &b));
  EXPECT_FALSE(choir_view_same_shape(&a, &c));
  EXPECT_FALSE(choir_view_same_shape(&a, &d));
}

TEST(ViewTest, Layouts) {
  choir_view_t view = Make({2, 3, 4, 5});
  EXPECT_FALSE(choir_view_is_channels_last(&view));
  choir_view_set_channels_last(&view);
  EXPECT_EQ(Strides(view), (Dims{60, 1, 15, 3}));
  EXPECT_TRUE(choir_view_is_channels_last(&view));
  EXPECT_FALSE(choir_view_is_contiguous(&view));
  EXPECT_TRUE(choir_view_is_dense(&view));
  EXPECT_EQ(choir_view_extent(&view), 120);
  choir_view_set_contiguous(&view);
  EXPECT_TRUE(choir_view_is_contiguous(&view));

  // One channel: both at once.
  choir_view_t grey = Make({2, 1, 4, 5});
  EXPECT_TRUE(choir_view_is_contiguous(&grey));
  EXPECT_TRUE(choir_view_is_channels_last(&grey));
  choir_view_set_channels_last(&grey);
  EXPECT_TRUE(choir_view_is_contiguous(&grey));
  // The stride of a size of 1 does not matter.
  grey.strides[1] = 12345;
  EXPECT_TRUE(choir_view_is_contiguous(&grey));
  EXPECT_TRUE(choir_view_is_channels_last(&grey));
  EXPECT_TRUE(choir_view_is_dense(&grey));

  // Channels-last needs four dimensions.
  choir_view_t matrix = Make({2, 3});
  EXPECT_FALSE(choir_view_is_channels_last(&matrix));
  choir_view_set_channels_last(&matrix);
  EXPECT_TRUE(choir_view_is_contiguous(&matrix));

  // Gaps and repeats are not dense.
  choir_view_t gap = Make({2, 3});
  gap.strides[0] = 4;
  EXPECT_FALSE(choir_view_is_dense(&gap));
  choir_view_t repeat = Make({2, 3});
  repeat.strides[0] = 0;
  EXPECT_FALSE(choir_view_is_dense(&repeat));
  choir_view_t overlap = Make({3, 3});
  overlap.strides[0] = 1;
  EXPECT_FALSE(choir_view_is_dense(&overlap));
}

TEST(ViewTest, LayoutLike) {
  auto like = [](choir_view_t view, const choir_view_t& other) {
    choir_view_set_layout_like(&view, &other);
    return Strides(view);
  };
  choir_view_t view = Make({6, 20, 12, 10});
  choir_view_t last = Make({2, 3, 4, 5});
  choir_view_set_channels_last(&last);
  EXPECT_EQ(like(view, last), (Dims{2400, 1, 200, 20}));
  EXPECT_EQ(like(view, Make({2, 3, 4, 5})), Strides(view));
  // Sizes of 1 keep their place: one channel that is stored last, one stored
  // first, and pixels that were pooled away.
  choir_view_t grey = Make({2, 1, 4, 5});
  EXPECT_EQ(like(view, grey), Strides(view));
  choir_view_set_channels_last(&grey);
  EXPECT_EQ(like(view, grey), (Dims{2400, 1, 200, 20}));
  choir_view_t pooled = Make({2, 3, 1, 1});
  EXPECT_EQ(like(view, pooled), Strides(view));
  choir_view_set_channels_last(&pooled);
  EXPECT_EQ(like(view, pooled), (Dims{2400, 1, 200, 20}));
  // Repeats, or another number of dimensions, say nothing: row-major.
  choir_view_t repeated = last;
  repeated.strides[1] = 0;
  EXPECT_EQ(like(view, repeated), Strides(view));
  EXPECT_EQ(like(view, Make({2, 3})), Strides(view));
  // A transposed matrix, and one with gaps.
  choir_view_t matrix = Make({7, 8});
  choir_view_t transposed = Make({2, 3});
  transposed.strides[0] = 1;
  transposed.strides[1] = 100;
  EXPECT_EQ(like(matrix, transposed), (Dims{1, 7}));
}

TEST(ViewTest, ReshapeKeepsTheElements) {
  // Every view that a chain of slices, transposes and broadcasts gives, into
  // every shape of the same count: true exactly when strides can express it
  // (checked by the places), and then the places agree.
  std::mt19937 random(3);
  const std::vector<Dims> shapes = {
      {24},         {2, 12},   {12, 2},      {2, 3, 4},       {4, 3, 2},
      {1, 24},      {24, 1},   {1, 4, 1, 6}, {2, 2, 2, 3},    {3, 8},
      {2, 1, 3, 4}, {6, 4, 1}, {8, 3},       {2, 2, 1, 3, 2},
  };
  int expressed = 0;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    choir_view_t view = Make(shapes[random() % shapes.size()]);
    view.offset = 5;
    if (random() % 2) {
      std::vector<int32_t> axes(static_cast<size_t>(view.ndim));
      for (size_t k = 0; k < axes.size(); ++k) axes[k] = static_cast<int>(k);
      std::shuffle(axes.begin(), axes.end(), random);
      ASSERT_OK(choir_view_transpose(&view, axes.data(), &view));
    }
    if (random() % 3 == 0) view.strides[0] = 0;
    if (random() % 3 == 0) {
      for (int32_t k = 0; k < view.ndim; ++k) view.strides[k] *= 2;
    }
    if (random() % 4 == 0) view.strides[0] += 7;
    const Dims& shape = shapes[random() % shapes.size()];
    choir_view_t result;
    if (choir_view_reshape(&view, static_cast<int32_t>(shape.size()),
                           shape.data(), &result)) {
      ++expressed;
      ASSERT_EQ(Shape(result), shape);
      ASSERT_EQ(Places(result), Places(view)) << Print(view);
      continue;
    }
    ++refused;
    // Is it truly impossible? Strides follow from the places of the first
    // element and its neighbours; try those.
    std::vector<int64_t> places = Places(view);
    choir_view_t candidate = Make(shape);
    candidate.offset = view.offset;
    for (int32_t k = 0; k < candidate.ndim; ++k) {
      if (shape[static_cast<size_t>(k)] == 1) continue;
      choir_view_t row_major = Make(shape);
      candidate.strides[k] =
          places[static_cast<size_t>(row_major.strides[k])] - places[0];
    }
    ASSERT_NE(Places(candidate), places) << Print(view) << Print(candidate);
  }
  EXPECT_GT(expressed, 200);
  EXPECT_GT(refused, 200);
}

TEST(ViewTest, ReshapeEdges) {
  choir_view_t result;
  choir_view_t view = Make({2, 3});
  Dims five = {5};
  EXPECT_FALSE(choir_view_reshape(&view, 1, five.data(), &result));
  EXPECT_FALSE(choir_view_reshape(&view, 9, five.data(), &result));
  EXPECT_FALSE(choir_view_reshape(&view, -1, five.data(), &result));
  Dims negative = {-2, -3};
  EXPECT_FALSE(choir_view_reshape(&view, 2, negative.data(), &result));
  // A scalar and a shape of ones are each other.
  choir_view_t scalar = Make({});
  Dims ones = {1, 1, 1};
  ASSERT_TRUE(choir_view_reshape(&scalar, 3, ones.data(), &result));
  EXPECT_EQ(Shape(result), ones);
  ASSERT_TRUE(choir_view_reshape(&result, 0, nullptr, &result));
  EXPECT_EQ(result.ndim, 0);
  // Empty views take any empty shape.
  choir_view_t empty = Make({0, 3});
  Dims other = {4, 0, 2};
  ASSERT_TRUE(choir_view_reshape(&empty, 3, other.data(), &result));
  EXPECT_EQ(Shape(result), other);
  // In place, even with the view's own shape.
  ASSERT_TRUE(choir_view_reshape(&view, view.ndim, view.shape, &view));
  EXPECT_EQ(Shape(view), (Dims{2, 3}));
  choir_view_t other_view = Make({4, 3});
  choir_view_t row = Make({3});
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F64, 2, other_view.shape, &other_view));
  EXPECT_EQ(Shape(other_view), (Dims{4, 3}));
  ASSERT_OK(choir_view_broadcast(&row, 2, other_view.shape, &other_view));
  EXPECT_EQ(Shape(other_view), (Dims{4, 3}));
  Dims flat = {6};
  ASSERT_TRUE(choir_view_reshape(&view, 1, flat.data(), &view));
  EXPECT_EQ(Strides(view), (Dims{1}));
}

TEST(ViewTest, Transpose) {
  choir_view_t view = Make({2, 3, 4});
  int32_t axes[] = {2, 0, 1};
  choir_view_t result;
  ASSERT_OK(choir_view_transpose(&view, axes, &result));
  EXPECT_EQ(Shape(result), (Dims{4, 2, 3}));
  EXPECT_EQ(Strides(result), (Dims{1, 12, 4}));
  EXPECT_FALSE(choir_view_is_contiguous(&result));
  EXPECT_TRUE(choir_view_is_dense(&result));
  int32_t twice[] = {0, 1, 1};
  EXPECT_STATUS(INVALID_ARGUMENT, "axes[2] is 1; needs each of 0 to 2 once",
                choir_view_transpose(&view, twice, &result));
  int32_t outside[] = {0, 3, 1};
  EXPECT_STATUS(INVALID_ARGUMENT, "axes[1] is 3",
                choir_view_transpose(&view, outside, &result));
  int32_t negative[] = {-1, 0, 1};
  EXPECT_STATUS(INVALID_ARGUMENT, "axes[0] is -1",
                choir_view_transpose(&view, negative, &result));
}

TEST(ViewTest, Slice) {
  choir_view_t view = Make({4, 10});
  view.offset = 3;
  choir_view_t result;
  ASSERT_OK(choir_view_slice(&view, 1, 2, 9, 3, &result));
  EXPECT_EQ(Shape(result), (Dims{4, 3}));
  EXPECT_EQ(Strides(result), (Dims{10, 3}));
  EXPECT_EQ(result.offset, 5);
  EXPECT_EQ(choir_view_extent(&result), 30 + 6 + 1);
  ASSERT_OK(choir_view_slice(&view, 0, 4, 4, 1, &result));
  EXPECT_EQ(choir_view_count(&result), 0);
  EXPECT_EQ(result.offset, 3);  // never past the buffer
  choir_view_t empty = Make({0, 10});
  ASSERT_OK(choir_view_slice(&empty, 1, 2, 9, 3, &result));
  EXPECT_EQ(Shape(result), (Dims{0, 3}));
  EXPECT_EQ(result.offset, 0);
  ASSERT_OK(choir_view_slice(&view, 0, 3, 4, INT64_MAX, &result));
  EXPECT_EQ(Shape(result), (Dims{1, 10}));
  EXPECT_EQ(result.offset, 33);
  ASSERT_OK(choir_view_slice(&view, 0, 0, 4, INT64_MAX, &result));
  EXPECT_EQ(Shape(result), (Dims{1, 10}));
  EXPECT_STATUS(OUT_OF_RANGE, "axis 2; needs 0 to 1",
                choir_view_slice(&view, 2, 0, 1, 1, &result));
  EXPECT_STATUS(OUT_OF_RANGE, "axis -1",
                choir_view_slice(&view, -1, 0, 1, 1, &result));
  EXPECT_STATUS(OUT_OF_RANGE, "needs 0 <= start <= stop <= 10",
                choir_view_slice(&view, 1, 0, 11, 1, &result));
  EXPECT_STATUS(OUT_OF_RANGE, "elements 5 to 4",
                choir_view_slice(&view, 1, 5, 4, 1, &result));
  EXPECT_STATUS(OUT_OF_RANGE, "elements -1 to 4",
                choir_view_slice(&view, 1, -1, 4, 1, &result));
  EXPECT_STATUS(OUT_OF_RANGE, "step 0",
                choir_view_slice(&view, 1, 0, 4, 0, &result));
}

// Empty views may have sizes and strides whose products fit nowhere; of others
// that is an error.
TEST(ViewTest, NumbersThatDoNotFit) {
  choir_view_t result;
  choir_view_t empty = Make({0, int64_t{1} << 40, int64_t{1} << 22});
  empty.strides[1] = INT64_MAX;
  ASSERT_OK(choir_view_slice(&empty, 1, 0, 100, 2, &result));
  EXPECT_EQ(Shape(result), (Dims{0, 50, int64_t{1} << 22}));
  choir_view_t wide = Make({4});
  wide.strides[0] = INT64_MAX / 2;
  EXPECT_STATUS(OUT_OF_RANGE, "step 3 with stride",
                choir_view_slice(&wide, 0, 0, 4, 3, &result));
  const int64_t square[] = {2, 2};
  EXPECT_TRUE(choir_view_reshape(&wide, 2, square, &result));
  EXPECT_EQ(Strides(result), (Dims{INT64_MAX / 2 * 2, INT64_MAX / 2}));
  wide.strides[0] = INT64_MAX / 2 + 1;
  EXPECT_FALSE(choir_view_reshape(&wide, 2, square, &result));
}

TEST(ViewTest, Broadcast) {
  choir_view_t view = Make({3, 1});
  choir_view_t result;
  Dims shape = {2, 3, 4};
  ASSERT_OK(choir_view_broadcast(&view, 3, shape.data(), &result));
  EXPECT_EQ(Shape(result), shape);
  EXPECT_EQ(Strides(result), (Dims{0, 1, 0}));
  EXPECT_EQ(choir_view_extent(&result), 3);
  Dims wrong = {2, 4, 4};
  EXPECT_STATUS(INVALID_ARGUMENT, "shape (3, 1) to (2, 4, 4)",
                choir_view_broadcast(&view, 3, wrong.data(), &result));
  Dims fewer = {3};
  EXPECT_STATUS(INVALID_ARGUMENT, "to (3)",
                choir_view_broadcast(&view, 1, fewer.data(), &result));
  Dims large = {int64_t{1} << 62, 3, 4};
  EXPECT_STATUS(OUT_OF_RANGE, "63 bits",
                choir_view_broadcast(&view, 3, large.data(), &result));
  Dims empty = {3, 0};
  ASSERT_OK(choir_view_broadcast(&view, 2, empty.data(), &result));
  EXPECT_EQ(choir_view_count(&result), 0);
  EXPECT_STATUS(INVALID_ARGUMENT, "9 dimensions",
                choir_view_broadcast(&view, 9, large.data(), &result));
}

TEST(ViewTest, BroadcastShape) {
  auto shape = [](const Dims& a, const Dims& b) {
    choir_view_t va = Make(a);
    choir_view_t vb = Make(b);
    int32_t ndim = -1;
    int64_t out[CHOIR_MAX_NDIM];
    EXPECT_OK(choir_view_broadcast_shape(&va, &vb, &ndim, out));
    return Dims(out, out + ndim);
  };
  EXPECT_EQ(shape({2, 3}, {3}), (Dims{2, 3}));
  EXPECT_EQ(shape({}, {}), (Dims{}));
  EXPECT_EQ(shape({5, 1, 4}, {3, 1}), (Dims{5, 3, 4}));
  EXPECT_EQ(shape({1}, {0}), (Dims{0}));
  choir_view_t a = Make({2, 3});
  choir_view_t b = Make({2, 4});
  int32_t ndim = -1;
  int64_t out[CHOIR_MAX_NDIM];
  EXPECT_STATUS(INVALID_ARGUMENT, "shapes (2, 3) and (2, 4)",
                choir_view_broadcast_shape(&a, &b, &ndim, out));
}

TEST(ViewTest, Print) {
  EXPECT_EQ(Print(Make({64, 20, 24, 24})), "f32 (64, 20, 24, 24)");
  EXPECT_EQ(Print(Make({}, CHOIR_DTYPE_I64)), "i64 ()");
  EXPECT_EQ(Print(Make({7}, CHOIR_DTYPE_U8)), "u8 (7)");
  choir_view_t last = Make({2, 3, 4, 5});
  choir_view_set_channels_last(&last);
  EXPECT_EQ(Print(last), "f32 (2, 3, 4, 5) strides (60, 1, 15, 3)");
  char text[8];
  EXPECT_STREQ(choir_view_print(&last, text, sizeof(text)), "f32 (2,");
  EXPECT_EQ(choir_view_print(&last, text, 0), text);
  // The longest there is.
  choir_view_t wide = Make({1, 1, 1, 1, 1, 1, 1, 1});
  for (int32_t k = 0; k < 8; ++k) wide.shape[k] = wide.strides[k] = INT64_MAX;
  EXPECT_NE(Print(wide).find("9223372036854775807)"), std::string::npos);
}

}  // namespace
