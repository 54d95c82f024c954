// SPDX-License-Identifier: Apache-2.0
// Reductions on a GPU: which kernels run, and that their results are the CPU's.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

// How a source lies, what goes, and which kernel takes it.
struct Case {
  Shape shape;
  int64_t axis;
  std::vector<int> order;
  int64_t gap;
  int64_t skip;
  const char* form;
  bool is_shared;  // lanes by several blocks
};

void PrintTo(const Case& one, std::ostream* out) {
  for (int64_t size : one.shape) *out << size << " ";
  *out << "axis " << one.axis << " gap " << one.gap << " skip " << one.skip;
}

const Case kCases[] = {
    // All to one.
    {{}, -1, {}, 0, 0, "rows", false},
    {{1}, -1, {}, 0, 0, "rows", false},
    {{7}, -1, {}, 0, 0, "rows", false},
    {{1000}, 0, {}, 0, 0, "rows", false},
    {{4097}, 0, {}, 0, 0, "rows", true},
    {{4097}, 0, {}, 0, 1, "rows", true},
    {{4097}, 0, {}, 2, 0, "rows", true},
    {{33, 17}, -1, {}, 0, 0, "rows", false},
    {{5, 7, 3}, -1, {2, 0, 1}, 0, 0, "rows", false},
    {{100003}, -1, {}, 0, 0, "rows", true},
    {{200000, 3}, -1, {1, 0}, 0, 0, "rows", true},
    // Rows.
    {{3, 5}, 1, {}, 0, 0, "rows", false},
    {{33, 16}, 1, {}, 0, 0, "rows", false},
    {{33, 17}, 1, {}, 0, 0, "rows", false},
    {{600, 3}, 1, {}, 0, 0, "rows", false},
    {{2, 9000}, 1, {}, 0, 0, "rows", true},
    {{2, 9001}, 1, {}, 0, 0, "rows", true},
    {{2, 9000}, 1, {}, 0, 3, "rows", true},
    {{4, 3, 7, 5}, 3, {}, 0, 0, "rows", false},
    {{4, 3, 7, 8}, 3, {}, 1, 0, "rows", false},
    {{40, 1}, 1, {}, 0, 0, "wide", false},
    {{300, 8}, 0, {1, 0}, 0, 0, "rows", false},
    // Columns: what biases' gradients are.
    {{64, 10}, 0, {}, 0, 0, "columns", false},
    {{64, 12}, 0, {}, 0, 0, "wide", false},
    {{64, 12}, 0, {}, 0, 1, "columns", false},
    {{64, 1000}, 0, {}, 0, 0, "wide", true},
    {{64, 1001}, 0, {}, 0, 0, "columns", true},
    {{5000, 20}, 0, {}, 0, 0, "wide", true},
    {{5000, 3}, 0, {}, 0, 0, "columns", true},
    {{7, 2, 6}, 1, {}, 0, 0, "columns", false},
    {{2, 20, 12, 12}, 1, {}, 0, 0, "wide", false},
    {{2, 20, 12, 12}, 2, {0, 3, 1, 2}, 0, 0, "wide", false},
    {{2, 20, 12, 12}, 0, {}, 0, 0, "wide", false},
    {{2, 20, 12, 12}, 2, {}, 1, 0, "rows", false},
    {{3, 2, 1, 2, 3, 2}, 4, {}, 0, 0, "columns", false},
};

class CudaReduce : public CudaKernelsTest {
 protected:
  static choir_reduce_attrs_t Over(const Case& one, bool keep_dims = false) {
    choir_reduce_attrs_t attrs = Attrs<choir_reduce_attrs_t>(CHOIR_OP_SUM);
    attrs.axis = one.axis;
    attrs.keep_dims = keep_dims;
    return attrs;
  }
  static TensorPtr Source(const DevicePtr& device, const Case& one,
                          const std::vector<float>& values) {
    return Place<float>(device, one.shape, values, one.order, one.gap,
                        one.skip);
  }
  void ExpectLaunched(const std::string& kind, const Case& one) {
    std::vector<std::string> want = {"choir_" + kind + "_" + one.form};
    if (one.is_shared) want.push_back("choir_" + kind + "_finish");
    EXPECT_EQ(Launched(), want);
  }
};

