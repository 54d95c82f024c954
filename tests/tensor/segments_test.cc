// SPDX-License-Identifier: Apache-2.0
// Sums over rows in segments: the bits of one call for each segment and a
// binary tree of additions, by kernels that take segments and where there is
// none.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/reproducible_cpu.h"

namespace {

using choir::testing::Attrs;
using choir::testing::Count;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::Read;
using choir::testing::ReproducibleCpu;
using choir::testing::Shape;
using choir::testing::TensorPtr;
using Sums = std::vector<std::vector<float>>;

class SegmentsTest : public ::testing::Test {
 protected:
  void TearDown() override { choir__isa_limit(CHOIR__ISA_AVX512); }

  // Results, written to given places or not.
  static Sums Run(choir_op_t op, const std::vector<choir_tensor_t*>& srcs,
                  uint32_t cut, const void* attrs, int64_t segment,
                  bool is_given) {
    choir_device_t* device = choir_tensor_device(srcs[0]);
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    const int32_t count = static_cast<int32_t>(srcs.size());
    choir_stream_t* stream = choir_device_stream(device);
    for (int i = 0; i < (is_given ? 2 : 1); ++i)
      EXPECT_OK(choir__op_run_segments(stream, op, srcs.data(), count, cut,
                                       attrs, segment, dsts));
    Sums sums;
    for (int32_t i = 0; i < choir_op_result_count(op); ++i) {
      sums.push_back(Read<float>(dsts[i]));
      choir_tensor_release(dsts[i]);
    }
    return sums;
  }

  // The definition.
  static Sums Tree(choir_op_t op, const std::vector<choir_tensor_t*>& srcs,
                   uint32_t cut, const void* attrs, int64_t segment,
                   int64_t first, int64_t count) {
    if (count > 1) {
      int64_t half = 1;
      while (half * 2 < count) half *= 2;
      Sums left = Tree(op, srcs, cut, attrs, segment, first, half);
      const Sums right =
          Tree(op, srcs, cut, attrs, segment, first + half, count - half);
      for (size_t k = 0; k < left.size(); ++k)
        for (size_t i = 0; i < left[k].size(); ++i) left[k][i] += right[k][i];
      return left;
    }
    std::vector<TensorPtr> parts;
    std::vector<choir_tensor_t*> one;
    for (size_t i = 0; i < srcs.size(); ++i) {
      choir_view_t view = *choir_tensor_view(srcs[i]);
      if (cut >> i & 1) {
        view.offset += first * segment * view.strides[0];
        view.shape[0] = std::min(segment, view.shape[0] - first * segment);
      }
      choir_tensor_t* part = nullptr;
      EXPECT_OK(choir_tensor_from_view(&view, &part));
      parts.emplace_back(part);
      one.push_back(part);
    }
    Sums sums;
    for (const TensorPtr& result : choir::testing::Results(op, one, attrs))
      sums.push_back(Read<float>(result));
    return sums;
  }

  static bool HaveOneValue(const Sums& a, const Sums& b) {
    if (a.size() != b.size()) return false;
    for (size_t k = 0; k < a.size(); ++k)
      for (size_t i = 0; i < a[k].size(); ++i)
        if (memcmp(&a[k][i], &b[k][i], sizeof(float)) != 0 &&
            !(std::isnan(a[k][i]) && std::isnan(b[k][i])))
          return false;
    return true;
  }

  using Sources = std::function<std::vector<TensorPtr>(choir_device_t*)>;

