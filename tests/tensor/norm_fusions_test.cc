// SPDX-License-Identifier: Apache-2.0
// Normalisations in graphs: what is put in the place of the records has their
// bits, and is not where somebody would miss what it leaves out.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "core/graph.h"
#include "tensor/fusion_def.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Shape;
using choir::testing::TensorPtr;

class NormFusions : public ::testing::Test {
 protected:
  void SetUp() override {
    stream_ = choir_device_stream(device_.get());
    ASSERT_OK(choir_workspace_create(device_.get(), &workspace_));
    ASSERT_OK(choir_graph_create(workspace_, &graph_));
  }
  void TearDown() override {
    choir_graph_destroy(graph_);
    choir_workspace_destroy(workspace_);
  }

  TensorPtr Image(uint32_t seed) {
    const std::vector<float> values = Floats(Count(shape_), seed);
    TensorPtr image =
        shape_.size() == 4
            ? MakeChannelsLast<float>(device_.get(), shape_, values)
            : Make<float>(device_.get(), shape_, values);
    return As(image.get(), dtype_);
  }
  TensorPtr As(choir_tensor_t* tensor, choir_dtype_t dtype) {
    const choir_cast_attrs_t cast = {dtype};
    return choir::testing::Result(CHOIR_OP_CAST, {tensor}, &cast);
  }
  // Bits of any dtype's elements.
  static std::vector<char> Bits(choir_tensor_t* tensor) {
    std::vector<char> bits(static_cast<size_t>(choir_tensor_count(tensor)) *
                           choir_dtype_bytes(choir_tensor_dtype(tensor)));
    EXPECT_OK(choir_tensor_read(tensor, bits.data(), bits.size()));
    return bits;
  }
  TensorPtr Vector(uint32_t seed) {
    return Make<float>(device_.get(), {shape_[1]}, Floats(shape_[1], seed));
  }

  // Runs an op into new tensors, or into `given` ones.
  std::vector<TensorPtr> Run(choir_op_t op,
                             const std::vector<choir_tensor_t*>& srcs,
                             const std::vector<choir_tensor_t*>& given = {}) {
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
    for (size_t i = 0; i < given.size(); ++i) {
      dsts[i] = given[i];
      if (dsts[i]) choir_tensor_retain(dsts[i]);
    }
    const bool has_attrs = choir__op_def(op)->attrs != nullptr;
    EXPECT_OK(choir_op_run(stream_, op, srcs.data(),
                           static_cast<int32_t>(srcs.size()),
                           has_attrs ? &attrs_ : nullptr, false, dsts));
    std::vector<TensorPtr> results;
    for (int32_t i = 0; i < choir_op_result_count(op); ++i)
      results.emplace_back(dsts[i]);
    return results;
  }

  // `step` eagerly, then recorded and replayed; the bits of `results`, which it
  // writes, are the same. Returns how many records were fused away.
  int32_t Fused(const std::function<void()>& step,
                const std::vector<choir_tensor_t*>& results) {
    step();
    std::vector<std::vector<char>> want;
    for (choir_tensor_t* result : results) want.push_back(Bits(result));
    const choir_step_values_t values = {};
    EXPECT_OK(choir_graph_begin(graph_, &stream_, 1, &values));
    step();
    EXPECT_OK(choir_graph_end(graph_));
    choir_graph_options_t options = {};
    options.rewrite = choir__graph_fuse;
    EXPECT_OK(choir_graph_plan(graph_, &options));
    for (choir_tensor_t* result : results) {
      const std::vector<char> sevens(Bits(result).size(), 7);
      EXPECT_OK(choir_tensor_write(result, sevens.data(), sevens.size()));
    }
    EXPECT_OK(choir_graph_replay(graph_, &values, nullptr));
    for (size_t i = 0; i < results.size(); ++i)
      EXPECT_EQ(Bits(results[i]), want[i]) << "result " << i;
    return choir_graph_stats(graph_).fused;
  }

