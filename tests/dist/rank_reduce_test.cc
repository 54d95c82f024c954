// SPDX-License-Identifier: Apache-2.0
// The fast loops give the bits of the plain ones, also for values that no
// training should meet. What the plain ones mean is checked by comm_suite.
#include <gtest/gtest.h>
#include <math.h>
#include <string.h>

#include <limits>
#include <vector>

#include "core/random.h"
extern "C" {
#include "dist/rank_reduce_internal.h"
}

namespace {

const size_t kCount = 1003;  // no multiple of any vector

std::vector<unsigned char> RandomBits(size_t bytes, uint32_t stream) {
  std::vector<unsigned char> data(bytes);
  choir_random_key_t key = {7, stream, 0};
  for (size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(choir_random_word(key, 0, i) >> 13);
  return data;
}

template <typename T>
void MakeSpecial(std::vector<unsigned char>* data) {
  const T specials[] = {std::numeric_limits<T>::infinity(),
                        -std::numeric_limits<T>::infinity(),
                        std::numeric_limits<T>::denorm_min(),
                        T(0),
                        -T(0),
                        T(1),
                        std::numeric_limits<T>::max()};
  for (size_t i = 0; i < 60; ++i)
    memcpy(data->data() + sizeof(T) * (i * 16 + i % 9), &specials[i % 7],
           sizeof(T));
}

// NaN is NaN; its payload is nobody's promise.
bool SameElement(const unsigned char* a, const unsigned char* b,
                 choir_dtype_t dtype) {
  if (choir_dtype_is_float(dtype) && isnan(choir_element_load(a, dtype)))
    return isnan(choir_element_load(b, dtype));
  return !memcmp(a, b, choir_dtype_bytes(dtype));
}

class ReduceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    plain_ = choir__reduce_table_plain();
    fast_ = choir__reduce_table_avx2();
    if (!fast_) GTEST_SKIP() << "this machine has no AVX2, FMA and F16C";
  }
  const choir__reduce_table_t* plain_ = nullptr;
  const choir__reduce_table_t* fast_ = nullptr;
};

TEST_F(ReduceTest, FastLoopsGiveTheSameBits) {
  int compared = 0;
  for (int d = 0; d < CHOIR_DTYPE_COUNT; ++d) {
    auto dtype = static_cast<choir_dtype_t>(d);
    size_t e = choir_dtype_bytes(dtype);
    for (int op = 0; op < CHOIR_REDUCE_COUNT; ++op) {
      ASSERT_EQ(plain_->combine[d][op] != nullptr,
                fast_->combine[d][op] != nullptr);
      if (!plain_->combine[d][op]) continue;
      auto src = RandomBits(kCount * e, 1);
      auto a = RandomBits(kCount * e, 2);
      if (dtype == CHOIR_DTYPE_F32) MakeSpecial<float>(&src);
      if (dtype == CHOIR_DTYPE_F64) MakeSpecial<double>(&src);
      auto b = a;
      plain_->combine[d][op](a.data(), src.data(), 1.0 / 3, kCount);
      fast_->combine[d][op](b.data(), src.data(), 1.0 / 3, kCount);
      for (size_t i = 0; i < kCount; ++i)
        ASSERT_TRUE(SameElement(&a[i * e], &b[i * e], dtype))
            << choir_dtype_name(dtype) << " op " << op << " element " << i;
      ++compared;
    }
    if (!plain_->scale[d]) continue;
    auto src = RandomBits(kCount * e, 3);
    auto a = src;
    auto b = src;
    plain_->scale[d](a.data(), src.data(), 0.7, kCount);
    fast_->scale[d](b.data(), src.data(), 0.7, kCount);
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_TRUE(SameElement(&a[i * e], &b[i * e], dtype));
  }
  EXPECT_EQ(compared, 5 + 5 + 4 + 4 + 4 + 4);
}