TEST_F(CudaReduce, HasTheResultsOfTheCpu) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(::testing::PrintToString(one));
    const choir_reduce_attrs_t attrs = Over(one);
    const std::vector<float> values = Floats(Count(one.shape), 7);
    TensorPtr on_gpu = Source(gpu_, one, values);
    // In double, as sums of the CPU's in f32 have an error too.
    TensorPtr on_cpu =
        Place<double>(cpu_, one.shape, {values.begin(), values.end()});
    const struct {
      choir_op_t op;
      const char* kind;
      double tolerance;
    } kinds[] = {{CHOIR_OP_SUM, "sum", 2e-6},
                 {CHOIR_OP_MEAN, "sum", 2e-6},
                 {CHOIR_OP_MAX, "max", 0}};
    for (const auto& kind : kinds) {
      (void)Launched();
      TensorPtr got = Result(kind.op, {on_gpu.get()}, &attrs);
      ExpectLaunched(kind.kind, one);
      TensorPtr exact = Result(kind.op, {on_cpu.get()}, &attrs);
      const std::vector<double> sums = Read<double>(exact);
      std::vector<float> want(sums.begin(), sums.end());
      ExpectClose(Read<float>(got), want, kind.tolerance);
      const std::vector<float> before = Floats(Count(ShapeOf(exact.get())), 9);
      for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
      got = Added(gpu_, kind.op, {on_gpu.get()}, &attrs, ShapeOf(exact.get()),
                  before);
      ExpectClose(Read<float>(got), want, 2e-6);
      if (HasFailure()) return;
    }
    (void)Launched();
    TensorPtr got = Result(CHOIR_OP_ARGMAX, {on_gpu.get()}, &attrs);
    ExpectLaunched("argmax", one);
    EXPECT_EQ(Read<int64_t>(got),
              Read<int64_t>(Result(CHOIR_OP_ARGMAX, {on_cpu.get()}, &attrs)));
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaReduce, DimensionsMayBeKept) {
  const Case one = {{3, 40, 5}, 1, {}, 0, 0, "columns", false};
  const choir_reduce_attrs_t attrs = Over(one, true);
  const std::vector<float> values = Floats(600, 3);
  TensorPtr got =
      Result(CHOIR_OP_SUM, {Source(gpu_, one, values).get()}, &attrs);
  EXPECT_EQ(ShapeOf(got.get()), (Shape{3, 1, 5}));
  TensorPtr want =
      Result(CHOIR_OP_SUM, {Source(cpu_, one, values).get()}, &attrs);
  ExpectClose(Read<float>(got), Read<float>(want), 1e-6);
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// Elements of one size: the error of a sum would show.
TEST_F(CudaReduce, LongSumsAreExactWhereTheyCanBe) {
  const int64_t count = (int64_t{1} << 21) + 5;
  const std::vector<float> values(static_cast<size_t>(count), 1.25f);
  TensorPtr x = Make<float>(gpu_.get(), {count}, values);
  const std::vector<float> want = {1.25f * static_cast<float>(count)};
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SUM, {x.get()})), want);
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_MEAN, {x.get()})),
            std::vector<float>{1.25f});
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaReduce, ANumberThatIsNoneIsTheLargest) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {
      1, kNan, kInfinity,  kNan,       -kInfinity, 3,
      3, 2,    -kInfinity, -kInfinity, -kInfinity, -kInfinity};
  choir_reduce_attrs_t attrs = Attrs<choir_reduce_attrs_t>(CHOIR_OP_MAX);
  attrs.axis = 1;
  TensorPtr x = Make<float>(gpu_.get(), {3, 4}, values);
  const std::vector<float> most =
      Read<float>(Result(CHOIR_OP_MAX, {x.get()}, &attrs));
  EXPECT_TRUE(std::isnan(most[0]));
  EXPECT_EQ(most[1], 3);
  EXPECT_EQ(most[2], -kInfinity);
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_ARGMAX, {x.get()}, &attrs)),
            (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// Read as they lie and added up in f32 and double; the result is rounded once.
TEST_F(CudaReduce, HalvesAsTheyLie) {
  const auto cast = [](const TensorPtr& x, choir_dtype_t dtype) {
    auto attrs = Attrs<choir_cast_attrs_t>(CHOIR_OP_CAST);
    attrs.dtype = dtype;
    return Result(CHOIR_OP_CAST, {x.get()}, &attrs);
  };
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    SCOPED_TRACE(choir_dtype_name(dtype));
    std::vector<float> values(64 * 12);
    std::vector<double> sums(12);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 7 % 23) / 2 - 1;
      sums[i % 12] += values[i];
    }
    TensorPtr x = cast(Make<float>(gpu_.get(), {64, 12}, values), dtype);
    choir_reduce_attrs_t attrs = Attrs<choir_reduce_attrs_t>(CHOIR_OP_SUM);
    attrs.axis = 0;
    Launched();
    TensorPtr got = Result(CHOIR_OP_SUM, {x.get()}, &attrs);
    EXPECT_EQ(Launched(), std::vector<std::string>{"choir_sum_columns"});
    TensorPtr want = cast(Make<double>(gpu_.get(), {12}, sums), dtype);
    EXPECT_EQ(Read<float>(cast(got, CHOIR_DTYPE_F32)),
              Read<float>(cast(want, CHOIR_DTYPE_F32)));
    TensorPtr most = Result(CHOIR_OP_MAX, {x.get()}, &attrs);
    EXPECT_EQ(Read<float>(cast(most, CHOIR_DTYPE_F32)),
              std::vector<float>(12, 10));
    EXPECT_EQ(choir_op_stats().widened, 0u);
  }
}

TEST_F(CudaReduce, OfNothing) {
  choir_reduce_attrs_t attrs = Attrs<choir_reduce_attrs_t>(CHOIR_OP_SUM);
  attrs.axis = 1;
  TensorPtr x = Make<float>(gpu_.get(), {3, 0}, {});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SUM, {x.get()}, &attrs)),
            (std::vector<float>{0, 0, 0}));
  EXPECT_TRUE(
      std::isnan(Read<float>(Result(CHOIR_OP_MEAN, {x.get()}, &attrs))[2]));
  EXPECT_EQ(Launched(),
            (std::vector<std::string>{"choir_sum_rows", "choir_sum_rows"}));
  // And into nothing.
  TensorPtr none = Make<float>(gpu_.get(), {0, 3}, {});
  EXPECT_EQ(ShapeOf(Result(CHOIR_OP_SUM, {none.get()}, &attrs).get()),
            (Shape{0}));
  EXPECT_EQ(Launched(), std::vector<std::string>{});
}

}  // namespace
