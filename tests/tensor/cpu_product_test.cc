// SPDX-License-Identifier: Apache-2.0
// Products are bit for bit what their definition says, one fmaf per term, k
// ascending: for every number of threads and on every instruction set; batches
// and sums that go on from what is there, too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/kernel_problem.h"

namespace {

using choir::testing::Device;
using choir::testing::Layout;
using choir::testing::Problem;

// Element (i, j, ...) of the view, whose indices are the digits of `index` in
// its shape.
float& At(const choir_view_t& view, int64_t index) {
  int64_t offset = view.offset;
  for (int32_t k = view.ndim - 1; k >= 0; --k) {
    offset += index % view.shape[k] * view.strides[k];
    index /= view.shape[k];
  }
  return static_cast<float*>(choir_buffer_data(view.buffer))[offset];
}

// The view's elements, in the order of its shape; of matrices whose rows and
// columns are to change places: in that order.
std::vector<float> Read(const choir_view_t& view, bool transpose) {
  std::vector<float> values(choir_view_count(&view));
  const int64_t rows = view.shape[view.ndim - 2];
  const int64_t columns = view.shape[view.ndim - 1];
  for (int64_t e = 0; e < static_cast<int64_t>(values.size()); ++e) {
    const int64_t i = e / columns % rows, j = e % columns;
    values[transpose ? e - i * columns - j + j * rows + i : e] = At(view, e);
  }
  return values;
}

// What the record's result is, from sources and result as they are.
std::vector<float> Define(const choir_record_t& record, bool ta, bool tb) {
  const choir_view_t& view = *choir_record_src(&record, 0);
  const choir_view_t& c = *choir_record_dst(&record, 0);
  const int64_t m = c.shape[c.ndim - 2], n = c.shape[c.ndim - 1];
  const int64_t k = view.shape[view.ndim - (ta ? 2 : 1)];
  const std::vector<float> a = Read(view, ta);
  const std::vector<float> b = Read(*choir_record_src(&record, 1), tb);
  std::vector<float> result(choir_view_count(&c));
  if (record.accumulate) result = Read(c, false);
  for (int64_t row = 0; row < static_cast<int64_t>(result.size()) / n; ++row) {
    float* sums = &result[row * n];
    const float* factors = &a[row * k];
    const float* terms = &b[row / m * k * n];
    for (int64_t i = 0; i < k; ++i, terms += n)
      for (int64_t j = 0; j < n; ++j)
        sums[j] = std::fma(factors[i], terms[j], sums[j]);
  }
  return result;
}

struct Sizes {
  int m, n, k;
  int batch = 1;
};

const Sizes kSizes[] = {
    // The MNIST network's.
    {64, 10, 500},
    {64, 100, 300},
    {300, 10, 64},
    {64, 300, 100},
    // Rows that take the right factor where it lies; one row, one column.
    {1, 300, 700},
    {300, 1, 700},
    {16, 288, 300},
    {17, 288, 300},
    {5, 63, 257},
    // Ends of strips and panels.
    {33, 65, 700},
    {201, 17, 513},
    {129, 301, 65},
    {7, 300, 31},
    {24, 256, 256},
    {25, 257, 257},
    {48, 288, 40},
    {1, 1, 1},
    {2, 3, 5},
    {8, 32, 1},
    // Blocks: of terms; of these and rows, which are packed where they are
    // transposed; of these and columns.
    {20, 40, 3100},
    {80, 290, 1601},
    {26, 700, 1601},
    // Batches: threads share the products, or, of fewer, each of them.
    {64, 64, 32, 6},
    {33, 65, 70, 5},
    {1, 64, 65, 6},
    {16, 96, 300, 4},
    {100, 129, 33, 6},
};

class CpuProduct : public ::testing::TestWithParam<bool> {};

TEST_P(CpuProduct, IsItsDefinition) {
  const bool accumulate = GetParam();
  const choir_op_def_t* def = choir__op_def(CHOIR_OP_MATMUL);
  const choir__isa_t best = choir__isa();
  std::vector<std::unique_ptr<Device>> devices;
  for (int threads : {1, 2, 3, 4, 7})
    devices.push_back(std::make_unique<Device>(threads));
  for (const Sizes& s : kSizes) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool ta = transposed & 1, tb = transposed & 2;
      auto pair = [&s](int rows, int columns) {
        return (s.batch > 1 ? std::to_string(s.batch) + "," : "") +
               std::to_string(rows) + "," + std::to_string(columns);
      };
      const std::string shapes = (ta ? pair(s.k, s.m) : pair(s.m, s.k)) + ";" +
                                 (tb ? pair(s.n, s.k) : pair(s.k, s.n));
      const std::string attrs =
          std::string(ta ? "transpose_a=1" : "transpose_a=0") +
          (tb ? " transpose_b=1" : " transpose_b=0");
      for (Layout layout : {Layout::kDense, Layout::kReversed}) {
        if (layout == Layout::kReversed && s.batch > 1) continue;
        Problem problem(def, {shapes.c_str(), attrs.c_str()}, layout,
                        accumulate, CHOIR_DTYPE_F32, *devices[0]);
        ASSERT_TRUE(problem.valid()) << shapes;
        problem.Reset();
        const std::vector<float> want = Define(problem.record(), ta, tb);
        for (int isa = best; isa >= CHOIR__ISA_BASE; --isa) {
          choir__isa_limit(static_cast<choir__isa_t>(isa));
          for (const auto& device : devices) {
            // Where fmaf is a function it takes its time.
            if (isa == CHOIR__ISA_BASE && device != devices[0]) continue;
            problem.Run(&choir__cpu_matmul, device->stream());
            const choir_view_t& c = *choir_record_dst(&problem.record(), 0);
            for (size_t e = 0; e < want.size(); ++e) {
              const float got = At(c, static_cast<int64_t>(e));
              ASSERT_EQ(memcmp(&got, &want[e], sizeof(got)), 0)
                  << problem.Describe() << " on instruction set " << isa
                  << " and " << choir_device_threads(device->device)
                  << " threads: element " << e << " is " << got << "; needs "
                  << want[e];
            }
          }
        }
        choir__isa_limit(best);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sums, CpuProduct, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "GoOn" : "Begin";
                         });

}  // namespace
