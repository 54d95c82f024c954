// SPDX-License-Identifier: Apache-2.0
// matmul and linear against sums in double.
#include <gtest/gtest.h>

#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

class LinearAlgebra : public ::testing::Test {
 protected:
  // (batch, m, k) x (k, n) with either side stored transposed.
  template <typename T>
  void CheckMatmul(int64_t m, int64_t k, int64_t n, bool transpose_a,
                   bool transpose_b, double tolerance) {
    std::vector<double> a = Numbers(m * k, 1), b = Numbers(k * n, 2);
    std::vector<T> a_stored(a.size()), b_stored(b.size());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < k; ++j)
        a_stored[static_cast<size_t>(transpose_a ? j * m + i : i * k + j)] =
            static_cast<T>(a[static_cast<size_t>(i * k + j)]);
    }
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < n; ++j)
        b_stored[static_cast<size_t>(transpose_b ? j * k + i : i * n + j)] =
            static_cast<T>(b[static_cast<size_t>(i * n + j)]);
    }
    std::vector<double> expected;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l)
          sum += static_cast<double>(
                     static_cast<T>(a[static_cast<size_t>(i * k + l)])) *
                 static_cast<double>(
                     static_cast<T>(b[static_cast<size_t>(l * n + j)]));
        expected.push_back(sum);
      }
    }
    TensorPtr left =
        Make(device_.get(), transpose_a ? Shape{k, m} : Shape{m, k}, a_stored);
    TensorPtr right =
        Make(device_.get(), transpose_b ? Shape{n, k} : Shape{k, n}, b_stored);
    choir_matmul_attrs_t attrs = {transpose_a, transpose_b};
    TensorPtr c = Result(CHOIR_OP_MATMUL, {left.get(), right.get()}, &attrs);
    EXPECT_EQ(ShapeOf(c.get()), (Shape{m, n}));
    ExpectNear(Read<T>(c), expected, tolerance);
  }

  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(LinearAlgebra, Matmul) {
  for (bool a : {false, true}) {
    for (bool b : {false, true}) {
      CheckMatmul<float>(7, 5, 3, a, b, 1e-6);
      CheckMatmul<float>(64, 65, 33, a, b, 1e-5);
      CheckMatmul<float>(1, 300, 1, a, b, 1e-5);
      CheckMatmul<double>(7, 5, 3, a, b, 1e-14);
    }
  }
}

// A transposed operand may also come as a view.
TEST_F(LinearAlgebra, MatmulOfTransposedViews) {
  TensorPtr a = Make<float>(device_.get(), {2, 3}, {1, 2, 3, 4, 5, 6});
  TensorPtr turned = Result(CHOIR_OP_TRANSPOSE, {a.get()});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_MATMUL, {a.get(), turned.get()})),
            (std::vector<float>{14, 32, 32, 77}));
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_MATMUL, {turned.get(), a.get()})),
            (std::vector<float>{17, 22, 27, 22, 29, 36, 27, 36, 45}));
}

TEST_F(LinearAlgebra, MatmulBroadcastsLeadingDimensions) {
  TensorPtr a = Make<float>(device_.get(), {2, 1, 1, 2}, {1, 2, 3, 4});
  TensorPtr b = Make<float>(device_.get(), {3, 2, 1}, {1, 0, 0, 1, 1, 1});
  TensorPtr c = Result(CHOIR_OP_MATMUL, {a.get(), b.get()});
  EXPECT_EQ(ShapeOf(c.get()), (Shape{2, 3, 1, 1}));
  EXPECT_EQ(Read<float>(c), (std::vector<float>{1, 2, 3, 3, 4, 7}));
}

TEST_F(LinearAlgebra, SumsOfNothingAreZero) {
  TensorPtr a = Make<float>(device_.get(), {2, 0}, {});
  TensorPtr b = Make<float>(device_.get(), {0, 3}, {});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_MATMUL, {a.get(), b.get()})),
            std::vector<float>(6, 0));
  TensorPtr bias = Make<float>(device_.get(), {3}, {1, 2, 3});
  EXPECT_EQ(
      Read<float>(Result(CHOIR_OP_LINEAR, {a.get(), b.get(), bias.get()})),
      (std::vector<float>{1, 2, 3, 1, 2, 3}));
}

TEST_F(LinearAlgebra, Linear) {
  const int64_t rows = 9, in = 40, out = 7;
  std::vector<float> x = Floats(rows * in, 3), w = Floats(in * out, 4),
                     b = Floats(out, 5);
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = b[static_cast<size_t>(o)];
      for (int64_t i = 0; i < in; ++i)
        sum += static_cast<double>(x[static_cast<size_t>(r * in + i)]) *
               static_cast<double>(w[static_cast<size_t>(i * out + o)]);
      expected.push_back(sum);
    }
  }
  TensorPtr x_tensor = Make(device_.get(), {rows, in}, x);
  TensorPtr w_tensor = Make(device_.get(), {in, out}, w);
  TensorPtr b_tensor = Make(device_.get(), {out}, b);
  ExpectNear(
      Read<float>(Result(CHOIR_OP_LINEAR,
                         {x_tensor.get(), w_tensor.get(), b_tensor.get()})),
      expected, 2e-6);
}

TEST_F(LinearAlgebra, Refusals) {
  TensorPtr vector = Make<float>(device_.get(), {3}, {1, 2, 3});
  TensorPtr a = Make<float>(device_.get(), {2, 3}, {1, 2, 3, 4, 5, 6});
  TensorPtr b = Make<float>(device_.get(), {2, 2}, {1, 2, 3, 4});
  EXPECT_STATUS(INVALID_ARGUMENT,
                "matmul: a is f32 (3); needs 2 or more dimensions",
                Failure(CHOIR_OP_MATMUL, {vector.get(), a.get()}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "matmul: a f32 (2, 3) has 3 columns and b f32 (2, 2) has 2 "
                "rows (after the transposes); needs as many",
                Failure(CHOIR_OP_MATMUL, {a.get(), b.get()}));
  choir_matmul_attrs_t attrs = {true, false};
  EXPECT_EQ(ShapeOf(Result(CHOIR_OP_MATMUL, {a.get(), b.get()}, &attrs).get()),
            (Shape{3, 2}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "linear: x has 3 features; W (in, out) needs 2",
                Failure(CHOIR_OP_LINEAR, {a.get(), b.get(), vector.get()}));
  EXPECT_STATUS(INVALID_ARGUMENT, "linear: b is f32 (3); needs shape (2)",
                Failure(CHOIR_OP_LINEAR, {b.get(), b.get(), vector.get()}));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "linear: x is f32 (3); needs 2 dimensions",
      Failure(CHOIR_OP_LINEAR, {vector.get(), b.get(), vector.get()}));
}

}  // namespace