  // Two normalisations, the second with the first one's result as residual,
  // and their gradients, as autograd writes them.
  int32_t Block(bool residual_is_normalised) {
    TensorPtr x = Image(1), dy = Image(2), dx = Image(3), mean = Vector(9);
    TensorPtr scale = Vector(4), bias = Vector(5), dscale = Vector(6),
              dbias = Vector(7), dscale2 = Vector(8), dbias2 = Vector(10);
    const auto step = [&] {
      auto n1 = Run(CHOIR_OP_BATCH_NORM, {x.get(), scale.get(), bias.get()});
      // As for averages: between a normalisation and its ReLU.
      Run(CHOIR_OP_COPY, {n1[1].get()}, {mean.get()});
      auto y1 = Run(CHOIR_OP_RELU, {n1[0].get()});
      auto n2 =
          Run(CHOIR_OP_BATCH_NORM, {y1[0].get(), bias.get(), scale.get()});
      std::vector<TensorPtr> n3;
      choir_tensor_t* residual = y1[0].get();
      if (residual_is_normalised) {
        n3 = Run(CHOIR_OP_BATCH_NORM, {dy.get(), bias.get(), scale.get()});
        residual = n3[0].get();
      }
      auto sum = Run(CHOIR_OP_ADD, {n2[0].get(), residual});
      auto y2 = Run(CHOIR_OP_RELU, {sum[0].get()});
      auto g2 = Run(CHOIR_OP_RELU_GRAD, {y2[0].get(), dy.get()});
      auto d2 =
          Run(CHOIR_OP_BATCH_NORM_GRAD,
              {y1[0].get(), bias.get(), n2[1].get(), n2[2].get(), g2[0].get()},
              {nullptr, dscale2.get(), dbias2.get()});
      auto whole = Run(CHOIR_OP_ADD, {g2[0].get(), d2[0].get()});
      auto g1 = Run(CHOIR_OP_RELU_GRAD, {y1[0].get(), whole[0].get()});
      Run(CHOIR_OP_BATCH_NORM_GRAD,
          {x.get(), scale.get(), n1[1].get(), n1[2].get(), g1[0].get()},
          {dx.get(), dscale.get(), dbias.get()});
    };
    return Fused(step, {dx.get(), dscale.get(), dbias.get(), dscale2.get(),
                        dbias2.get(), mean.get()});
  }

  DevicePtr device_ = MakeDevice("cpu");
  choir_stream_t* stream_ = nullptr;
  choir_workspace_t* workspace_ = nullptr;
  choir_graph_t* graph_ = nullptr;
  Shape shape_ = {4, 16, 5, 6};
  choir_dtype_t dtype_ = CHOIR_DTYPE_F32;
  choir_batch_norm_attrs_t attrs_ = {0.01};
};

const Shape kShapes[] = {
    {4, 16, 5, 6},  {2, 3, 7, 7},     {1, 1, 4, 4},     {5, 20, 3, 3},
    {8, 32, 6, 6},  {3, 33, 4, 4},    {2, 64, 8, 8},    {2, 65, 3, 5},
    {33, 17},       {16, 48},         {9, 5},           {7, 100},
    {1, 112, 4, 4}, {12, 16, 32, 32}, {6, 8, 9, 9},     {2, 96, 5, 5},
    {3, 31, 6, 2},  {2, 15, 8, 8},    {64, 32, 12, 12}, {5, 80, 3, 3}};

TEST_F(NormFusions, HaveTheBitsOfTheRecords) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    shape_ = shape;
    for (bool normalised : {false, true}) {
      // relu; add, relu; relu_grad; add, relu_grad
      EXPECT_EQ(Block(normalised), 6);
      TearDown();
      SetUp();
    }
  }
}

// Images of bf16, with f32 beside them: rounded where the records round, on
// every instruction set, and nothing is cast for it.
TEST_F(NormFusions, HaveTheBitsOfTheRecordsIn16Bits) {
  dtype_ = CHOIR_DTYPE_BF16;
  const uint64_t widened = choir_op_stats().widened;
  for (int isa = CHOIR__ISA_AVX512; isa >= CHOIR__ISA_BASE; --isa) {
    choir__isa_limit(static_cast<choir__isa_t>(isa));
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(::testing::PrintToString(shape));
      shape_ = shape;
      for (bool normalised : {false, true}) {
        EXPECT_EQ(Block(normalised), 6);
        TearDown();
        SetUp();
      }
    }
  }
  choir__isa_limit(CHOIR__ISA_AVX512);
  EXPECT_EQ(choir_op_stats().widened, widened);
}

