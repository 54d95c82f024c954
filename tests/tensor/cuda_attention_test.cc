// SPDX-License-Identifier: Apache-2.0
// Attention and rotary positions on a GPU: which kernels run, shapes of several
// tiles, and that what is not seen has no effect. All else:
// tests/conformance:op_suite_scripted_cuda.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

struct Problem {
  int64_t n, h, g, t, s, d, e;
  bool causal;
  int64_t offset;
  double dropout;
};

class CudaAttention : public CudaKernelsTest {
 protected:
  // q, k, v and dy.
  static std::vector<Shape> Shapes(const Problem& p) {
    return {{p.n, p.h, p.t, p.d},
            {p.n, p.g, p.s, p.d},
            {p.n, p.g, p.s, p.e},
            {p.n, p.h, p.t, p.e}};
  }
  static std::vector<std::vector<double>> Data(const Problem& p) {
    std::vector<std::vector<double>> data;
    for (const Shape& shape : Shapes(p))
      data.push_back(
          Numbers(Count(shape), static_cast<uint32_t>(data.size() + 1)));
    return data;
  }
  // y, sums, dq, dk and dv, computed in T.
  template <typename T>
  static std::vector<std::vector<float>> Run(
      const DevicePtr& device, const Problem& p,
      const std::vector<std::vector<double>>& data) {
    auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
    attrs.causal = p.causal;
    attrs.offset = p.offset;
    attrs.dropout = p.dropout;
    attrs.seed = 3;
    attrs.step = 5;
    std::vector<TensorPtr> x;
    for (size_t i = 0; i < data.size(); ++i)
      x.push_back(Make<T>(device.get(), Shapes(p)[i],
                          {data[i].begin(), data[i].end()}));
    std::vector<TensorPtr> y, grads;
    EXPECT_OK(RunOp(CHOIR_OP_ATTENTION, {x[0].get(), x[1].get(), x[2].get()},
                    &attrs, &y));
    EXPECT_OK(RunOp(CHOIR_OP_ATTENTION_GRAD,
                    {x[0].get(), x[1].get(), x[2].get(), y[0].get(), y[1].get(),
                     x[3].get()},
                    &attrs, &grads));
    std::vector<std::vector<float>> results;
    for (const auto* made : {&y, &grads}) {
      for (const TensorPtr& result : *made) {
        const std::vector<T> values = Read<T>(result);
        results.emplace_back(values.begin(), values.end());
      }
    }
    return results;
  }
};

// Rows and columns of several tiles, and heads wider than one.
TEST_F(CudaAttention, OfManyTilesIsTheReferences) {
  const Problem problems[] = {{1, 1, 1, 200, 200, 64, 64, true, 0, 0},
                              {1, 2, 1, 70, 150, 33, 20, true, 80, 0.2},
                              {2, 4, 2, 65, 65, 16, 16, false, 0, 0.5},
                              {1, 2, 2, 30, 90, 130, 200, false, 0, 0}};
  for (const Problem& p : problems) {
    SCOPED_TRACE(p.d);
    (void)Launched();
    const auto got = Run<float>(gpu_, p, Data(p));
    EXPECT_EQ(Launched(), (std::vector<std::string>{
                              "choir_attention", "choir_attention_along",
                              "choir_attention_dq", "choir_attention_dk",
                              "choir_attention_dv"}));
    const auto want = Run<double>(cpu_, p, Data(p));
    for (size_t i = 0; i < got.size(); ++i) ExpectClose(got[i], want[i], 1e-5);
    EXPECT_EQ(Run<float>(gpu_, p, Data(p)), got);
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// Rows 70 and on of k and v, in the second tile: no row of q before sees them.
TEST_F(CudaAttention, LaterRowsHaveNoEffect) {
  const Problem p = {1, 1, 1, 130, 130, 8, 8, true, 0, 0};
  const auto finite = Run<float>(gpu_, p, Data(p));
  for (double value : {static_cast<double>(NAN), HUGE_VAL}) {
    auto data = Data(p);
    for (size_t i = 70 * 8; i < 130 * 8; ++i) data[1][i] = data[2][i] = value;
    const auto got = Run<float>(gpu_, p, data);
    for (size_t result : {0, 2}) {
      for (size_t i = 0; i < 70 * 8; ++i)
        ASSERT_EQ(got[result][i], finite[result][i]) << result << ", " << i;
      EXPECT_TRUE(std::isnan(got[result][70 * 8])) << result;
    }
  }
}

TEST_F(CudaAttention, InF64RunsOnTheHost) {
  const Problem p = {1, 1, 1, 3, 3, 2, 2, false, 0, 0};
  (void)Launched();
  (void)Run<double>(gpu_, p, Data(p));
  EXPECT_EQ(Launched(), std::vector<std::string>{});
  EXPECT_EQ(choir_op_stats().host_fallbacks, 2u);
}

TEST_F(CudaAttention, RotaryMakesOneTableForAllHeads) {
  const Shape shape = {2, 3, 40, 10};
  auto attrs = Attrs<choir_rotary_attrs_t>(CHOIR_OP_ROTARY);
  attrs.offset = 100000;
  const std::vector<double> x = Numbers(Count(shape), 1);
  for (choir_op_t op : {CHOIR_OP_ROTARY, CHOIR_OP_ROTARY_GRAD}) {
    (void)Launched();
    const auto got = Read<float>(
        Result(op, {Make<float>(gpu_.get(), shape, {x.begin(), x.end()}).get()},
               &attrs));
    EXPECT_EQ(Launched(),
              (std::vector<std::string>{"choir_rotary_table", "choir_rotary"}));
    const auto want = Read<double>(
        Result(op, {Make<double>(cpu_.get(), shape, x).get()}, &attrs));
    ExpectClose(got, {want.begin(), want.end()}, 1e-6);
  }
}

}  // namespace
