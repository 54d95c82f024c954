// SPDX-License-Identifier: Apache-2.0
// Softmax, losses and counting on a GPU: that kernels run, and that their
// results are those of the CPU in double.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

struct Size {
  int64_t rows;
  int64_t columns;
};
const Size kSizes[] = {{1, 1},   {1, 10},   {3, 2},   {5, 9},
                       {64, 10}, {33, 17},  {7, 100}, {2, 511},
                       {2, 512}, {3, 1000}, {300, 3}, {1, 5000}};

class CudaRows : public CudaKernelsTest {
 protected:
  static std::vector<float> Scores(const Size& size, uint32_t seed) {
    std::vector<float> values = Floats(size.rows * size.columns, seed);
    for (float& value : values) value *= 20;
    return values;
  }
  static std::vector<float> Shares(const Size& size, uint32_t seed) {
    std::vector<float> values = Floats(size.rows * size.columns, seed);
    for (float& value : values) value = 0.5f + 0.4f * value;
    return values;
  }
  template <typename T>
  static std::vector<T> Labels(const Size& size) {
    std::vector<T> labels;
    for (int64_t r = 0; r < size.rows; ++r)
      labels.push_back(static_cast<T>((7 * r + 3) % size.columns));
    return labels;
  }
  static std::vector<double> Doubles(const std::vector<float>& values) {
    return {values.begin(), values.end()};
  }
  static std::vector<float> Rounded(const TensorPtr& tensor) {
    const std::vector<double> exact = Read<double>(tensor);
    return {exact.begin(), exact.end()};
  }
};