// Results that are too small for bf16 but for some; NaN and infinities.
TEST_F(NormFusions, HaveTheBitsOfExtremesIn16Bits) {
  dtype_ = CHOIR_DTYPE_BF16;
  for (const Shape& shape : {Shape{4, 16, 5, 6}, Shape{2, 3, 7, 7}}) {
    shape_ = shape;
    for (bool is_finite : {true, false}) {
      TensorPtr dy = Image(2), dy2 = Image(3), dx = Image(4), y = Image(5);
      TensorPtr scale = Vector(6), bias = Vector(7), dscale = Vector(8),
                dbias = Vector(9);
      std::vector<float> values = Floats(Count(shape), 1);
      const std::vector<float> tiny(static_cast<size_t>(shape[1]), 1e-40f);
      if (is_finite) {
        scale = Make<float>(device_.get(), {shape[1]}, tiny);
        bias = Make<float>(device_.get(), {shape[1]}, tiny);
      } else {
        values[0] = NAN;
        values[static_cast<size_t>(shape[2] * shape[3])] = INFINITY;
      }
      TensorPtr x = As(
          MakeChannelsLast<float>(device_.get(), shape, values).get(), dtype_);
      const auto step = [&] {
        auto norm =
            Run(CHOIR_OP_BATCH_NORM, {x.get(), scale.get(), bias.get()});
        auto relu = Run(CHOIR_OP_RELU, {norm[0].get()});
        Run(CHOIR_OP_COPY, {relu[0].get()}, {y.get()});
        auto sum = Run(CHOIR_OP_ADD, {dy.get(), dy2.get()});
        auto g = Run(CHOIR_OP_RELU_GRAD, {relu[0].get(), sum[0].get()});
        Run(CHOIR_OP_BATCH_NORM_GRAD,
            {x.get(), scale.get(), norm[1].get(), norm[2].get(), g[0].get()},
            {dx.get(), dscale.get(), dbias.get()});
      };
      EXPECT_EQ(Fused(step, {y.get(), dx.get(), dscale.get(), dbias.get()}), 3);
      TearDown();
      SetUp();
    }
  }
}

// The gradient of a batch norm over all ranks, with a factor for each channel;
// one for each element stays.
TEST_F(NormFusions, GradientsOfAllRanksHaveTheBitsOfTheRecords) {
  for (const Shape& shape : kShapes)
    for (bool by_channel : {true, false}) {
      SCOPED_TRACE(::testing::PrintToString(shape));
      shape_ = shape;
      Shape channels(shape.size(), 1);
      channels[1] = shape[1];
      TensorPtr x = Image(1), dy = Image(2), dx = Image(3);
      TensorPtr scale = Vector(4), bias = Vector(5), mean = Vector(6);
      TensorPtr var =
          Make<float>(device_.get(), {shape[1]},
                      std::vector<float>(static_cast<size_t>(shape[1]), 1.5f));
      TensorPtr factor = by_channel ? Make<float>(device_.get(), channels,
                                                  Floats(shape[1], 10))
                                    : Image(10);
      const auto step = [&] {
        auto sloped = Run(CHOIR_OP_MUL, {dy.get(), factor.get()});
        auto line =
            Run(CHOIR_OP_BATCH_NORM_INFER,
                {x.get(), scale.get(), bias.get(), mean.get(), var.get()});
        auto sum = Run(CHOIR_OP_ADD, {sloped[0].get(), line[0].get()});
        Run(CHOIR_OP_COPY, {sum[0].get()}, {dx.get()});
      };
      EXPECT_EQ(Fused(step, {dx.get()}), by_channel ? 2 : 0);
      TearDown();
      SetUp();
    }
}

