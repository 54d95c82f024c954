// SPDX-License-Identifier: Apache-2.0
// Records that no kernel takes as they are: 16-bit floats by kernels for f32,
// layouts by kernels for dense operands. That numbers are right is the op
// suite's (tests/conformance); here: when it happens, in which records, and
// that nothing else than the operands is touched.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/ops_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

class Widen : public ::testing::TestWithParam<choir_dtype_t> {
 protected:
  void SetUp() override {
    // No processor multiplies 16 bits then.
    choir__isa_limit(CHOIR__ISA_AVX2);
    device_ = MakeDevice("cpu");
    choir_op_stats_reset();
  }
  void TearDown() override { choir__isa_limit(CHOIR__ISA_AVX512); }
  TensorPtr Half(const Shape& shape, const std::vector<float>& values) {
    TensorPtr wide = Make<float>(device_.get(), shape, values);
    return Cast(wide, GetParam());
  }
  static TensorPtr Cast(const TensorPtr& x, choir_dtype_t dtype) {
    auto attrs = Attrs<choir_cast_attrs_t>(CHOIR_OP_CAST);
    attrs.dtype = dtype;
    return Result(CHOIR_OP_CAST, {x.get()}, &attrs);
  }
  static std::vector<uint16_t> Bits(const TensorPtr& x) {
    std::vector<uint16_t> bits(
        static_cast<size_t>(choir_tensor_count(x.get())));
    EXPECT_OK(choir_tensor_read(x.get(), bits.data(), bits.size() * 2));
    return bits;
  }
  static std::vector<float> Values(const TensorPtr& x) {
    return Read<float>(Cast(x, CHOIR_DTYPE_F32));
  }

  DevicePtr device_;
};

TEST_P(Widen, RunsByTheKernelForF32) {
  TensorPtr a = Half({2, 3}, {1, 2, 3, 4, 5, 6});
  TensorPtr b = Half({3, 2}, {1, 0, 0, 1, 1, 1});
  TensorPtr c = Result(CHOIR_OP_MATMUL, {a.get(), b.get()});
  EXPECT_EQ(choir_tensor_dtype(c.get()), GetParam());
  EXPECT_EQ(Values(c), (std::vector<float>{4, 5, 10, 11}));
  EXPECT_EQ(choir_op_stats().widened, 1u);
  EXPECT_EQ(choir_op_stats().reference_runs, 0u);
}

// 256 * 256 is too large for f16, and 1 too small beside it for bf16.
TEST_P(Widen, SumsInF32) {
  TensorPtr a = Half({1, 3}, {256, 1, -256});
  TensorPtr b = Half({3, 1}, {256, 1, 256});
  TensorPtr c = Result(CHOIR_OP_MATMUL, {a.get(), b.get()});
  EXPECT_EQ(Values(c), std::vector<float>{1});
}

TEST_P(Widen, AddsToWhatIsThere) {
  TensorPtr a = Half({2, 2}, {1, 2, 3, 4});
  TensorPtr c = Half({2, 2}, {10, 20, 30, 40});
  choir_tensor_t* srcs[] = {a.get(), a.get()};
  choir_tensor_t* dst = c.get();
  ASSERT_OK(choir_op_run(choir_device_stream(device_.get()), CHOIR_OP_MATMUL,
                         srcs, 2, nullptr, true, &dst));
  EXPECT_EQ(Values(c), (std::vector<float>{17, 30, 45, 62}));
  EXPECT_EQ(Values(a), (std::vector<float>{1, 2, 3, 4}));
}

