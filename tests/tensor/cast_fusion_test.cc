// SPDX-License-Identifier: Apache-2.0
// Casts in front of products and sums in graphs: gone where a kernel rounds or
// widens what it reads, with the same bits, and there where somebody else reads
// them.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/graph.h"
#include "tensor/fusion_def.h"
#include "tensor/kernels/cpu/cpu_amx.h"
#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::TensorPtr;

class CastFusion : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_workspace_create(device_.get(), &workspace_));
    ASSERT_OK(choir_graph_create(workspace_, &graph_));
  }
  void TearDown() override {
    choir_graph_destroy(graph_);
    choir_workspace_destroy(workspace_);
  }

  TensorPtr Run(choir_op_t op, const std::vector<choir_tensor_t*>& srcs,
                const void* attrs, choir_tensor_t* into = nullptr) {
    choir_tensor_t* dst = into;
    if (into) choir_tensor_retain(into);
    EXPECT_OK(choir_op_run(stream_, op, srcs.data(),
                           static_cast<int32_t>(srcs.size()), attrs, false,
                           &dst));
    return TensorPtr(dst);
  }
  TensorPtr Cast(const TensorPtr& tensor, choir_dtype_t dtype) {
    const choir_cast_attrs_t attrs = {dtype};
    return Run(CHOIR_OP_CAST, {tensor.get()}, &attrs);
  }
  TensorPtr Narrow(const TensorPtr& tensor) {
    return Cast(tensor, CHOIR_DTYPE_BF16);
  }
  TensorPtr Multiply(const TensorPtr& a, const TensorPtr& b, bool ta, bool tb,
                     const TensorPtr& into) {
    choir_matmul_attrs_t attrs = {};
    attrs.transpose_a = ta;
    attrs.transpose_b = tb;
    return Run(CHOIR_OP_MATMUL, {a.get(), b.get()}, &attrs, into.get());
  }

  // `step` eagerly and as a graph: the bits of `results`, in f32, are the same.
  // Returns how many records the rewriting left out.
  int32_t Fused(const std::function<void()>& step,
                const std::vector<const TensorPtr*>& results) {
    step();
    std::vector<std::vector<float>> want;
    for (const TensorPtr* one : results)
      want.push_back(Read<float>(one->get()));
    const choir_step_values_t values = {};
    EXPECT_OK(choir_graph_begin(graph_, &stream_, 1, &values));
    step();
    EXPECT_OK(choir_graph_end(graph_));
    choir_graph_options_t options = {};
    options.rewrite = choir__graph_fuse;
    EXPECT_OK(choir_graph_plan(graph_, &options));
    EXPECT_OK(choir_graph_replay(graph_, &values, nullptr));
    for (size_t i = 0; i < results.size(); ++i)
      EXPECT_EQ(Read<float>(results[i]->get()), want[i]) << "result " << i;
    return choir_graph_stats(graph_).fused;
  }

  TensorPtr Matrix(int64_t rows, int64_t columns, uint32_t seed) {
    return Make<float>(device_.get(), {rows, columns},
                       Floats(rows * columns, seed));
  }

  DevicePtr device_ = MakeDevice("cpu");
  choir_stream_t* stream_ = choir_device_stream(device_.get());
  choir_workspace_t* workspace_ = nullptr;
  choir_graph_t* graph_ = nullptr;
};

class ProductCastFusion : public CastFusion {
 protected:
  void SetUp() override {
    if (!choir__has_amx()) GTEST_SKIP() << "this processor has no AMX";
    CastFusion::SetUp();
  }
};

// As a linear layer's forward and backward read its weights.
TEST_F(ProductCastFusion, LeavesOutTheCopyOfAParameter) {
  TensorPtr x = Matrix(40, 50, 1), w = Matrix(50, 70, 2),
            dy = Matrix(40, 70, 3);
  TensorPtr y = Matrix(40, 70, 4), dx = Matrix(40, 50, 5);
  const auto step = [&] {
    TensorPtr x16 = Narrow(x), w16 = Narrow(w), dy16 = Narrow(dy);
    Multiply(x16, w16, false, false, y);
    Multiply(dy16, w16, false, true, dx);
    Run(CHOIR_OP_RELU, {x16.get()}, nullptr);
    Run(CHOIR_OP_RELU, {dy16.get()}, nullptr);
  };
  EXPECT_EQ(Fused(step, {&y, &dx}), 1);
}