// The normalised image is wanted as well.
TEST_F(NormFusions, LeaveWhatIsUsedElsewhere) {
  TensorPtr x = Image(1), y = Image(2), copy = Image(3);
  TensorPtr scale = Vector(4), bias = Vector(5);
  const auto step = [&] {
    auto norm = Run(CHOIR_OP_BATCH_NORM, {x.get(), scale.get(), bias.get()});
    auto relu = Run(CHOIR_OP_RELU, {norm[0].get()});
    Run(CHOIR_OP_COPY, {norm[0].get()}, {copy.get()});
    Run(CHOIR_OP_COPY, {relu[0].get()}, {y.get()});
  };
  EXPECT_EQ(Fused(step, {y.get(), copy.get()}), 0);
}

// A result that the program holds is written where it was.
TEST_F(NormFusions, LeaveResultsOfTheProgram) {
  TensorPtr x = Image(1), y = Image(2);
  TensorPtr scale = Vector(4), bias = Vector(5);
  const auto step = [&] {
    auto norm = Run(CHOIR_OP_BATCH_NORM, {x.get(), scale.get(), bias.get()});
    Run(CHOIR_OP_RELU, {norm[0].get()}, {y.get()});
  };
  EXPECT_EQ(Fused(step, {y.get()}), 0);
}

// A residual that is worked out between the normalisation and the sum.
TEST_F(NormFusions, LeaveAResidualThatComesLater) {
  TensorPtr x = Image(1), other = Image(2), y = Image(3);
  TensorPtr scale = Vector(4), bias = Vector(5);
  const auto step = [&] {
    auto norm = Run(CHOIR_OP_BATCH_NORM, {x.get(), scale.get(), bias.get()});
    auto residual = Run(CHOIR_OP_SQUARE, {other.get()});
    auto sum = Run(CHOIR_OP_ADD, {residual[0].get(), norm[0].get()});
    auto relu = Run(CHOIR_OP_RELU, {sum[0].get()});
    Run(CHOIR_OP_COPY, {relu[0].get()}, {y.get()});
  };
  // square, add and relu are a chain, behind the normalisation.
  EXPECT_EQ(Fused(step, {y.get()}), 2);
}

// The masked gradient is wanted as well, and the ReLU was not behind a
// normalisation: the second gradient does it.
TEST_F(NormFusions, KeepTheMaskedGradientWhereItIsUsed) {
  TensorPtr x = Image(1), dy = Image(2), dx = Image(3), copy = Image(4);
  TensorPtr y = Image(5), scale = Vector(6), mean = Vector(7);
  TensorPtr dscale = Vector(8), dbias = Vector(9);
  TensorPtr var =
      Make<float>(device_.get(), {shape_[1]},
                  std::vector<float>(static_cast<size_t>(shape_[1]), 1.5f));
  const auto step = [&] {
    auto g = Run(CHOIR_OP_RELU_GRAD, {y.get(), dy.get()});
    Run(CHOIR_OP_BATCH_NORM_GRAD,
        {x.get(), scale.get(), mean.get(), var.get(), g[0].get()},
        {dx.get(), dscale.get(), dbias.get()});
    Run(CHOIR_OP_COPY, {g[0].get()}, {copy.get()});
  };
  EXPECT_EQ(Fused(step, {dx.get(), dscale.get(), dbias.get(), copy.get()}), 1);
}

// Rows, not channels, lie side by side: no fast kernel, no fusion.
TEST_F(NormFusions, LeaveWhatNoKernelTakes) {
  TensorPtr x = Make<float>(device_.get(), shape_, Floats(Count(shape_), 1));
  TensorPtr y = Make<float>(device_.get(), shape_, Floats(Count(shape_), 2));
  TensorPtr scale = Vector(4), bias = Vector(5);
  const auto step = [&] {
    auto norm = Run(CHOIR_OP_BATCH_NORM, {x.get(), scale.get(), bias.get()});
    auto relu = Run(CHOIR_OP_RELU, {norm[0].get()});
    Run(CHOIR_OP_COPY, {relu[0].get()}, {y.get()});
  };
  EXPECT_EQ(Fused(step, {y.get()}), 0);
}

}  // namespace
