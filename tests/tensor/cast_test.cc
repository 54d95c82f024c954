// SPDX-License-Identifier: Apache-2.0
// Between all pairs of dtypes, at the values where rounding and saturation
// show.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::TensorPtr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CastTest : public ::testing::Test {
 protected:
  TensorPtr To(const TensorPtr& x, choir_dtype_t dtype) {
    choir_cast_attrs_t attrs = {dtype};
    TensorPtr y = Result(CHOIR_OP_CAST, {x.get()}, &attrs);
    EXPECT_EQ(choir_tensor_dtype(y.get()), dtype);
    return y;
  }
  template <typename T>
  std::vector<T> Bits(const TensorPtr& x) {
    std::vector<T> bits(static_cast<size_t>(choir_tensor_count(x.get())));
    EXPECT_OK(choir_tensor_read(x.get(), bits.data(), bits.size() * sizeof(T)));
    return bits;
  }
  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(CastTest, FloatsToIntegersTruncateAndSaturate) {
  TensorPtr x = Make<float>(device_.get(), {8},
                            {2.9f, -2.9f, 300, -1, 3e9f, -3e9f, kNan, kInf});
  EXPECT_EQ(Read<int32_t>(To(x, CHOIR_DTYPE_I32)),
            (std::vector<int32_t>{2, -2, 300, -1, INT32_MAX, INT32_MIN, 0,
                                  INT32_MAX}));
  EXPECT_EQ(Read<uint8_t>(To(x, CHOIR_DTYPE_U8)),
            (std::vector<uint8_t>{2, 0, 255, 0, 255, 0, 0, 255}));
  EXPECT_EQ(Read<int64_t>(To(x, CHOIR_DTYPE_I64)),
            (std::vector<int64_t>{2, -2, 300, -1, 3000000000, -3000000000, 0,
                                  INT64_MAX}));
  TensorPtr y = Make<float>(device_.get(), {4}, {0, -0.0f, 0.25f, kNan});
  EXPECT_EQ(Bits<uint8_t>(To(y, CHOIR_DTYPE_BOOL)),
            (std::vector<uint8_t>{0, 0, 1, 1}));
}

TEST_F(CastTest, IntegersToIntegersSaturate) {
  TensorPtr x =
      Make<int64_t>(device_.get(), {5}, {-1, 255, 256, INT64_MAX, INT64_MIN});
  EXPECT_EQ(Read<uint8_t>(To(x, CHOIR_DTYPE_U8)),
            (std::vector<uint8_t>{0, 255, 255, 255, 0}));
  EXPECT_EQ(Read<int32_t>(To(x, CHOIR_DTYPE_I32)),
            (std::vector<int32_t>{-1, 255, 256, INT32_MAX, INT32_MIN}));
  EXPECT_EQ(Read<int64_t>(To(x, CHOIR_DTYPE_I64)), Read<int64_t>(x));
  EXPECT_EQ(Bits<uint8_t>(To(x, CHOIR_DTYPE_BOOL)),
            (std::vector<uint8_t>{1, 1, 1, 1, 1}));
}

// 2^60 + 2^36 lies between two floats; the 1 decides, and a double in between
// would lose it.
TEST_F(CastTest, LargeIntegersAreRoundedOnce) {
  const int64_t value = (int64_t{1} << 60) + (int64_t{1} << 36) + 1;
  TensorPtr x = Make<int64_t>(device_.get(), {1}, {value});
  EXPECT_EQ(Read<float>(To(x, CHOIR_DTYPE_F32))[0], static_cast<float>(value));
  EXPECT_EQ(Read<float>(To(x, CHOIR_DTYPE_F32))[0],
            std::ldexp(1.0f, 60) + std::ldexp(1.0f, 37));
  EXPECT_EQ(Read<double>(To(x, CHOIR_DTYPE_F64))[0],
            static_cast<double>(value));
}

// Bit patterns of binary16 and bfloat16 from their definitions.
TEST_F(CastTest, HalfPrecision) {
  TensorPtr x = Make<float>(
      device_.get(), {9},
      {1, -2, 65504, 65520, 5.9604645e-8f, 0.1f, kInf, 1.00048828125f, 0});
  EXPECT_EQ(Bits<uint16_t>(To(x, CHOIR_DTYPE_F16)),
            (std::vector<uint16_t>{0x3C00, 0xC000, 0x7BFF, 0x7C00, 0x0001,
                                   0x2E66, 0x7C00, 0x3C00, 0}));
  TensorPtr y = Make<float>(device_.get(), {5},
                            {1, -2, 1.00390625f, 1.01171875f, 3.3895314e38f});
  EXPECT_EQ(Bits<uint16_t>(To(y, CHOIR_DTYPE_BF16)),
            (std::vector<uint16_t>{0x3F80, 0xC000, 0x3F80, 0x3F82, 0x7F7F}));
  // Down and up again.
  EXPECT_EQ(Read<float>(To(To(y, CHOIR_DTYPE_BF16), CHOIR_DTYPE_F32))[3],
            1.015625f);
  EXPECT_EQ(Read<double>(To(To(x, CHOIR_DTYPE_F16), CHOIR_DTYPE_F64))[5],
            0.0999755859375);
}

TEST_F(CastTest, NanStaysNan) {
  TensorPtr x = Make<float>(device_.get(), {1}, {kNan});
  for (choir_dtype_t dtype :
       {CHOIR_DTYPE_F64, CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    EXPECT_TRUE(std::isnan(Read<float>(To(To(x, dtype), CHOIR_DTYPE_F32))[0]));
  }
}

TEST_F(CastTest, DoubleToFloatRoundsToEven) {
  const double tie = 1 + std::ldexp(1.0, -24);
  TensorPtr x =
      Make<double>(device_.get(), {3}, {tie, std::nextafter(tie, 2), 1e300});
  EXPECT_EQ(Read<float>(To(x, CHOIR_DTYPE_F32)),
            (std::vector<float>{1, std::nextafterf(1, 2), kInf}));
}

TEST_F(CastTest, RefusesWhatIsNoDtype) {
  TensorPtr x = Make<float>(device_.get(), {1}, {1});
  choir_cast_attrs_t attrs = {CHOIR_DTYPE_COUNT};
  EXPECT_STATUS(INVALID_ARGUMENT, "cast: dtype",
                Failure(CHOIR_OP_CAST, {x.get()}, &attrs));
}

}  // namespace