TEST_F(CudaRows, SoftmaxAndItsGradient) {
  const struct {
    choir_op_t op;
    choir_op_t grad;
    const char* name;
  } kinds[] = {
      {CHOIR_OP_SOFTMAX, CHOIR_OP_SOFTMAX_GRAD, "choir_softmax"},
      {CHOIR_OP_LOG_SOFTMAX, CHOIR_OP_LOG_SOFTMAX_GRAD, "choir_log_softmax"}};
  for (const auto& kind : kinds) {
    for (const Size& size : kSizes) {
      SCOPED_TRACE(std::string(kind.name) + " " + std::to_string(size.rows) +
                   " " + std::to_string(size.columns));
      const Shape shape = {size.rows, size.columns};
      const std::vector<float> x = Scores(size, 3),
                               dy = Floats(Count(shape), 4);
      (void)Launched();
      TensorPtr y = Result(kind.op, {Make<float>(gpu_.get(), shape, x).get()});
      TensorPtr want_y =
          Result(kind.op, {Make<double>(cpu_.get(), shape, Doubles(x)).get()});
      ExpectClose(Read<float>(y), Rounded(want_y), 1e-6);
      TensorPtr dx = Result(
          kind.grad, {y.get(), Make<float>(gpu_.get(), shape, dy).get()});
      TensorPtr want_dx = Result(
          kind.grad,
          {want_y.get(), Make<double>(cpu_.get(), shape, Doubles(dy)).get()});
      ExpectClose(Read<float>(dx), Rounded(want_dx), 3e-6);
      EXPECT_EQ(Launched(), (std::vector<std::string>{
                                kind.name, std::string(kind.name) + "_grad"}));
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaRows, NormsAndTheirGradients) {
  const struct {
    choir_op_t op;
    choir_op_t grad;
    size_t sources;
  } kinds[] = {{CHOIR_OP_LAYER_NORM, CHOIR_OP_LAYER_NORM_GRAD, 3},
               {CHOIR_OP_RMS_NORM, CHOIR_OP_RMS_NORM_GRAD, 2}};
  for (const auto& kind : kinds) {
    for (const Size& size : kSizes) {
      SCOPED_TRACE(std::string(choir_op_name(kind.op)) + " " +
                   std::to_string(size.rows) + " " +
                   std::to_string(size.columns));
      const Shape shape = {size.rows, size.columns}, row = {size.columns};
      choir_layer_norm_attrs_t attrs = {0.01};
      const std::vector<float> values[] = {
          Floats(Count(shape), 3), Floats(Count(row), 4), Floats(Count(row), 5),
          Floats(Count(shape), 6)};
      std::vector<TensorPtr> on_gpu, exact;
      for (size_t i = 0; i < 4; ++i) {
        const Shape& of = i == 0 || i == 3 ? shape : row;
        on_gpu.push_back(Make<float>(gpu_.get(), of, values[i]));
        exact.push_back(Make<double>(cpu_.get(), of, Doubles(values[i])));
      }
      (void)Launched();
      const auto forward = [&](const std::vector<TensorPtr>& t) {
        std::vector<choir_tensor_t*> sources = {t[0].get(), t[1].get(),
                                                t[2].get()};
        sources.resize(kind.sources);
        return Results(kind.op, sources, &attrs);
      };
      const auto backward = [&](const std::vector<TensorPtr>& t) {
        return Results(kind.grad, {t[0].get(), t[1].get(), t[3].get()}, &attrs);
      };
      ExpectClose(Read<float>(forward(on_gpu)[0]), Rounded(forward(exact)[0]),
                  1e-5);
      const auto got = backward(on_gpu), want = backward(exact);
      for (size_t i = 0; i < kind.sources; ++i)
        ExpectClose(Read<float>(got[i]), Rounded(want[i]), 3e-5);
      EXPECT_EQ(Launched(),
                (std::vector<std::string>{"choir_norm", "choir_norm_grad",
                                          "choir_norm_sums"}));
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// What the CPU makes of such rows in double, losses_test.cc compares with
// mathematics.
TEST_F(CudaRows, LogitsFarFromZero) {
  const Size size = {5, 9};
  const Shape shape = {size.rows, size.columns};
  for (float center : {1e4f, -1e4f, 1e6f, 3e38f, -3e38f}) {
    std::vector<float> x = Floats(size.rows * size.columns, 3);
    for (float& value : x) value += center;
    TensorPtr on_gpu = Make<float>(gpu_.get(), shape, x);
    TensorPtr exact = Make<double>(cpu_.get(), shape, Doubles(x));
    for (choir_op_t op : {CHOIR_OP_SOFTMAX, CHOIR_OP_LOG_SOFTMAX})
      ExpectClose(Read<float>(Result(op, {on_gpu.get()})),
                  Rounded(Result(op, {exact.get()})), 1e-6);
    const std::vector<int64_t> labels = Labels<int64_t>(size);
    const auto got =
        Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY,
                {on_gpu.get(), Make(gpu_.get(), {size.rows}, labels).get()});
    const auto want =
        Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY,
                {exact.get(), Make(cpu_.get(), {size.rows}, labels).get()});
    ExpectClose(Read<float>(got[0]), Rounded(want[0]), 1e-6);
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaRows, RowsMayLieApart) {
  const std::vector<float> x = Scores({6, 12}, 3);
  TensorPtr whole = Make<float>(gpu_.get(), {6, 12}, x);
  choir_slice_attrs_t slice = Attrs<choir_slice_attrs_t>(CHOIR_OP_SLICE);
  slice.axis = 1;
  slice.start = 1;
  slice.stop = 8;
  TensorPtr part = Result(CHOIR_OP_SLICE, {whole.get()}, &slice);
  TensorPtr exact =
      Result(CHOIR_OP_SLICE,
             {Make<double>(cpu_.get(), {6, 12}, Doubles(x)).get()}, &slice);
  const std::vector<float> before = Floats(42, 5);
  std::vector<float> want = Rounded(Result(CHOIR_OP_SOFTMAX, {exact.get()}));
  for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
  ExpectClose(Read<float>(Added(gpu_, CHOIR_OP_SOFTMAX, {part.get()}, nullptr,
                                {6, 7}, before)),
              want, 1e-6);
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaRows, LossesAndTheirGradients) {
  const struct {
    choir_op_t op;
    choir_op_t grad;
    bool is_softmax;
  } kinds[] = {{CHOIR_OP_SOFTMAX_CROSS_ENTROPY,
                CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD, true},
               {CHOIR_OP_CROSS_ENTROPY, CHOIR_OP_CROSS_ENTROPY_GRAD, false}};
  for (const auto& kind : kinds) {
    for (const Size& size : kSizes) {
      SCOPED_TRACE(std::string(choir_op_name(kind.op)) + " " +
                   std::to_string(size.rows) + " " +
                   std::to_string(size.columns));
      const Shape shape = {size.rows, size.columns};
      const std::vector<float> x =
          kind.is_softmax ? Scores(size, 3) : Shares(size, 3);
      TensorPtr labels =
          Make<int64_t>(gpu_.get(), {size.rows}, Labels<int64_t>(size));
      TensorPtr small =
          Make<int32_t>(gpu_.get(), {size.rows}, Labels<int32_t>(size));
      TensorPtr host_labels =
          Make<int64_t>(cpu_.get(), {size.rows}, Labels<int64_t>(size));
      TensorPtr on_gpu = Make<float>(gpu_.get(), shape, x);
      std::vector<TensorPtr> got =
          Results(kind.op, {on_gpu.get(), labels.get()});
      std::vector<TensorPtr> want =
          Results(kind.op, {Make<double>(cpu_.get(), shape, Doubles(x)).get(),
                            host_labels.get()});
      for (size_t i = 0; i < got.size(); ++i)
        ExpectClose(Read<float>(got[i]), Rounded(want[i]), 1e-6);
      const std::vector<float> loss = Read<float>(got[0]);
      got = Results(kind.op, {on_gpu.get(), small.get()});
      EXPECT_EQ(Read<float>(got[0]), loss);
      // dp of what the forward pass gave.
      const std::vector<float> p = kind.is_softmax ? Read<float>(got[1]) : x;
      TensorPtr dx = Result(
          kind.grad, {Make<float>(gpu_.get(), shape, p).get(), small.get(),
                      Make<float>(gpu_.get(), {1}, {1.5f}).get()});
      TensorPtr want_dx =
          Result(kind.grad, {Make<double>(cpu_.get(), shape, Doubles(p)).get(),
                             host_labels.get(),
                             Make<double>(cpu_.get(), {1}, {1.5}).get()});
      ExpectClose(Read<float>(dx), Rounded(want_dx), 1e-6);
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaRows, CountsWhatIsRight) {
  for (const Size& size : kSizes) {
    const Shape shape = {size.rows, size.columns};
    const std::vector<float> x = Scores(size, 6);
    TensorPtr got = Result(
        CHOIR_OP_COUNT_CORRECT,
        {Make<float>(gpu_.get(), shape, x).get(),
         Make<int32_t>(gpu_.get(), {size.rows}, Labels<int32_t>(size)).get()});
    TensorPtr want = Result(
        CHOIR_OP_COUNT_CORRECT,
        {Make<float>(cpu_.get(), shape, x).get(),
         Make<int32_t>(cpu_.get(), {size.rows}, Labels<int32_t>(size)).get()});
    EXPECT_EQ(Read<int64_t>(got), Read<int64_t>(want));
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaRows, MeanOfSquares) {
  for (int64_t count : {1, 3, 4, 1023, 4096, 4097, 50001}) {
    for (int64_t skip : {0, 1}) {
      const std::vector<float> x = Floats(count, 1), t = Floats(count, 2);
      TensorPtr got =
          Result(CHOIR_OP_MSE_LOSS,
                 {Place<float>(gpu_, {count}, x, {}, 0, skip).get(),
                  Place<float>(gpu_, {count}, t, {}, 0, skip).get()});
      TensorPtr want =
          Result(CHOIR_OP_MSE_LOSS,
                 {Make<double>(cpu_.get(), {count}, Doubles(x)).get(),
                  Make<double>(cpu_.get(), {count}, Doubles(t)).get()});
      ExpectClose(Read<float>(got), Rounded(want), 1e-6);
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaRows, OfNoRows) {
  TensorPtr x = Make<float>(gpu_.get(), {0, 10}, {});
  TensorPtr labels = Make<int64_t>(gpu_.get(), {0}, {});
  EXPECT_EQ(Read<float>(Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY,
                                {x.get(), labels.get()})[0]),
            std::vector<float>{0});
  EXPECT_EQ(
      Read<int64_t>(Result(CHOIR_OP_COUNT_CORRECT, {x.get(), labels.get()})),
      std::vector<int64_t>{0});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_MSE_LOSS, {x.get(), x.get()})),
            std::vector<float>{0});
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// No status on the way: the launch fails, which the next read says.
TEST_F(CudaRows, ALabelThatIsNoClassFails) {
  TensorPtr x = Make<float>(gpu_.get(), {2, 3}, {1, 2, 3, 4, 5, 6});
  TensorPtr labels = Make<int64_t>(gpu_.get(), {2}, {1, 3});
  TensorPtr loss = std::move(
      Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), labels.get()})[0]);
  float value;
  EXPECT_STATUS(INTERNAL, "softmax_cross_entropy/cuda",
                choir_tensor_read(loss.get(), &value, sizeof(value)));
}

}  // namespace
