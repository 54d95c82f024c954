// SPDX-License-Identifier: Apache-2.0
#include "tensor/strided_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Shape;

// Never read through: stands for "the same buffer".
choir_buffer_t* Buffer(int number) {
  static char places[4];
  return reinterpret_cast<choir_buffer_t*>(&places[number]);
}

choir_view_t View(const Shape& shape, const Shape& strides, int64_t offset,
                  choir_dtype_t dtype = CHOIR_DTYPE_F32) {
  choir_view_t view;
  EXPECT_OK(choir_view_make(dtype, static_cast<int32_t>(shape.size()),
                            shape.data(), &view));
  for (size_t k = 0; k < strides.size(); ++k) view.strides[k] = strides[k];
  view.offset = offset;
  view.buffer = Buffer(0);
  return view;
}

std::vector<int64_t> Offsets(const choir_view_t& view) {
  std::vector<int64_t> offsets;
  choir__walk_t walk;
  const choir_view_t* views[] = {&view};
  for (bool more = choir__walk_start(&walk, views, 1); more;
       more = choir__walk_next(&walk))
    offsets.push_back(walk.offsets[0]);
  return offsets;
}

TEST(Walk, GoesInRowMajorOrder) {
  EXPECT_EQ(Offsets(View({2, 3}, {10, 2}, 5)), (Shape{5, 7, 9, 15, 17, 19}));
  EXPECT_EQ(Offsets(View({2, 2}, {0, 1}, 0)), (Shape{0, 1, 0, 1}));
  EXPECT_EQ(Offsets(View({}, {}, 3)), (Shape{3}));
  EXPECT_EQ(Offsets(View({2, 0, 3}, {0, 3, 1}, 3)), (Shape{}));
}

TEST(Walk, SeveralViewsTogether) {
  choir_view_t a = View({2, 3}, {3, 1}, 0);
  choir_view_t b = View({2, 3}, {1, 2}, 100);
  const choir_view_t* views[] = {&a, &b};
  choir__walk_t walk;
  std::vector<int64_t> seen;
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk)) {
    seen.push_back(walk.offsets[0]);
    seen.push_back(walk.offsets[1]);
  }
  EXPECT_EQ(seen, (Shape{0, 100, 1, 102, 2, 104, 3, 101, 4, 103, 5, 105}));
}

TEST(StridedCopy, EveryElementSizeAndOrder) {
  std::mt19937 random(1);
  for (choir_dtype_t dtype :
       {CHOIR_DTYPE_U8, CHOIR_DTYPE_F16, CHOIR_DTYPE_F32, CHOIR_DTYPE_F64}) {
    size_t bytes = choir_dtype_bytes(dtype);
    for (int round = 0; round < 60; ++round) {
      // A shape of up to four dimensions, each side stored in its own order
      // with gaps.
      Shape shape;
      int ndim = static_cast<int>(random() % 5);
      for (int k = 0; k < ndim; ++k) shape.push_back(1 + random() % 4);
      choir_view_t views[2];
      for (choir_view_t& view : views) {
        Shape order, strides(shape.size());
        for (int k = 0; k < ndim; ++k) order.push_back(k);
        std::shuffle(order.begin(), order.end(), random);
        int64_t stride = 1 + random() % 2;
        for (int64_t k : order) {
          strides[static_cast<size_t>(k)] = stride;
          stride = stride * shape[static_cast<size_t>(k)] + random() % 2;
        }
        view = View(shape, strides, random() % 3, dtype);
      }
      std::vector<unsigned char> from(
          bytes *
          static_cast<size_t>(views[0].offset + choir_view_extent(&views[0])));
      for (unsigned char& byte : from)
        byte = static_cast<unsigned char>(random());
      std::vector<unsigned char> to(
          bytes * static_cast<size_t>(views[1].offset +
                                      choir_view_extent(&views[1])),
          0x5A);
      std::vector<unsigned char> expected = to;
      std::vector<int64_t> reads = Offsets(views[0]),
                           writes = Offsets(views[1]);
      for (size_t i = 0; i < reads.size(); ++i)
        std::memcpy(&expected[bytes * static_cast<size_t>(writes[i])],
                    &from[bytes * static_cast<size_t>(reads[i])], bytes);
      choir__strided_copy(&views[0], from.data(), &views[1], to.data());
      ASSERT_EQ(to, expected)
          << "round " << round << " of " << bytes << " bytes";
    }
  }
}