// Against the definition, one element at a time.
TEST_F(ReduceTest, FusedLoopFollowsRankOrder) {
  ASSERT_NE(fast_->fused_f32, nullptr);
  for (int32_t ranks : {1, 2, 3, 7}) {
    std::vector<std::vector<unsigned char>> bits;
    std::vector<const float*> sources;
    std::vector<float> shares;
    for (int32_t r = 0; r < ranks; ++r) {
      bits.push_back(RandomBits(kCount * 4, static_cast<uint32_t>(20 + r)));
      MakeSpecial<float>(&bits.back());
      shares.push_back(static_cast<float>(r + 1) / 11);
    }
    for (auto& data : bits)
      sources.push_back(reinterpret_cast<const float*>(data.data()));
    for (const float* weights : {static_cast<const float*>(nullptr),
                                 static_cast<const float*>(shares.data())}) {
      std::vector<float> out(kCount), again(kCount);
      float* destinations[] = {out.data(), again.data()};
      fast_->fused_f32(sources.data(), weights, ranks, destinations, 2, kCount);
      for (size_t i = 0; i < kCount; ++i) {
        float acc = weights ? weights[0] * sources[0][i] : sources[0][i];
        for (int32_t r = 1; r < ranks; ++r) {
          float x = sources[static_cast<size_t>(r)][i];
          acc = weights ? fmaf(weights[r], x, acc) : acc + x;
        }
        ASSERT_TRUE(SameElement(reinterpret_cast<unsigned char*>(&acc),
                                reinterpret_cast<unsigned char*>(&out[i]),
                                CHOIR_DTYPE_F32))
            << ranks << " " << i;
        ASSERT_EQ(memcmp(&out[i], &again[i], 4), 0);
      }
    }
  }
}

TEST_F(ReduceTest, FastConversionsGiveTheSameBits) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i)
    halves[i] = static_cast<uint16_t>(i);
  std::vector<float> a(65536), b(65536);
  auto compare = [&](choir_dtype_t dtype) {
    for (size_t i = 0; i < halves.size(); ++i)
      ASSERT_TRUE(SameElement(reinterpret_cast<unsigned char*>(&a[i]),
                              reinterpret_cast<unsigned char*>(&b[i]),
                              CHOIR_DTYPE_F32))
          << choir_dtype_name(dtype) << " " << i;
  };
  plain_->f16_to_f32(a.data(), halves.data(), halves.size());
  fast_->f16_to_f32(b.data(), halves.data(), halves.size());
  compare(CHOIR_DTYPE_F16);
  plain_->bf16_to_f32(a.data(), halves.data(), halves.size());
  fast_->bf16_to_f32(b.data(), halves.data(), halves.size());
  compare(CHOIR_DTYPE_BF16);

  auto bits = RandomBits(kCount * 4, 4);
  MakeSpecial<float>(&bits);
  std::vector<float> floats(kCount);
  memcpy(floats.data(), bits.data(), bits.size());
  // Also ties and values around the ends of f16's range.
  for (size_t i = 0; i < 200; ++i)
    floats[i + 700] = ldexpf(1.0f + static_cast<float>(i) / 4096.0f,
                             static_cast<int>(i % 45) - 28);
  std::vector<uint16_t> x(kCount), y(kCount);
  plain_->f16_from_f32(x.data(), floats.data(), kCount);
  fast_->f16_from_f32(y.data(), floats.data(), kCount);
  for (size_t i = 0; i < kCount; ++i)
    ASSERT_TRUE(SameElement(reinterpret_cast<unsigned char*>(&x[i]),
                            reinterpret_cast<unsigned char*>(&y[i]),
                            CHOIR_DTYPE_F16))
        << floats[i];
  plain_->bf16_from_f32(x.data(), floats.data(), kCount);
  fast_->bf16_from_f32(y.data(), floats.data(), kCount);
  for (size_t i = 0; i < kCount; ++i)
    ASSERT_TRUE(SameElement(reinterpret_cast<unsigned char*>(&x[i]),
                            reinterpret_cast<unsigned char*>(&y[i]),
                            CHOIR_DTYPE_BF16))
        << floats[i];
}

TEST(ReducePlainTest, NanOnAnyRankGivesNan) {
  const choir__reduce_table_t* table = choir__reduce_table_plain();
  for (int op = 0; op < CHOIR_REDUCE_COUNT; ++op) {
    float acc[2] = {NAN, 1};
    float src[2] = {1, NAN};
    table->combine[CHOIR_DTYPE_F32][op](acc, src, 0.5, 2);
    EXPECT_TRUE(isnan(acc[0])) << op;
    EXPECT_TRUE(isnan(acc[1])) << op;
  }
}

}  // namespace