// Formulas have loops for these dtypes: no casts, but their bits, those of one
// rounding of what f32 gives; with an operand repeated, and in place.
TEST_P(Widen, FormulasHaveTheBitsOfCastsWithoutThem) {
  struct Formula {
    choir_op_t op;
    int sources;
  };
  const Formula formulas[] = {
#define CHOIR__FORMULA(OP, name, sources, formula, ...) \
  {CHOIR_OP_##OP, sources},
#include "tensor/elementwise.def"
  };
  std::vector<float> values = Floats(1300, 5);
  for (float& value : values) value *= 3;
  TensorPtr x = Half({1300}, values), row = Half({1}, {0.7f});
  TensorPtr other = Half({1300}, Floats(1300, 6));
  for (const Formula& formula : formulas) {
    SCOPED_TRACE(choir_op_name(formula.op));
    const bool is_grad = std::string(choir_op_name(formula.op)).find("_grad") !=
                         std::string::npos;
    const TensorPtr& second = is_grad ? other : row;
    std::vector<choir_tensor_t*> srcs = {x.get()}, wide;
    std::vector<TensorPtr> kept;
    if (formula.sources == 2) srcs.push_back(second.get());
    choir_op_stats_reset();
    TensorPtr got = Result(formula.op, srcs);
    TensorPtr sum = Cast(other, GetParam());
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {sum.get()};
    ASSERT_OK(choir_op_run(choir_device_stream(device_.get()), formula.op,
                           srcs.data(), formula.sources, nullptr, true, dsts));
    EXPECT_EQ(choir_op_stats().widened, 0u);
    EXPECT_EQ(choir_op_stats().reference_runs, 0u);
    kept.push_back(Cast(x, CHOIR_DTYPE_F32));
    kept.push_back(Cast(second, CHOIR_DTYPE_F32));
    for (int i = 0; i < formula.sources; ++i) wide.push_back(kept[i].get());
    TensorPtr want = Result(formula.op, wide);
    EXPECT_EQ(Bits(got), Bits(Cast(want, GetParam())));
    TensorPtr wide_sum = Cast(other, CHOIR_DTYPE_F32);
    dsts[0] = wide_sum.get();
    ASSERT_OK(choir_op_run(choir_device_stream(device_.get()), formula.op,
                           wide.data(), formula.sources, nullptr, true, dsts));
    EXPECT_EQ(Bits(sum), Bits(Cast(wide_sum, GetParam())));
    dsts[0] = x.get();
    TensorPtr before = Cast(x, GetParam());
    ASSERT_OK(choir_op_run(choir_device_stream(device_.get()), formula.op,
                           srcs.data(), formula.sources, nullptr, false, dsts));
    EXPECT_EQ(Bits(x), Bits(got));
    x = std::move(before);
  }
}

TEST_P(Widen, StridedOperands) {
  TensorPtr x = Half({3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  auto slice = Attrs<choir_slice_attrs_t>(CHOIR_OP_SLICE);
  slice.axis = 1;
  slice.start = 1;
  slice.stop = 4;
  slice.step = 2;
  TensorPtr part = Result(CHOIR_OP_SLICE, {x.get()}, &slice);
  TensorPtr y =
      Result(CHOIR_OP_MATMUL, {part.get(), Half({2, 1}, {1, 2}).get()});
  EXPECT_EQ(Values(y), (std::vector<float>{7, 19, 31}));
}

// Nothing to do, and nothing to read.
TEST_P(Widen, NoElements) {
  TensorPtr a = Half({0, 3}, {});
  TensorPtr b = Half({3, 2}, {1, 0, 0, 1, 1, 1});
  TensorPtr c = Result(CHOIR_OP_MATMUL, {a.get(), b.get()});
  EXPECT_EQ(Values(c), std::vector<float>{});
}

// The argmax index among rounded sums could be another than among exact ones.
TEST_P(Widen, ChoicesStayExact) {
  TensorPtr x = Half({1, 1, 4, 4}, std::vector<float>(16, 1));
  TensorPtr w = Half({1, 1, 3, 3}, std::vector<float>(9, 1));
  TensorPtr b = Half({1}, {0});
  auto attrs =
      Attrs<choir_conv2d_max_pool2d_attrs_t>(CHOIR_OP_CONV2D_MAX_POOL2D);
  attrs.pool.kernel[0] = attrs.pool.kernel[1] = 2;
  attrs.pool.stride[0] = attrs.pool.stride[1] = 2;
  std::vector<TensorPtr> results;
  ASSERT_OK(RunOp(CHOIR_OP_CONV2D_MAX_POOL2D, {x.get(), w.get(), b.get()},
                  &attrs, &results));
  EXPECT_EQ(choir_op_stats().widened, 0u);
  EXPECT_EQ(choir_op_stats().reference_runs, 1u);
}

// Columns of a matrix as rows: no kernel takes rows with gaps, for sources or
// results.
TEST(ConvertLayouts, OperandsAreCopiedBeforeAndBehind) {
  DevicePtr device = MakeDevice("cpu");
  TensorPtr plain = Make<float>(device.get(), {3, 4}, Floats(12, 1));
  TensorPtr want = Result(CHOIR_OP_SOFTMAX, {plain.get()});
  const auto by_columns = [&](const std::vector<float>& values) {
    std::vector<float> turned(12);
    for (size_t i = 0; i < 12; ++i) turned[i % 4 * 3 + i / 4] = values[i];
    TensorPtr memory = Make<float>(device.get(), {4, 3}, turned);
    choir_view_t view = *choir_tensor_view(memory.get());
    std::swap(view.shape[0], view.shape[1]);
    std::swap(view.strides[0], view.strides[1]);
    choir_tensor_t* turned_view = nullptr;
    EXPECT_OK(choir_tensor_from_view(&view, &turned_view));
    return TensorPtr(turned_view);
  };
  TensorPtr x = by_columns(Floats(12, 1));
  TensorPtr y = by_columns(Floats(12, 2));
  choir_op_stats_reset();
  choir_tensor_t* srcs[] = {x.get()};
  choir_tensor_t* dst = y.get();
  ASSERT_OK(choir_op_run(choir_device_stream(device.get()), CHOIR_OP_SOFTMAX,
                         srcs, 1, nullptr, false, &dst));
  EXPECT_EQ(choir_op_stats().reference_runs, 0u);
  EXPECT_EQ(choir_op_stats().reorders, 2u);
  EXPECT_EQ(Read<float>(y), Read<float>(want));
  EXPECT_EQ(Read<float>(x), Floats(12, 1));
  // Added to what is there: that is copied before, too.
  TensorPtr sum = by_columns(std::vector<float>(12, 1));
  dst = sum.get();
  choir_op_stats_reset();
  ASSERT_OK(choir_op_run(choir_device_stream(device.get()), CHOIR_OP_SOFTMAX,
                         srcs, 1, nullptr, true, &dst));
  EXPECT_EQ(choir_op_stats().reorders, 3u);
  std::vector<double> added;
  for (float value : Read<float>(want)) added.push_back(1.0 + value);
  ExpectNear(Read<float>(sum), added, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Halves, Widen,
                         ::testing::Values(CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16),
                         [](const auto& info) {
                           return std::string(choir_dtype_name(info.param));
                         });

}  // namespace