// Weights and bias of a layer, both of f32.
TEST_F(ProductCastFusion, RoundsTheBiasTheSame) {
  TensorPtr x = Matrix(33, 20, 1), w = Matrix(20, 40, 2), y = Matrix(33, 40, 3);
  TensorPtr b = Make<float>(device_.get(), {40}, Floats(40, 4));
  const auto step = [&] {
    TensorPtr x16 = Narrow(x), w16 = Narrow(w), b16 = Narrow(b);
    Run(CHOIR_OP_LINEAR, {x16.get(), w16.get(), b16.get()}, nullptr, y.get());
  };
  EXPECT_EQ(Fused(step, {&y}), 2);
}

// One of two factors stays, or the product were one of f32.
TEST_F(ProductCastFusion, KeepsOneFactorOf16Bits) {
  TensorPtr a = Matrix(33, 20, 1), b = Matrix(20, 17, 2), c = Matrix(33, 17, 3);
  EXPECT_EQ(
      Fused([&] { Multiply(Narrow(a), Narrow(b), false, false, c); }, {&c}), 1);
}

// The parameter is another one when the product reads it.
TEST_F(ProductCastFusion, KeepsACopyOfWhatChanges) {
  TensorPtr a = Matrix(33, 20, 1), b = Matrix(20, 17, 2), c = Matrix(33, 17, 3);
  TensorPtr start = Matrix(33, 20, 1), other = Matrix(33, 20, 4);
  TensorPtr start_b = Matrix(20, 17, 2), other_b = Matrix(20, 17, 5);
  const auto step = [&] {
    Run(CHOIR_OP_COPY, {start.get()}, nullptr, a.get());
    Run(CHOIR_OP_COPY, {start_b.get()}, nullptr, b.get());
    TensorPtr a16 = Narrow(a), b16 = Narrow(b);
    Run(CHOIR_OP_COPY, {other.get()}, nullptr, a.get());
    Run(CHOIR_OP_COPY, {other_b.get()}, nullptr, b.get());
    Multiply(a16, b16, false, false, c);
  };
  EXPECT_EQ(Fused(step, {&c}), 0);
}

// Somebody else holds the cast's result.
TEST_F(ProductCastFusion, KeepsWhatIsRead) {
  TensorPtr a = Matrix(33, 20, 1), b = Matrix(20, 17, 2), c = Matrix(33, 17, 3);
  TensorPtr a16, b16;
  const auto step = [&] {
    a16 = Narrow(a);
    b16 = Narrow(b);
    Multiply(a16, b16, false, false, c);
  };
  EXPECT_EQ(Fused(step, {&c}), 0);
}

class SumCastFusion : public CastFusion {
 protected:
  void Reduce(choir_op_t op, const TensorPtr& from, int64_t axis,
              const TensorPtr& into) {
    auto attrs = Attrs<choir_sum_attrs_t>(CHOIR_OP_SUM);
    attrs.axis = axis;
    attrs.keep_dims = true;
    Run(op, {from.get()}, &attrs, into.get());
  }
  void Sums(const TensorPtr& wide) {
    Reduce(CHOIR_OP_SUM, wide, 0, row_);
    Reduce(CHOIR_OP_MEAN, wide, 1, column_);
    Reduce(CHOIR_OP_SUM_SQUARE, wide, -1, all_);
  }
  TensorPtr x_ = Narrow(Matrix(300, 90, 1));
  TensorPtr row_ = Matrix(1, 90, 2), column_ = Matrix(300, 1, 3);
  TensorPtr all_ = Matrix(1, 1, 4), largest_ = Matrix(300, 1, 5);
};

// They compute in f32, whatever they read.
TEST_F(SumCastFusion, LetsSumsRead16Bits) {
  EXPECT_EQ(
      Fused([&] { Sums(Cast(x_, CHOIR_DTYPE_F32)); }, {&row_, &column_, &all_}),
      1);
}

// An op that does not say so reads the cast's result.
TEST_F(SumCastFusion, KeepsWhatIsRead) {
  const auto step = [&] {
    TensorPtr wide = Cast(x_, CHOIR_DTYPE_F32);
    Sums(wide);
    Reduce(CHOIR_OP_MAX, wide, 1, largest_);
  };
  EXPECT_EQ(Fused(step, {&row_, &column_, &all_, &largest_}), 0);
}

}  // namespace
