// SPDX-License-Identifier: Apache-2.0
// Products by AMX: against sums in double, of sizes on both sides of all that
// they are cut into, whichever way the factors lie and whether they have 16
// bits or are f32; with the same bits for every number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_amx.h"
#include "tests/tensor/kernel_problem.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/sanitized.h"

namespace {

using choir::testing::Device;
using choir::testing::Floats;

struct Sizes {
  int64_t m, n, k;
};

constexpr Sizes kSizes[] = {{1, 1, 1},      {1, 33, 5},       {2, 3, 31},
                            {15, 17, 33},   {16, 16, 32},     {17, 15, 64},
                            {31, 63, 96},   {32, 32, 32},     {33, 1, 100},
                            {48, 80, 1},    {64, 10, 500},    {65, 129, 2},
                            {100, 257, 63}, {128, 784, 65},   {384, 32, 130},
                            {385, 390, 70}, {7, 500, 800},    {500, 7, 4099},
                            {40, 50, 9001}, {400, 420, 1500}, {70, 40, 30001}};

// A matrix of rows by columns, perhaps transposed in memory, with rows that are
// `gap` elements longer than they need be.
struct Matrix {
  Matrix(const Device& device, choir_dtype_t dtype, int64_t rows,
         int64_t columns, bool transposed, int64_t gap, uint32_t seed) {
    const int64_t shape[] = {rows, columns};
    EXPECT_OK(choir_view_make(dtype, 2, shape, &view));
    const int64_t ld = (transposed ? rows : columns) + gap;
    view.strides[0] = transposed ? 1 : ld;
    view.strides[1] = transposed ? ld : 1;
    const int64_t count = ld * (transposed ? columns : rows);
    const size_t bytes = choir_dtype_bytes(dtype);
    EXPECT_OK(choir_buffer_create(
        device.device, static_cast<size_t>(count) * bytes, &view.buffer));
    const std::vector<float> values = Floats(count, seed);
    for (int64_t i = 0; i < count; ++i)
      choir_element_store(At(i), dtype, values[static_cast<size_t>(i)]);
  }
  ~Matrix() { choir_buffer_release(view.buffer); }
  char* At(int64_t element) const {
    return static_cast<char*>(choir_buffer_data(view.buffer)) +
           static_cast<size_t>(element) * choir_dtype_bytes(view.dtype);
  }
  double Get(int64_t i, int64_t j) const {
    return choir_element_load(At(i * view.strides[0] + j * view.strides[1]),
                              view.dtype);
  }
  // As a product reads it.
  double Rounded(int64_t i, int64_t j) const {
    uint16_t bits;
    choir_element_store(&bits, CHOIR_DTYPE_BF16, Get(i, j));
    return choir_element_load(&bits, CHOIR_DTYPE_BF16);
  }
  std::vector<char> Bytes() const {
    return {At(0), At(0) + choir_buffer_bytes(view.buffer)};
  }
  choir_view_t view;
};

// A matmul of these, or with a bias a linear.
struct Record {
  Record(const choir_view_t& a, const choir_view_t& b, const choir_view_t& c,
         const choir_view_t* bias = nullptr, bool adds = false)
      : kernel(bias ? &choir__cpu_linear_amx : &choir__cpu_matmul_amx),
        operands{a, b, bias ? *bias : c, c} {
    record.operation = choir__operation(kernel->op);
    record.operands = operands;
    record.src_count = bias ? 3 : 2;
    record.dst_count = 1;
    record.accumulate = adds;
    record.kernel = &kernel->kernel;
    record.attrs = bias ? nullptr : &attrs;
  }
  bool IsSupported() const { return kernel->supports(&record); }
  void Run(const Device& device) {
    ASSERT_TRUE(IsSupported());
    ASSERT_OK(kernel->kernel.run(&record, device.stream()));
  }
  const choir_op_kernel_t* kernel;
  choir_view_t operands[4];
  choir_matmul_attrs_t attrs = {};
  choir_record_t record = {};
};

class MatmulAmx : public testing::Test {
 protected:
  void SetUp() override {
    if (!choir__has_amx()) GTEST_SKIP() << "this processor has no AMX";
    for (int threads : {1, 2, 3, 7})
      devices_.push_back(std::make_unique<Device>(threads));
  }

