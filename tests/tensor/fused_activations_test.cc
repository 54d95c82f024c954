// SPDX-License-Identifier: Apache-2.0
// Ops that are fused with an activation, against the ops that they stand for:
// NaN and infinities come through alike, wherever they come in, with every
// instruction set of the CPU, by the references and on a scripted GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tensor/fusion_def.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/tensor/fake_cudnn.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/fake_cuda.h"
#include "tests/testing/sanitized.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

using Tensors = std::vector<TensorPtr>;
using Sources = std::vector<choir_tensor_t*>;

constexpr uint32_t kScattered = kSanitized ? 4 : 12;

struct Place {
  const char* name;
  const char* device;
  choir__isa_t isa;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

class FusedActivations : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (choir__isa_limit(GetParam().isa) != GetParam().isa)
      GTEST_SKIP() << "this processor has no such instructions";
    if (is_gpu()) {
      cuda_ = std::make_unique<FakeCuda>();
      cudnn_ = std::make_unique<FakeCudnn>();
      CudaKernelsOnHost(true);
    }
    device_ = MakeDevice(GetParam().device);
  }
  void TearDown() override {
    device_.reset();
    CudaKernelsOnHost(false);
    choir__isa_limit(CHOIR__ISA_AVX512);
  }

  bool is_gpu() const { return std::string(GetParam().device) == "cuda"; }
  bool is_null() const { return std::string(GetParam().device) == "null"; }
  bool is_cpu() const { return std::string(GetParam().device) == "cpu"; }
  bool is_fast_cpu() const {
    return is_cpu() && GetParam().isa >= CHOIR__ISA_AVX2;
  }

  // Images lie as the kernels like them.
  TensorPtr Place4(const Shape& shape, const std::vector<float>& values) {
    return shape.size() == 4
               ? MakeChannelsLast<float>(device_.get(), shape, values)
               : Make<float>(device_.get(), shape, values);
  }

  using Op = std::function<Tensors(const Sources&)>;
  enum Numbers {
    kSameBits,  // of all that is not NaN
    kNear,      // sums may be taken in another order
  };

  // What both make of sources of these shapes: with NaN, infinities and zeros
  // in one source after the other, then scattered over all of them, then with
  // none. `fused` and `apart` return what they have in common.
  void Compare(const std::vector<Shape>& shapes, Numbers numbers,
               const Op& fused, const Op& apart) {
    const float special[] = {NAN, HUGE_VALF, -HUGE_VALF, -0.0f};
    int found = 0;
    for (size_t poisoned = 0; poisoned < shapes.size(); ++poisoned) {
      for (float value : special) {
        SCOPED_TRACE(std::to_string(value) + " in source " +
                     std::to_string(poisoned));
        std::vector<std::vector<float>> values = Start(shapes, 1);
        std::vector<float>& hit = values[poisoned];
        hit[hit.size() / 3] = hit.back() = value;
        found += CompareOnce(shapes, values, numbers, fused, apart);
        if (HasFailure()) return;
      }
    }
    EXPECT_GT(found, 0) << "NaN in no result";
    // One element in 10, in 80, in 640, in 5120.
    for (uint32_t seed = 2; seed < 2 + kScattered; ++seed) {
      SCOPED_TRACE("scattered, seed " + std::to_string(seed));
      const uint32_t rarity = 10u << seed % 4 * 3;
      std::vector<std::vector<float>> values = Start(shapes, seed);
      uint64_t state = seed;
      for (std::vector<float>& source : values)
        for (float& element : source) {
          state = state * 6364136223846793005ull + 1442695040888963407ull;
          const auto drawn = static_cast<uint32_t>(state >> 33);
          if (drawn % rarity == 0) element = special[drawn / rarity % 4];
        }
      CompareOnce(shapes, values, numbers, fused, apart);
      if (HasFailure()) return;
    }
    EXPECT_EQ(CompareOnce(shapes, Start(shapes, 1), numbers, fused, apart), 0);
  }

  static std::vector<std::vector<float>> Start(const std::vector<Shape>& shapes,
                                               uint32_t seed) {
    std::vector<std::vector<float>> values;
    for (const Shape& shape : shapes)
      values.push_back(Floats(
          Count(shape), 16 * seed + static_cast<uint32_t>(values.size())));
    return values;
  }

  // Returns how many elements are NaN.
  int CompareOnce(const std::vector<Shape>& shapes,
                  const std::vector<std::vector<float>>& values,
                  Numbers numbers, const Op& fused, const Op& apart) {
    Tensors held;
    Sources sources;
    for (size_t i = 0; i < shapes.size(); ++i) {
      held.push_back(Place4(shapes[i], values[i]));
      sources.push_back(held.back().get());
    }
    const Tensors got = fused(sources), want = apart(sources);
    EXPECT_EQ(got.size(), want.size());
    int found = 0;
    for (size_t i = 0; i < got.size() && !HasFailure(); ++i) {
      SCOPED_TRACE("result " + std::to_string(i));
      found += ExpectAlike(got[i].get(), want[i].get(), numbers);
    }
    return found;
  }

  // Returns how many are NaN.
  static int ExpectAlike(choir_tensor_t* got, choir_tensor_t* want,
                         Numbers numbers) {
    EXPECT_EQ(choir_tensor_dtype(got), choir_tensor_dtype(want));
    if (choir_tensor_dtype(want) == CHOIR_DTYPE_U8) {
      EXPECT_EQ(Read<uint8_t>(got), Read<uint8_t>(want));
      return 0;
    }
    const std::vector<float> a = Read<float>(got), b = Read<float>(want);
    EXPECT_EQ(a.size(), b.size());
    float largest = 1;
    for (float value : b)
      if (std::isfinite(value)) largest = std::fmax(largest, std::fabs(value));
    int count = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      const bool alike =
          std::isnan(b[i])       ? std::isnan(a[i])
          : numbers == kSameBits ? std::memcmp(&a[i], &b[i], sizeof a[i]) == 0
          : std::isinf(b[i])     ? a[i] == b[i]
                                 : std::fabs(a[i] - b[i]) <= 1e-4f * largest;
      EXPECT_TRUE(alike) << "element " << i << " is " << a[i]
                         << "; apart it is " << b[i];
      if (!alike) break;
      count += std::isnan(b[i]);
    }
    return count;
  }

  Tensors Run(choir_op_t op, const Sources& sources,
              const void* attrs = nullptr) {
    return Results(op, sources, attrs);
  }
  // Whether a kernel of the device's own does it.
  bool HasKernel(choir_op_t op, const Sources& sources, const void* attrs) {
    choir_tensor_t* none[CHOIR_OP_MAX_RESULTS] = {};
    return choir__op_has_kernel(device_.get(), op, sources.data(),
                                static_cast<int32_t>(sources.size()), attrs,
                                false, none);
  }

  choir_batch_norm_attrs_t norm_ = {0.01};

 private:
  std::unique_ptr<FakeCuda> cuda_;
  std::unique_ptr<FakeCudnn> cudnn_;

 protected:
  DevicePtr device_;
};