  // On all instruction sets, for 1 and 3 threads.
  static void Expect(choir_op_t op, const Sources& make, uint32_t cut,
                     const void* attrs, int64_t segment) {
    Sums wanted;
    for (int isa = CHOIR__ISA_BASE; isa <= CHOIR__ISA_AVX512; ++isa) {
      if (choir__isa_limit(static_cast<choir__isa_t>(isa)) != isa) continue;
      for (int threads : {1, 3}) {
        const std::vector<TensorPtr> made = make(ReproducibleCpu(threads));
        std::vector<choir_tensor_t*> srcs;
        for (const TensorPtr& src : made) srcs.push_back(src.get());
        const int64_t rows = choir_tensor_shape(
            srcs[static_cast<size_t>(__builtin_ctz(cut))])[0];
        if (wanted.empty())
          wanted =
              Tree(op, srcs, cut, attrs, segment, 0, (rows - 1) / segment + 1);
        for (bool is_given : {false, true})
          EXPECT_TRUE(HaveOneValue(Run(op, srcs, cut, attrs, segment, is_given),
                                   wanted))
              << choir_op_name(op) << " of " << rows << " rows, segments of "
              << segment << ", instruction set " << isa << ", threads "
              << threads;
      }
    }
  }
};

TEST_F(SegmentsTest, Products) {
  auto attrs = Attrs<choir_matmul_attrs_t>(CHOIR_OP_MATMUL);
  attrs.transpose_a = true;
  for (const Shape& size :  // rows, columns of both, segment
       {Shape{192, 100, 70, 8}, Shape{80, 33, 500, 8}, Shape{7, 1, 1, 1},
        Shape{41, 25, 64, 40}, Shape{12 * 64, 50, 40, 64}, Shape{5, 8, 32, 9},
        Shape{1000, 3, 17, 1}, Shape{9000, 20, 10, 100}})
    Expect(
        CHOIR_OP_MATMUL,
        [&](choir_device_t* device) {
          std::vector<TensorPtr> made;
          for (size_t i = 1; i < 3; ++i)
            made.push_back(
                Make(device, {size[0], size[i]},
                     Floats(size[0] * size[i], static_cast<uint32_t>(i))));
          return made;
        },
        3, &attrs, size[3]);
}

TEST_F(SegmentsTest, Sums) {
  const choir_sum_attrs_t attrs = {0, false};
  for (int64_t rows : {1, 8, 20, 80})
    Expect(
        CHOIR_OP_SUM,
        [&](choir_device_t* device) {
          std::vector<TensorPtr> made;
          made.push_back(Make(device, {rows, 37}, Floats(rows * 37, 1)));
          return made;
        },
        1, &attrs, 8);
}

// x, argmax indices, W, y, dy. A NaN in the image of `spoilt`, or none.
std::vector<TensorPtr> PooledSources(choir_device_t* device, const Shape& image,
                                     const Shape& filters, int64_t spoilt) {
  const Shape pooled = {image[0], filters[0], (image[2] - filters[2] + 1) / 2,
                        (image[3] - filters[3] + 1) / 2};
  std::vector<float> x = Floats(Count(image), 1);
  if (spoilt >= 0)
    x[static_cast<size_t>(spoilt * image[1] * image[2] * image[3] + 5)] = NAN;
  std::vector<uint8_t> places;
  for (int64_t i = 0; i < Count(pooled); ++i)
    places.push_back(static_cast<uint8_t>((i * 7 + i / 5) % 4));
  std::vector<TensorPtr> made;
  made.push_back(MakeChannelsLast(device, image, x));
  made.push_back(MakeChannelsLast(device, pooled, places));
  made.push_back(Make(device, filters, Floats(Count(filters), 2)));
  made.push_back(MakeChannelsLast(device, pooled, Floats(Count(pooled), 3)));
  made.push_back(MakeChannelsLast(device, pooled, Floats(Count(pooled), 4)));
  return made;
}

TEST_F(SegmentsTest, GradientsOfFilters) {
  auto attrs = Attrs<choir_conv2d_max_pool2d_attrs_t>(
      CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT);
  attrs.conv.activation = CHOIR_ACTIVATION_RELU;
  for (int64_t* of : {attrs.pool.kernel, attrs.pool.stride}) of[0] = of[1] = 2;
  for (int64_t spoilt : {-1, 0, 21})
    for (int64_t segment : {1, 8, 20})
      for (const Shape& filters : {Shape{6, 1, 5, 5}, Shape{5, 16, 3, 3}})
        Expect(
            CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT,
            [&](choir_device_t* device) {
              return PooledSources(device, {22, filters[1], 12, 10}, filters,
                                   spoilt);
            },
            1 | 2 | 8 | 16, &attrs, segment);
}

// x, W (its shape), dy; padding of 1.
std::vector<TensorPtr> ConvolvedSources(choir_device_t* device,
                                        const Shape& image,
                                        const Shape& filters, int64_t spoilt) {
  const Shape result = {image[0], filters[0], image[2], image[3]};
  std::vector<float> x = Floats(Count(image), 1);
  if (spoilt >= 0)
    x[static_cast<size_t>(spoilt * image[1] * image[2] * image[3] + 5)] = NAN;
  std::vector<TensorPtr> made;
  made.push_back(MakeChannelsLast(device, image, x));
  made.push_back(Make(device, filters, Floats(Count(filters), 2)));
  made.push_back(MakeChannelsLast(device, result, Floats(Count(result), 3)));
  return made;
}

// By products, and by Winograd's algorithm; with so many filters that segments
// of one image have no room together, too.
TEST_F(SegmentsTest, GradientsOfConvolutions) {
  auto attrs = Attrs<choir_conv2d_attrs_t>(CHOIR_OP_CONV2D_GRAD_WEIGHT);
  attrs.padding[0] = attrs.padding[1] = 1;
  for (int64_t spoilt : {-1, 0, 21})
    for (int64_t segment : {1, 8, 20})
      for (const Shape& filters :
           {Shape{6, 4, 3, 3}, Shape{32, 48, 3, 3}, Shape{80, 32, 3, 3}})
        Expect(
            CHOIR_OP_CONV2D_GRAD_WEIGHT,
            [&](choir_device_t* device) {
              return ConvolvedSources(device, {22, filters[1], 6, 9}, filters,
                                      spoilt);
            },
            1 | 4, &attrs, segment);
  Expect(
      CHOIR_OP_CONV2D_GRAD_WEIGHT,
      [&](choir_device_t* device) {
        return ConvolvedSources(device, {36, 240, 4, 4}, {240, 240, 3, 3}, -1);
      },
      1 | 4, &attrs, 1);
}

TEST_F(SegmentsTest, RowsThatDoNotAgree) {
  choir_device_t* device = ReproducibleCpu(1);
  TensorPtr a = Make(device, {4, 2}, Floats(8, 1));
  TensorPtr b = Make(device, {3, 2}, Floats(6, 1));
  choir_tensor_t* srcs[] = {a.get(), b.get()};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  auto attrs = Attrs<choir_matmul_attrs_t>(CHOIR_OP_MATMUL);
  attrs.transpose_a = true;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "source 1 has 3 rows, those before it 4",
      choir__op_run_segments(choir_device_stream(device), CHOIR_OP_MATMUL, srcs,
                             2, 3, &attrs, 2, dsts));
  EXPECT_EQ(dsts[0], nullptr);
}

}  // namespace