  // c = a b (+ bias) (+ c), for all numbers of threads.
  void Check(const Sizes& s, bool ta, bool tb, bool tc, choir_dtype_t a_dtype,
             choir_dtype_t b_dtype, choir_dtype_t c_dtype, bool adds,
             bool has_bias) {
    const Device& device = *devices_[0];
    const Matrix a(device, a_dtype, s.m, s.k, ta, ta, 1);
    const Matrix b(device, b_dtype, s.k, s.n, tb, 3 * !tb, 2);
    const Matrix before(device, c_dtype, s.m, s.n, tc, 5, 3);
    Matrix bias(device, b_dtype, 1, s.n, false, 0, 4);
    choir_view_t vector = bias.view;
    vector.ndim = 1;
    vector.shape[0] = s.n;
    vector.strides[0] = 1;
    std::vector<char> first;
    for (const auto& on : devices_) {
      const Matrix c(device, c_dtype, s.m, s.n, tc, 5, 3);
      Record(a.view, b.view, c.view, has_bias ? &vector : nullptr, adds)
          .Run(*on);
      if (!first.empty()) {
        ASSERT_EQ(c.Bytes(), first)
            << "on " << choir_device_threads(on->device) << " threads";
        continue;
      }
      first = c.Bytes();
      for (int64_t i = 0; i < s.m; i += 1 + s.m / 14)
        for (int64_t j = 0; j < s.n; j += 1 + s.n / 14) {
          double sum = 0, size = 0.01;
          for (int64_t k = 0; k < s.k; ++k) {
            const double term = a.Rounded(i, k) * b.Rounded(k, j);
            sum += term;
            size += std::fabs(term);
          }
          if (has_bias) sum += bias.Rounded(0, j);
          if (adds) sum += before.Get(i, j);
          const double unit = c_dtype == CHOIR_DTYPE_BF16 ? 0x1p-8 : 0x1p-23;
          ASSERT_NEAR(c.Get(i, j), sum, unit * std::fabs(sum) + 1e-6 * size)
              << "row " << i << ", column " << j;
        }
      // What lies between the rows is nobody's.
      const int64_t ld = (tc ? s.m : s.n) + 5;
      for (int64_t row = 0; row < (tc ? s.n : s.m); ++row)
        ASSERT_EQ(
            0, memcmp(c.At((row + 1) * ld - 5), before.At((row + 1) * ld - 5),
                      5 * choir_dtype_bytes(c_dtype)));
    }
  }

  std::vector<std::unique_ptr<Device>> devices_;
};

TEST_F(MatmulAmx, AgreesWithSumsInDouble) {
  constexpr choir_dtype_t kNarrow = CHOIR_DTYPE_BF16, kWide = CHOIR_DTYPE_F32;
  int number = 0;
  for (const Sizes& s : kSizes)
    for (int how = 0; how < 8; ++how) {
      SCOPED_TRACE(std::to_string(s.m) + " by " + std::to_string(s.n) + " by " +
                   std::to_string(s.k) + ", way " + std::to_string(how));
      if (++number % 4 && choir::testing::kSanitized) continue;
      const bool ta = how & 1, tb = how & 2, tc = how & 4;
      for (int wide = 0; wide < 3; ++wide) {
        const choir_dtype_t a = wide == 1 ? kWide : kNarrow;
        const choir_dtype_t b = wide == 2 ? kWide : kNarrow;
        const choir_dtype_t c = (number + wide) % 2 ? kWide : kNarrow;
        Check(s, ta, tb, tc, a, b, c, number % 3 == 0, false);
        if (!tc && s.k < 2000)
          Check(s, false, false, false, kNarrow, b, c, number % 3 == 1, true);
        if (HasFatalFailure()) return;
      }
    }
}

// Results that are written past the caches.
TEST_F(MatmulAmx, WritesLargeResults) {
  const Sizes s = {1500, 1568, 40};
  for (const int64_t gap : {0, 16}) {
    const Device& device = *devices_[1];
    const Matrix a(device, CHOIR_DTYPE_BF16, s.m, s.k, true, 0, 1);
    const Matrix b(device, CHOIR_DTYPE_BF16, s.k, s.n, false, 0, 2);
    const Matrix c(device, CHOIR_DTYPE_F32, s.m, s.n, false, gap, 3);
    Record(a.view, b.view, c.view).Run(device);
    for (int64_t i = 0; i < s.m; i += 7)
      for (int64_t j = 0; j < s.n; j += 5) {
        double sum = 0;
        for (int64_t k = 0; k < s.k; ++k) sum += a.Get(i, k) * b.Get(k, j);
        ASSERT_NEAR(c.Get(i, j), sum, 1e-4) << i << ", " << j;
      }
  }
}

// What is missing of a tile is zeros, and not what lies behind a matrix.
TEST_F(MatmulAmx, KeepsNaNToItsRow) {
  const Device& device = *devices_[0];
  for (bool transposed : {false, true}) {
    const Matrix a(device, CHOIR_DTYPE_BF16, 5, 7, transposed, 3, 1);
    const Matrix b(device, CHOIR_DTYPE_F32, 7, 6, transposed, 3, 2);
    const Matrix c(device, CHOIR_DTYPE_BF16, 5, 6, false, 0, 3);
    const int64_t ld = (transposed ? 5 : 7) + 3;
    for (int64_t row = 0; row < (transposed ? 7 : 5); ++row)
      for (int64_t i = ld - 3; i < ld; ++i)
        choir_element_store(a.At(row * ld + i), CHOIR_DTYPE_BF16, NAN);
    choir_element_store(a.At(2 * a.view.strides[0] + 6 * a.view.strides[1]),
                        CHOIR_DTYPE_BF16, NAN);
    Record(a.view, b.view, c.view).Run(device);
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t j = 0; j < 6; ++j)
        EXPECT_EQ(std::isnan(c.Get(i, j)), i == 2) << i << ", " << j;
  }
}

// Two f32 factors are no product of 16 bits.
TEST_F(MatmulAmx, DeclinesF32) {
  const Device& device = *devices_[0];
  const Matrix a(device, CHOIR_DTYPE_F32, 4, 4, false, 0, 1);
  EXPECT_FALSE(Record(a.view, a.view, a.view).IsSupported());
  const Matrix f16(device, CHOIR_DTYPE_F16, 4, 4, false, 0, 1);
  EXPECT_FALSE(Record(f16.view, a.view, a.view).IsSupported());
}

}  // namespace