TEST_P(FusedActivations, Conv2d) {
  struct Problem {
    Shape x, w;
    int64_t padding;
  };
  // Of few samples, of many, of many channels, of one pixel.
  for (const Problem& problem : {Problem{{2, 3, 7, 6}, {4, 3, 3, 3}, 1},
                                 Problem{{16, 4, 8, 8}, {5, 4, 3, 3}, 0},
                                 Problem{{16, 64, 4, 4}, {64, 64, 3, 3}, 1},
                                 Problem{{3, 5, 6, 6}, {17, 5, 1, 1}, 0}}) {
    SCOPED_TRACE(::testing::PrintToString(problem.x));
    // The others have one way, which takes its time.
    if (problem.x[1] > 8 && !is_cpu()) continue;
    auto plain = Attrs<choir_conv2d_attrs_t>(CHOIR_OP_CONV2D);
    plain.padding[0] = plain.padding[1] = problem.padding;
    choir_conv2d_attrs_t relu = plain;
    relu.activation = CHOIR_ACTIVATION_RELU;
    Compare(
        {problem.x, problem.w, {problem.w[0]}}, kSameBits,
        [&](const Sources& s) { return Run(CHOIR_OP_CONV2D, s, &relu); },
        [&](const Sources& s) {
          const Tensors y = Run(CHOIR_OP_CONV2D, s, &plain);
          return Run(CHOIR_OP_RELU, {y[0].get()});
        });
    if (HasFailure()) return;
  }
}