TEST(StridedCopy, RepeatsAndNothing) {
  float src[] = {1, 2, 3};
  float dst[] = {0, 0, 0, 0, 0, 0};
  choir_view_t from = View({2, 3}, {0, 1}, 0);
  choir_view_t to = View({2, 3}, {3, 1}, 0);
  choir__strided_copy(&from, src, &to, dst);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(dst[i], src[i % 3]);
  choir_view_t none = View({0, 3}, {3, 1}, 0);
  choir__strided_copy(&none, nullptr, &none, nullptr);
}

TEST(Views, Equal) {
  choir_view_t a = View({2, 3}, {3, 1}, 4);
  EXPECT_TRUE(choir__views_equal(&a, &a));
  choir_view_t b = a;
  b.buffer = Buffer(1);
  EXPECT_FALSE(choir__views_equal(&a, &b));
  b = a;
  b.offset = 5;
  EXPECT_FALSE(choir__views_equal(&a, &b));
  b = a;
  b.strides[1] = 2;
  EXPECT_FALSE(choir__views_equal(&a, &b));
  b = a;
  b.dtype = CHOIR_DTYPE_I32;
  EXPECT_FALSE(choir__views_equal(&a, &b));
  // The stride of a size of 1 says nothing.
  choir_view_t c = View({1, 3}, {3, 1}, 4);
  choir_view_t d = View({1, 3}, {7, 1}, 4);
  EXPECT_TRUE(choir__views_equal(&c, &d));
}

TEST(Views, Repeats) {
  EXPECT_FALSE(choir__view_repeats(
      std::vector<choir_view_t>{View({2, 3}, {3, 1}, 0)}.data()));
  choir_view_t zero = View({2, 3}, {0, 1}, 0);
  EXPECT_TRUE(choir__view_repeats(&zero));
  choir_view_t overlap = View({2, 3}, {2, 1}, 0);
  EXPECT_TRUE(choir__view_repeats(&overlap));
  choir_view_t one = View({1, 3}, {0, 1}, 0);
  EXPECT_FALSE(choir__view_repeats(&one));
  choir_view_t none = View({2, 0}, {0, 0}, 0);
  EXPECT_FALSE(choir__view_repeats(&none));
  choir_view_t reversed = View({2, 3}, {1, 2}, 0);
  EXPECT_FALSE(choir__view_repeats(&reversed));
}

// Against sets of offsets: never a missed overlap, and no false alarm where
// strides are alike.
TEST(Views, OverlapAgainstSets) {
  std::mt19937 random(2);
  int alarms = 0;
  for (int round = 0; round < 20000; ++round) {
    Shape strides, shapes[2];
    int64_t stride = 1;
    int ndim = static_cast<int>(random() % 4);
    for (int k = 0; k < ndim; ++k) {
      int64_t size = 1 + random() % 3;
      strides.push_back(stride);
      for (Shape& shape : shapes) shape.push_back(1 + random() % size);
      stride *= size + random() % 2;
    }
    choir_view_t a = View(shapes[0], strides, random() % 12);
    choir_view_t b = View(shapes[1], strides, random() % 12);
    std::vector<int64_t> a_offsets = Offsets(a);
    std::set<int64_t> in_a(a_offsets.begin(), a_offsets.end());
    bool meet = false;
    for (int64_t offset : Offsets(b)) meet |= in_a.count(offset) > 0;
    bool told = choir__views_overlap(&a, &b);
    if (meet) {
      ASSERT_TRUE(told) << "round " << round;
    }
    if (shapes[0] == shapes[1]) {
      ASSERT_EQ(told, meet) << "round " << round;
    }
    alarms += told && !meet;
  }
  EXPECT_LT(alarms, 4000);
}

TEST(Views, OverlapOfUnlikeViews) {
  choir_view_t a = View({4}, {1}, 0);
  choir_view_t b = View({4}, {1}, 4);
  EXPECT_FALSE(choir__views_overlap(&a, &b));
  b.offset = 3;
  EXPECT_TRUE(choir__views_overlap(&a, &b));
  b.buffer = Buffer(1);
  EXPECT_FALSE(choir__views_overlap(&a, &b));
  // By bytes: four f64 from element 1 are bytes 8 to 40.
  choir_view_t wide = View({4}, {1}, 1, CHOIR_DTYPE_F64);
  choir_view_t narrow = View({2}, {1}, 0);
  EXPECT_FALSE(choir__views_overlap(&wide, &narrow));
  narrow.shape[0] = 3;
  EXPECT_TRUE(choir__views_overlap(&wide, &narrow));
  choir_view_t none = View({0}, {1}, 0);
  EXPECT_FALSE(choir__views_overlap(&a, &none));
}

}  // namespace
