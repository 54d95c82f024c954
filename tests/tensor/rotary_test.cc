// SPDX-License-Identifier: Apache-2.0
// Rotary positions against their formula, far from the first one; rows of heads
// that lie beside each other; what is refused. All else: tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::RunOp;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::StridesOf;
using choir::testing::TensorPtr;

choir_rotary_attrs_t At(double theta, int64_t offset) {
  auto attrs = Attrs<choir_rotary_attrs_t>(CHOIR_OP_ROTARY);
  attrs.theta = theta;
  attrs.offset = offset;
  return attrs;
}

// Of rows of d columns, `rows` to a head: complex numbers x_j + i x_(j + d/2)
// times e^(i angle).
std::vector<double> Turned(const std::vector<float>& x, size_t rows, size_t d,
                           double theta, int64_t offset) {
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size() / d; ++row)
    for (size_t j = 0; j < d / 2; ++j) {
      const double position =
          static_cast<double>(static_cast<int64_t>(row % rows) + offset);
      const double power = -2 * static_cast<double>(j) / static_cast<double>(d);
      const double angle = position * std::pow(theta, power);
      const size_t at = row * d + j;
      y[at] = x[at] * std::cos(angle) - x[at + d / 2] * std::sin(angle);
      y[at + d / 2] = x[at + d / 2] * std::cos(angle) + x[at] * std::sin(angle);
    }
  return y;
}

class Rotary : public ::testing::Test {
 protected:
  choir_status_t Try(const Shape& shape, const choir_rotary_attrs_t& attrs) {
    const TensorPtr x = Make(device_.get(), shape, Floats(Count(shape), 1));
    std::vector<TensorPtr> results;
    return RunOp(CHOIR_OP_ROTARY, {x.get()}, &attrs, &results);
  }
  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(Rotary, TurnsAndTurnsBackFarFromTheFirstPosition) {
  const Shape shape = {2, 3, 70, 8};
  const std::vector<float> x = Floats(Count(shape), 1);
  const TensorPtr input = Make(device_.get(), shape, x);
  for (double theta : {10000.0, 500000.0}) {
    for (int64_t offset : {INT64_C(0), INT64_C(1000000), INT64_C(-35)}) {
      const auto attrs = At(theta, offset);
      const TensorPtr y = Result(CHOIR_OP_ROTARY, {input.get()}, &attrs);
      ExpectNear(Read<float>(y), Turned(x, 70, 8, theta, offset), 5e-7);
      const TensorPtr back = Result(CHOIR_OP_ROTARY_GRAD, {y.get()}, &attrs);
      ExpectNear(Read<float>(back), std::vector<double>(x.begin(), x.end()),
                 5e-7);
    }
  }
}

// The layout of (n, t, h, d) that was split into heads.
TEST_F(Rotary, HeadsMayLieBesideEachOther) {
  const Shape shape = {2, 50, 3, 6};
  const TensorPtr x = Make(device_.get(), shape, Floats(Count(shape), 2));
  auto order = Attrs<choir_transpose_attrs_t>(CHOIR_OP_TRANSPOSE);
  const int64_t axes[] = {0, 2, 1, 3};
  for (int k = 0; k < 4; ++k) order.axes[k] = axes[k];
  const TensorPtr heads = Result(CHOIR_OP_TRANSPOSE, {x.get()}, &order);
  ASSERT_EQ(ShapeOf(heads.get()), (Shape{2, 3, 50, 6}));
  const auto attrs = At(10000, 7);
  const TensorPtr y = Result(CHOIR_OP_ROTARY, {heads.get()}, &attrs);
  EXPECT_EQ(StridesOf(y.get()), StridesOf(heads.get()));
  ExpectNear(Read<float>(y), Turned(Read<float>(heads), 50, 6, 10000, 7), 5e-7);
}

// What it is for: the product of two rows depends on their distance alone.
TEST_F(Rotary, ProductsTellHowFarApartRowsAre) {
  const TensorPtr q = Make(device_.get(), {1, 16}, Numbers(16, 3));
  const TensorPtr k = Make(device_.get(), {1, 16}, Numbers(16, 4));
  std::vector<double> products;
  for (int64_t first : {0, 1, 5, 3000}) {
    const auto near = At(10000, first), far = At(10000, first + 9);
    const auto a = Read<double>(Result(CHOIR_OP_ROTARY, {q.get()}, &far));
    const auto b = Read<double>(Result(CHOIR_OP_ROTARY, {k.get()}, &near));
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    products.push_back(sum);
  }
  for (double product : products) EXPECT_NEAR(product, products[0], 1e-11);
}

TEST_F(Rotary, RefusesWhatHasNoPairs) {
  EXPECT_STATUS(INVALID_ARGUMENT,
                "x is f32 (3, 5); needs (..., rows, columns) with an even",
                Try({3, 5}, At(10000, 0)));
  EXPECT_STATUS(INVALID_ARGUMENT, "x is f32 (4); needs (..., rows, columns)",
                Try({4}, At(10000, 0)));
  EXPECT_STATUS(INVALID_ARGUMENT, "theta is 0.5; needs",
                Try({3, 4}, At(0.5, 0)));
}

}  // namespace