// x, W, b of one kernel that takes all of it, where there is one.
choir_conv2d_max_pool2d_attrs_t ConvPool(int32_t activation) {
  auto attrs =
      Attrs<choir_conv2d_max_pool2d_attrs_t>(CHOIR_OP_CONV2D_MAX_POOL2D);
  attrs.conv.activation = activation;
  return attrs;
}
const Shape kX = {16, 4, 8, 8}, kW = {5, 4, 3, 3}, kPooled = {16, 5, 3, 3};

TEST_P(FusedActivations, Conv2dMaxPool2d) {
  for (int32_t activation : {CHOIR_ACTIVATION_NONE, CHOIR_ACTIVATION_RELU}) {
    SCOPED_TRACE(activation);
    const choir_conv2d_max_pool2d_attrs_t attrs = ConvPool(activation);
    const choir_conv2d_attrs_t plain = ConvPool(CHOIR_ACTIVATION_NONE).conv;
    Compare(
        {kX, kW, {kW[0]}}, is_fast_cpu() ? kSameBits : kNear,
        [&](const Sources& s) {
          EXPECT_TRUE(!is_fast_cpu() ||
                      HasKernel(CHOIR_OP_CONV2D_MAX_POOL2D, s, &attrs));
          return Run(CHOIR_OP_CONV2D_MAX_POOL2D, s, &attrs);
        },
        [&](const Sources& s) {
          Tensors y = Run(CHOIR_OP_CONV2D, s, &plain);
          if (activation == CHOIR_ACTIVATION_RELU)
            y = Run(CHOIR_OP_RELU, {y[0].get()});
          return Run(CHOIR_OP_MAX_POOL2D, {y[0].get()}, &attrs.pool);
        });
  }
}

