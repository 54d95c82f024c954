// SPDX-License-Identifier: Apache-2.0
// The words of GPT-2's pattern; all expected ones are by hand from the pattern.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "io/byte_pairs_internal.h"

namespace {

using Words = std::vector<std::string>;

Words Split(const std::string& text) {
  Words words;
  for (size_t at = 0; at < text.size();) {
    const size_t size =
        choir__byte_pairs_split(text.data() + at, text.size() - at);
    if (size == 0 || size > text.size() - at) return {"no size"};
    words.push_back(text.substr(at, size));
    at += size;
  }
  return words;
}

TEST(BytePairsSplit, WordsTakeTheSpaceBeforeThem) {
  EXPECT_EQ(Split("Hello, world!"), (Words{"Hello", ",", " world", "!"}));
  EXPECT_EQ(Split("in 1984 (or so)"),
            (Words{"in", " 1984", " (", "or", " so", ")"}));
  EXPECT_EQ(Split("a1b2-=c"), (Words{"a", "1", "b", "2", "-=", "c"}));
  EXPECT_EQ(Split("x"), (Words{"x"}));
  EXPECT_EQ(Split(""), (Words{}));
}

TEST(BytePairsSplit, Endings) {
  EXPECT_EQ(Split("I'm it's don't he'd we'll I've you're"),
            (Words{"I", "'m", " it", "'s", " don", "'t", " he", "'d", " we",
                   "'ll", " I", "'ve", " you", "'re"}));
  // Capitals, and what only begins like one, are none.
  EXPECT_EQ(Split("IT'S"), (Words{"IT", "'", "S"}));
  EXPECT_EQ(Split("o'lx'v'r"), (Words{"o", "'", "lx", "'", "v", "'", "r"}));
  // Whatever follows; and only where the pattern looks at the quote first.
  EXPECT_EQ(Split("'said'"), (Words{"'s", "aid", "'"}));
  EXPECT_EQ(Split(" 's"), (Words{" '", "s"}));
  EXPECT_EQ(Split("''s"), (Words{"''", "s"}));
  EXPECT_EQ(Split("'"), (Words{"'"}));
  EXPECT_EQ(Split("'l"), (Words{"'", "l"}));
  EXPECT_EQ(Split(std::string("'\0", 2)), (Words{std::string("'\0", 2)}));
}

TEST(BytePairsSplit, OfSeveralSpacesTheLastGoesWithTheWord) {
  EXPECT_EQ(Split("a  b"), (Words{"a", " ", " b"}));
  EXPECT_EQ(Split("a    1"), (Words{"a", "   ", " 1"}));
  EXPECT_EQ(Split("  ?"), (Words{" ", " ?"}));
  EXPECT_EQ(Split("a   "), (Words{"a", "   "}));
  EXPECT_EQ(Split(" "), (Words{" "}));
  // Only a space itself is taken by a word.
  EXPECT_EQ(Split("a\nb"), (Words{"a", "\n", "b"}));
  EXPECT_EQ(Split("a\n\nb"), (Words{"a", "\n", "\n", "b"}));
  EXPECT_EQ(Split("a \tb"), (Words{"a", " ", "\t", "b"}));
  EXPECT_EQ(Split("a\t b"), (Words{"a", "\t", " b"}));
  EXPECT_EQ(Split("a\r\n"), (Words{"a", "\r\n"}));
}

TEST(BytePairsSplit, Unicode) {
  // German, Greek and Chinese letters; an accent that combines is no letter.
  EXPECT_EQ(Split(u8"Größe ∆ Ωμέγα中文"),
            (Words{u8"Größe", u8" ∆", u8" Ωμέγα中文"}));
  EXPECT_EQ(Split(u8"e\u0301a"), (Words{u8"e", u8"\u0301", u8"a"}));
  // Numbers: superscript, fraction, Roman, Arabic-Indic, and beyond 16 bits.
  EXPECT_EQ(Split(u8"x²½Ⅷ٣\U0001d7ce"), (Words{u8"x", u8"²½Ⅷ٣\U0001d7ce"}));
  EXPECT_EQ(Split(u8"\U00010400\U0001f600\U00020000"),
            (Words{u8"\U00010400", u8"\U0001f600", u8"\U00020000"}));
  // Spaces of all kinds, none of which but the plain one goes with a word.
  for (const char* space : {u8"\t", u8"\v", u8"\f", u8"\u0085", u8"\u00a0",
                            u8"\u1680", u8"\u2000", u8"\u200a", u8"\u2028",
                            u8"\u2029", u8"\u202f", u8"\u205f", u8"\u3000"}) {
    EXPECT_EQ(Split(std::string("a") + space + "b"), (Words{"a", space, "b"}));
    EXPECT_EQ(Split(std::string("a ") + space + " b"),
              (Words{"a", std::string(" ") + space, " b"}));
  }
  // What looks like one and is none.
  for (const char* other :
       {"\x1c", "\x1f", u8"\u180e", u8"\u200b", u8"\ufeff"}) {
    EXPECT_EQ(Split(std::string("a") + other + "b"), (Words{"a", other, "b"}));
    EXPECT_EQ(Split(std::string("a ") + other + "?b"),
              (Words{"a", std::string(" ") + other + "?", "b"}));
  }
}

TEST(BytePairsSplit, TheFirstAndLastOfARange) {
  // U+0560 to U+0588 are letters, U+1F100 to U+1F10C numbers; U+1C89 is a
  // letter and U+10D40 a number since Unicode 16.
  EXPECT_EQ(Split(u8"\u055f\u0560\u0588\u0589"),
            (Words{u8"\u055f", u8"\u0560\u0588", u8"\u0589"}));
  EXPECT_EQ(Split(u8"\U0001f0ff\U0001f100\U0001f10c\U0001f10d"),
            (Words{u8"\U0001f0ff", u8"\U0001f100\U0001f10c", u8"\U0001f10d"}));
  EXPECT_EQ(Split(u8"a\u1c89\U00010d40"), (Words{u8"a\u1c89", u8"\U00010d40"}));
}

TEST(BytePairsSplit, BytesThatAreNotUtf8AreOtherCharacters) {
  EXPECT_EQ(Split("a\xff\xfe"
                  "b"),
            (Words{"a", "\xff\xfe", "b"}));
  EXPECT_EQ(Split("a \x80!"), (Words{"a", " \x80!"}));
  // A surrogate, an overlong space and a character that ends too early.
  EXPECT_EQ(Split("\xed\xa0\x80"), (Words{"\xed\xa0\x80"}));
  EXPECT_EQ(Split("a\xc0\xa0"
                  "1"),
            (Words{"a", "\xc0\xa0", "1"}));
  EXPECT_EQ(Split("\xe4\xb8"), (Words{"\xe4\xb8"}));
  EXPECT_EQ(Split("\xe4\xb8"
                  "a"),
            (Words{"\xe4\xb8", "a"}));
}

}  // namespace
