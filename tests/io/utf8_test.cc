// SPDX-License-Identifier: Apache-2.0
#include "io/utf8_internal.h"

#include <string>

#include "gtest/gtest.h"

namespace {

// The encoding as the standard defines it, by ranges of code points.
std::string Encoded(uint32_t point) {
  std::string text;
  if (point < 0x80) {
    text = {(char)point};
  } else if (point < 0x800) {
    text = {(char)(0xc0 | point >> 6), (char)(0x80 | (point & 0x3f))};
  } else if (point < 0x10000) {
    text = {(char)(0xe0 | point >> 12), (char)(0x80 | (point >> 6 & 0x3f)),
            (char)(0x80 | (point & 0x3f))};
  } else {
    text = {(char)(0xf0 | point >> 18), (char)(0x80 | (point >> 12 & 0x3f)),
            (char)(0x80 | (point >> 6 & 0x3f)), (char)(0x80 | (point & 0x3f))};
  }
  return text;
}

TEST(Utf8, EveryCodePoint) {
  for (uint32_t point = 0; point < 0x120000; ++point) {
    const std::string text = Encoded(point);
    const bool is_surrogate = point >= 0xd800 && point < 0xe000;
    const bool is_good = !is_surrogate && point < 0x110000;
    uint32_t got = 1;
    ASSERT_EQ(choir__utf8_read(text.data(), text.size(), &got),
              is_good ? text.size() : 0u)
        << point;
    ASSERT_EQ(got, is_good ? point : 0u);
    // What follows belongs to the next one, and no byte may be missing.
    ASSERT_EQ(choir__utf8_read((text + "x").data(), text.size() + 1, &got),
              is_good ? text.size() : 0u);
    ASSERT_EQ(choir__utf8_read(text.data(), text.size() - 1, &got), 0u);
  }
}

TEST(Utf8, GoodAndBadTexts) {
  const char* good[] = {"",
                        "plain",
                        "\xc3\xa4",
                        "\xe2\x82\xac",
                        "\xf0\x9f\x8e\xb5",
                        "\xf4\x8f\xbf\xbf"};
  for (const std::string text : good) {
    EXPECT_TRUE(choir__utf8_is_valid(text.data(), text.size())) << text;
  }
  const char* bad[] = {"\x80",
                       "\xc3",
                       "\xc0\x80",
                       "\xc1\xbf",
                       "\xe0\x80\x80",
                       "\xed\xa0\x80",
                       "\xe2\x82",
                       "\xe2\x82z",
                       "\xf0\x80\x80\x80",
                       "\xf5\x80\x80\x80",
                       "\xf4\x90\x80\x80",
                       "\xf0\x9f\x8e",
                       "\xff",
                       "a\xc3(",
                       "\xf0\x9f\x8ez"};
  for (const std::string text : bad) {
    EXPECT_FALSE(choir__utf8_is_valid(text.data(), text.size())) << text;
  }
}

}  // namespace