TEST_P(FusedActivations, Conv2dMaxPool2dGradients) {
  TensorPtr argmax;
  {
    std::vector<uint8_t> places(static_cast<size_t>(Count(kPooled)));
    for (size_t i = 0; i < places.size(); ++i)
      places[i] = static_cast<uint8_t>(i * 7 / 3 % 4);
    argmax = MakeChannelsLast<uint8_t>(device_.get(), kPooled, places);
  }
  const TensorPtr image =
      Place4({16, 5, 6, 6}, std::vector<float>(16 * 5 * 6 * 6));
  for (int32_t activation : {CHOIR_ACTIVATION_NONE, CHOIR_ACTIVATION_RELU}) {
    SCOPED_TRACE(activation);
    const choir_conv2d_max_pool2d_attrs_t attrs = ConvPool(activation);
    const choir_conv2d_attrs_t plain = ConvPool(CHOIR_ACTIVATION_NONE).conv;
    const Op fused = [&](const Sources& s) {
      const Sources all = {s[0], argmax.get(), s[1], s[2], s[3]};
      Tensors results;
      for (choir_op_t op : {CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA,
                            CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT}) {
        EXPECT_TRUE(!is_fast_cpu() || HasKernel(op, all, &attrs));
        for (TensorPtr& result : Run(op, all, &attrs))
          results.push_back(std::move(result));
      }
      return results;
    };
    const Op apart = [&](const Sources& s) {
      Tensors masked;
      if (activation == CHOIR_ACTIVATION_RELU)
        masked = Run(CHOIR_OP_RELU_GRAD, {s[2], s[3]});
      const Tensors spread = Run(
          CHOIR_OP_MAX_POOL2D_GRAD,
          {image.get(), argmax.get(), masked.empty() ? s[3] : masked[0].get()},
          &attrs.pool);
      Tensors results;
      for (choir_op_t op :
           {CHOIR_OP_CONV2D_GRAD_DATA, CHOIR_OP_CONV2D_GRAD_WEIGHT})
        for (TensorPtr& result : Run(op, {s[0], s[1], spread[0].get()}, &plain))
          results.push_back(std::move(result));
      return results;
    };
    // x, W, y, dy
    const std::vector<Shape> shapes = {kX, kW, kPooled, kPooled};
    Compare(shapes, kNear, fused, apart);
    if (!is_fast_cpu()) continue;
    // A run that has diverged is not slower for it: with NaN in x and W both
    // are the work of the same fast kernels, to the bit.
    std::vector<std::vector<float>> values = Start(shapes, 3);
    values[0][0] = values[1][0] = NAN;
    choir_op_stats_reset();
    EXPECT_GT(CompareOnce(shapes, values, kSameBits, fused, apart), 0);
    EXPECT_EQ(choir_op_stats().reference_runs, 0u);
  }
}

// For vectors of channels, for fewer channels than a vector has, for channels
// that do not fill vectors, and so large that y goes past the caches.
const Shape kImages[] = {
    {4, 16, 5, 6}, {4, 3, 5, 6}, {33, 17}, {8, 32, 33, 32}};

TEST_P(FusedActivations, BatchNorm) {
  for (int i = 0; i < 2 * static_cast<int>(std::size(kImages)); ++i) {
    const Shape& image = kImages[i / 2];
    const bool has_residual = i % 2 == 1;
    if (Count(image) > 100000 && !is_cpu()) continue;
    SCOPED_TRACE(::testing::PrintToString(image));
    SCOPED_TRACE(has_residual);
    std::vector<Shape> shapes = {image, {image[1]}, {image[1]}};
    if (has_residual) shapes.push_back(image);
    // The reference does not round before it adds.
    const bool is_rounded_once = has_residual && is_null();
    Compare(
        shapes, is_rounded_once ? kNear : kSameBits,
        [&](const Sources& s) {
          return Run(CHOIR_OP_BATCH_NORM_RELU, s, &norm_);
        },
        [&](const Sources& s) {
          Tensors all = Run(CHOIR_OP_BATCH_NORM, {s[0], s[1], s[2]}, &norm_);
          if (has_residual)
            all[0] = std::move(Run(CHOIR_OP_ADD, {all[0].get(), s[3]})[0]);
          all[0] = std::move(Run(CHOIR_OP_RELU, {all[0].get()})[0]);
          return all;
        });
  }
}

