// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_DIST_COMPRESS_TESTING_H_
#define CHOIR_TESTS_DIST_COMPRESS_TESTING_H_

#include <stdint.h>
#include <string.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

// Values and counts that all tests of compress go through.

namespace choir_testing {

inline uint32_t Bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Equal to the bit; any NaN equals any other.
inline bool Same(float a, float b) {
  return Bits(a) == Bits(b) || (std::isnan(a) && std::isnan(b));
}

inline const std::vector<int64_t>& Counts() {
  static const std::vector<int64_t> counts = {
      0,  1,  2,  3,  5,   7,   8,   9,   15,  16,   17,   31,   32,
      33, 63, 64, 65, 100, 127, 129, 255, 511, 1000, 1023, 1025, 4099};
  return counts;
}

using Make = float (*)(std::mt19937_64& random);

inline const std::vector<std::pair<const char*, Make>>& Kinds() {
  static const std::vector<std::pair<const char*, Make>> kinds = {
      {"normal",
       [](std::mt19937_64& random) {
         return std::normal_distribution<float>()(random);
       }},
      {"far below 1",
       [](std::mt19937_64& random) {
         return 1e-6f * std::normal_distribution<float>()(random);
       }},
      {"of all sizes",
       [](std::mt19937_64& random) {
         return std::ldexp(std::normal_distribution<float>()(random),
                           static_cast<int>(random() % 60) - 40);
       }},
      {"all equal", [](std::mt19937_64&) { return -0.3f; }},
      {"zeros",
       [](std::mt19937_64& random) { return random() % 2 ? 0.0f : -0.0f; }},
      {"denormal",
       [](std::mt19937_64& random) {
         return std::ldexp(static_cast<float>(random() % 4096) - 2048, -149);
       }},
      {"with infinities and NaN",
       [](std::mt19937_64& random) {
         const float inf = std::numeric_limits<float>::infinity();
         const uint64_t which = random() % 20;
         if (which < 2) return which ? inf : -inf;
         if (which < 3) return std::numeric_limits<float>::quiet_NaN();
         return std::normal_distribution<float>()(random);
       }},
      // Every pattern of bits.
      {"any bits",
       [](std::mt19937_64& random) {
         const auto bits = static_cast<uint32_t>(random());
         float value;
         memcpy(&value, &bits, sizeof(value));
         return value;
       }},
  };
  return kinds;
}

inline std::vector<float> MakeValues(Make make, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = make(random);
  return values;
}

}  // namespace choir_testing

#endif  // CHOIR_TESTS_DIST_COMPRESS_TESTING_H_
