// SPDX-License-Identifier: Apache-2.0
// MT19937 against the C++ library's and against numbers of NumPy 1.24.
#include "onnx/onnx_twister_def.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace {

TEST(OnnxTwister, WordsAreTheLibrarys) {
  for (uint32_t seed : {0u, 1u, 5489u, 0x80000000u, 0xffffffffu}) {
    choir__twister_t twister;
    choir__twister_seed(&twister, seed);
    std::mt19937 expected(seed);
    for (int i = 0; i < 3000; ++i)
      ASSERT_EQ(choir__twister_word(&twister), expected())
          << "seed " << seed << ", word " << i;
  }
}

// numpy.random.RandomState(seed).uniform(0, 1, 2000)[[0, 1, 2, 311, 312,
// 1999]]; 311 and 312 lie on the two sides of the first 624 words.
TEST(OnnxTwister, UniformNumbersAreNumPys) {
  struct Numbers {
    uint32_t seed;
    std::vector<double> values;
  };
  const std::vector<size_t> places = {0, 1, 2, 311, 312, 1999};
  const Numbers all[] = {
      {0,
       {0x1.18fe1565f12a8p-1, 0x1.6e2d4cf608733p-1, 0x1.349d66b6e894bp-1,
        0x1.2cf25ce2031ccp-3, 0x1.45b8f280519f0p-4, 0x1.00e86864bc501p-1}},
      {5489,
       {0x1.a1237688aba7bp-1, 0x1.cfc3f5f570c7dp-1, 0x1.0411a9f807b7cp-3,
        0x1.098546bbe8537p-1, 0x1.f229b8891a163p-1, 0x1.7819cc8715284p-2}},
      {4294967295u,
       {0x1.8fe69a3924820p-4, 0x1.d323d824032b1p-1, 0x1.93fc6f61af3f9p-1,
        0x1.2369739e9c078p-2, 0x1.cc39c1c9cc10cp-1, 0x1.6f8e202307648p-3}}};
  for (const Numbers& one : all) {
    choir__twister_t twister;
    choir__twister_seed(&twister, one.seed);
    std::vector<double> drawn(2000);
    for (double& number : drawn) number = choir__twister_uniform(&twister);
    for (size_t i = 0; i < places.size(); ++i)
      EXPECT_EQ(drawn[places[i]], one.values[i])
          << "seed " << one.seed << ", number " << places[i];
  }
}

}  // namespace