TEST_P(FusedActivations, BatchNormGradients) {
  for (int i = 0; i < 2 * static_cast<int>(std::size(kImages)); ++i) {
    const Shape& image = kImages[i / 2];
    const bool has_dy2 = i % 2 == 1;
    if (Count(image) > 100000) continue;
    SCOPED_TRACE(::testing::PrintToString(image));
    SCOPED_TRACE(has_dy2);
    std::vector<Shape> shapes = {image, {image[1]}, {image[1]}, image};
    if (has_dy2) shapes.push_back(image);
    const auto gradient = [&](const Sources& s) {
      Tensors sum;
      if (has_dy2) sum = Run(CHOIR_OP_ADD, {s[3], s[4]});
      if (!has_dy2) sum = Run(CHOIR_OP_COPY, {s[3]});
      return std::move(sum[0]);
    };
    // x, scale, bias, dy: the ReLU is behind the normalisation.
    Compare(
        shapes, kNear,
        [&](const Sources& s) {
          const Tensors n =
              Run(CHOIR_OP_BATCH_NORM, {s[0], s[1], s[2]}, &norm_);
          Sources all = {s[0], s[1], s[2], n[1].get(), n[2].get(), s[3]};
          if (has_dy2) all.push_back(s[4]);
          return Run(CHOIR_OP_BATCH_NORM_RELU_GRAD, all, &norm_);
        },
        [&](const Sources& s) {
          const Tensors n =
              Run(CHOIR_OP_BATCH_NORM, {s[0], s[1], s[2]}, &norm_);
          const Tensors y = Run(CHOIR_OP_RELU, {n[0].get()});
          const TensorPtr dy = gradient(s);
          const Tensors g = Run(CHOIR_OP_RELU_GRAD, {y[0].get(), dy.get()});
          return Run(CHOIR_OP_BATCH_NORM_GRAD,
                     {s[0], s[1], n[1].get(), n[2].get(), g[0].get()}, &norm_);
        });
    if (HasFailure()) return;
    // x, scale, bias, dy: the ReLU is behind a sum with x.
    const auto sum = [&](const Sources& s, const Tensors& n) {
      const Tensors both = Run(CHOIR_OP_ADD, {n[0].get(), s[0]});
      return std::move(Run(CHOIR_OP_RELU, {both[0].get()})[0]);
    };
    Compare(
        shapes, kNear,
        [&](const Sources& s) {
          const Tensors n =
              Run(CHOIR_OP_BATCH_NORM, {s[0], s[1], s[2]}, &norm_);
          const TensorPtr y = sum(s, n);
          Sources all = {s[0], s[1], n[1].get(), n[2].get(), y.get(), s[3]};
          if (has_dy2) all.push_back(s[4]);
          return Run(CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD, all, &norm_);
        },
        [&](const Sources& s) {
          const Tensors n =
              Run(CHOIR_OP_BATCH_NORM, {s[0], s[1], s[2]}, &norm_);
          const TensorPtr y = sum(s, n), dy = gradient(s);
          Tensors g = Run(CHOIR_OP_RELU_GRAD, {y.get(), dy.get()});
          Tensors all =
              Run(CHOIR_OP_BATCH_NORM_GRAD,
                  {s[0], s[1], n[1].get(), n[2].get(), g[0].get()}, &norm_);
          all.push_back(std::move(g[0]));
          return all;
        });
  }
}

// The ReLU of a linear layer is an op of its own, behind the one that adds the
// bias.
TEST_P(FusedActivations, Linear) {
  for (const Shape& sizes : {Shape{5, 7, 3}, Shape{32, 48, 33}}) {
    SCOPED_TRACE(::testing::PrintToString(sizes));
    Compare(
        {{sizes[0], sizes[1]}, {sizes[1], sizes[2]}, {sizes[2]}}, kNear,
        [&](const Sources& s) {
          const Tensors y = Run(CHOIR_OP_LINEAR, s);
          return Run(CHOIR_OP_RELU, {y[0].get()});
        },
        [&](const Sources& s) {
          const Tensors product = Run(CHOIR_OP_MATMUL, {s[0], s[1]});
          const Tensors y = Run(CHOIR_OP_ADD, {product[0].get(), s[2]});
          return Run(CHOIR_OP_RELU, {y[0].get()});
        });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Places, FusedActivations,
    ::testing::Values(Place{"base", "cpu", CHOIR__ISA_BASE},
                      Place{"avx2", "cpu", CHOIR__ISA_AVX2},
                      Place{"avx512", "cpu", CHOIR__ISA_AVX512},
                      Place{"null", "null", CHOIR__ISA_BASE},
                      Place{"cuda", "cuda", CHOIR__ISA_BASE}),
    [](const auto& param) { return param.param.name; });

}  // namespace
