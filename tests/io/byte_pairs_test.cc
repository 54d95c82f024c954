// SPDX-License-Identifier: Apache-2.0
#include "io/byte_pairs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Texts = std::vector<std::string>;

const bool installed = ScarceMemory::Install();

// The character that GPT-2's files have for a byte, as UTF-8.
std::string Character(int byte) {
  int point = byte;
  if (byte <= 0x20) {
    point = 0x100 + byte;
  } else if (byte >= 0x7f && byte <= 0xa0) {
    point = 0x121 + byte - 0x7f;
  } else if (byte == 0xad) {
    point = 0x143;
  }
  if (point < 0x80) return {(char)point};
  return {(char)(0xc0 | point >> 6), (char)(0x80 | (point & 0x3f))};
}

std::string Written(const std::string& bytes) {
  std::string text;
  for (char byte : bytes) text += Character((uint8_t)byte);
  return text;
}

std::string Quoted(const std::string& bytes) {
  std::string text = "\"";
  for (char byte : bytes) {
    if (byte == '"' || byte == '\\') text += '\\';
    text += Character((uint8_t)byte);
  }
  return text + "\"";
}

struct Pair {
  std::string left, right;
};
using Pairs = std::vector<Pair>;

// A vocabulary as two files.
struct Files {
  Texts tokens;  // by id
  std::string merges;
  int32_t Id(const std::string& token) const {
    const auto at = std::find(tokens.begin(), tokens.end(), token);
    return at == tokens.end() ? -1 : (int32_t)(at - tokens.begin());
  }
  std::string Vocabulary() const {
    std::string text;
    for (size_t id = 0; id < tokens.size(); ++id) {
      text += (id ? ", " : "{") + Quoted(tokens[id]) + ": ";
      text += std::to_string(id);
    }
    return text + "}";
  }
};

// The 256 bytes (byte b has the id 255 - b), then the results of the merges,
// then others.
Files Made(const Pairs& merges, const Texts& others = {}) {
  Files files;
  for (int id = 0; id < 256; ++id) files.tokens.push_back({(char)(255 - id)});
  files.merges = "#version: 0.2\n";
  for (const Pair& pair : merges) {
    files.merges += Written(pair.left) + " " + Written(pair.right) + "\n";
    const std::string token = pair.left + pair.right;
    if (files.Id(token) < 0) files.tokens.push_back(token);
  }
  files.tokens.insert(files.tokens.end(), others.begin(), others.end());
  return files;
}

class BytePairs : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override {
    choir_byte_pairs_destroy(pairs_);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }

  choir_status_t Open(const std::string& vocabulary, const std::string& merges,
                      choir_byte_pairs_t** out_pairs) {
    return choir_byte_pairs_open(
        folder_.Write("vocab.json", vocabulary).c_str(),
        folder_.Write("merges.txt", merges).c_str(), out_pairs);
  }
  void Open(const Files& files) {
    choir_byte_pairs_destroy(pairs_);
    files_ = files;
    ASSERT_OK(Open(files.Vocabulary(), files.merges, &pairs_));
    EXPECT_EQ(choir_byte_pairs_count(pairs_), (int64_t)files.tokens.size());
  }

  Ids Encode(const std::string& text) {
    Ids ids(text.size());
    size_t count = 0;
    EXPECT_OK(choir_byte_pairs_encode(pairs_, text.data(), text.size(),
                                      ids.data(), ids.size(), &count));
    ids.resize(count);
    return ids;
  }
  // The tokens of a text, as texts.
  Texts Tokens(const std::string& text) {
    Texts tokens;
    for (int32_t id : Encode(text)) tokens.push_back(files_.tokens[(size_t)id]);
    return tokens;
  }
  std::string Decode(const Ids& ids) {
    size_t bytes = 0;
    EXPECT_OK(choir_byte_pairs_decode(pairs_, ids.data(), ids.size(), nullptr,
                                      0, &bytes));
    std::string text(bytes, '.');
    EXPECT_OK(choir_byte_pairs_decode(pairs_, ids.data(), ids.size(), &text[0],
                                      bytes, &bytes));
    EXPECT_EQ(bytes, text.size());
    return text;
  }

  // A mistake in one of the two files, each named by what it begins with.
  void Fails(const std::string& vocabulary, const std::string& merges,
             const Texts& parts) {
    choir_byte_pairs_t* pairs = (choir_byte_pairs_t*)this;
    Outcome outcome = Take(Open(vocabulary, merges, &pairs));
    EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT) << outcome.message;
    EXPECT_THAT(outcome.message, HasSubstr("byte pairs: '"));
    for (const std::string& part : parts) {
      EXPECT_THAT(outcome.message, HasSubstr(part));
    }
    EXPECT_EQ(pairs, nullptr);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }
  void VocabularyFails(const std::string& vocabulary, const Texts& parts) {
    Texts all = parts;
    all.push_back(folder_.Path("vocab.json"));
    Fails(vocabulary, "#version: 0.2\n", all);
  }
  void MergesFail(const std::string& merges, const Texts& parts) {
    Texts all = parts;
    all.push_back(folder_.Path("merges.txt"));
    Fails(Made({{"a", "b"}, {"c", "d"}}).Vocabulary(), merges, all);
  }

  TemporaryFolder folder_;
  size_t blocks_ = 0;
  choir_byte_pairs_t* pairs_ = nullptr;
  Files files_;
};

TEST_F(BytePairs, WithoutMergesEachByteIsAToken) {
  Open(Made({}));
  EXPECT_EQ(Encode("az"), (Ids{255 - 'a', 255 - 'z'}));
  EXPECT_EQ(Encode(""), (Ids{}));
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += (char)byte;
  const Ids ids = Encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[byte], 255 - byte);
  EXPECT_EQ(Decode(ids), all);
  EXPECT_EQ(Decode({}), "");
}

TEST_F(BytePairs, TheLowestRankIsMergedFirst) {
  Open(Made({{"b", "c"}, {"a", "b"}, {"ab", "c"}, {"bc", "d"}}));
  EXPECT_EQ(Tokens("ab"), (Texts{"ab"}));
  // b c comes before a b, and a bc has no line.
  EXPECT_EQ(Tokens("abc"), (Texts{"a", "bc"}));
  EXPECT_EQ(Tokens("abcd"), (Texts{"a", "bcd"}));
  EXPECT_EQ(Tokens("dcba"), (Texts{"d", "c", "b", "a"}));
  Open(Made({{"a", "b"}, {"b", "c"}, {"ab", "c"}}));
  EXPECT_EQ(Tokens("abc"), (Texts{"abc"}));
  // One pair at a time: a merge with a lower rank that it makes comes next.
  Open(Made({{"ab", "a"}, {"a", "b"}, {"b", "a"}}));
  EXPECT_EQ(Tokens("abab"), (Texts{"aba", "b"}));
}

TEST_F(BytePairs, OfEqualPairsTheFirst) {
  Open(Made({{"a", "a"}, {"aa", "aa"}}));
  EXPECT_EQ(Tokens("aaa"), (Texts{"aa", "a"}));
  EXPECT_EQ(Tokens("aaaaaaa"), (Texts{"aaaa", "aa", "a"}));
}

TEST_F(BytePairs, NoMergeGoesOverWords) {
  Open(Made({{"a", "b"}, {" ", "a"}, {"a", " "}, {"'", "s"}, {"ab", "'s"}}));
  EXPECT_EQ(Tokens("ab's"), (Texts{"ab", "'s"}));
  EXPECT_EQ(Tokens("a ab"), (Texts{"a", " ", "ab"}));
  EXPECT_EQ(Tokens("b aa"), (Texts{"b", " a", "a"}));
  EXPECT_EQ(Tokens("ab  a"), (Texts{"ab", " ", " a"}));
}

TEST_F(BytePairs, SpecialTokensAreTextThatIsEncodedAsText) {
  Open(Made({{"e", "n"}}, {"<|endoftext|>"}));
  const int32_t id = (int32_t)files_.tokens.size() - 1;
  EXPECT_EQ(choir_byte_pairs_find(pairs_, "<|endoftext|>", 13), id);
  EXPECT_EQ(choir_byte_pairs_find(pairs_, "<|endoftext|", 12), -1);
  EXPECT_EQ(choir_byte_pairs_find(pairs_, "", 0), -1);
  EXPECT_EQ(choir_byte_pairs_find(pairs_, "en", 2), 256);
  EXPECT_EQ(Decode({id, 256}), "<|endoftext|>en");
  const Ids ids = Encode("<|endoftext|>");
  EXPECT_EQ(ids.size(), 12u);  // "en" is one
  EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 0);
  EXPECT_EQ(Decode(ids), "<|endoftext|>");
}

// One merge after the other, the lowest rank first, found by a look at all.
Texts SlowlyMerged(const std::string& word, const Pairs& merges) {
  std::map<std::pair<std::string, std::string>, int> ranks;
  for (const Pair& pair : merges) {
    const int rank = (int)ranks.size();
    ranks[{pair.left, pair.right}] = rank;
  }
  Texts tokens;
  for (char byte : word) tokens.push_back({byte});
  for (;;) {
    int lowest = INT32_MAX;
    size_t place = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found != ranks.end() && found->second < lowest) {
        lowest = found->second;
        place = i;
      }
    }
    if (lowest == INT32_MAX) return tokens;
    tokens[place] += tokens[place + 1];
    tokens.erase(tokens.begin() + (long)place + 1);
  }
}

TEST_F(BytePairs, RandomMergesAsALookAtAllPairsFindsThem) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    Pairs merges;
    Texts parts = {"a", "b", "c"};
    std::set<std::pair<std::string, std::string>> seen;
    while (merges.size() < 60) {
      const std::string left = parts[random() % parts.size()];
      const std::string right = parts[random() % parts.size()];
      if (left.size() + right.size() > 9 || !seen.insert({left, right}).second)
        continue;
      merges.push_back({left, right});
      parts.push_back(left + right);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    Open(Made(merges));
    for (int k = 0; k < 40; ++k) {
      std::string word(1 + random() % 200, ' ');
      for (char& letter : word) letter = "abc"[random() % 3];
      ASSERT_EQ(Tokens(word), SlowlyMerged(word, merges)) << word;
      ASSERT_EQ(Decode(Encode(word)), word);
    }
  }
}

// A way that looks at all pairs for each merge would take hours.
TEST_F(BytePairs, AMillionEqualLetters) {
  Pairs merges;
  for (std::string part = "a"; part.size() <= 64; part += part) {
    merges.push_back({part, part});
  }
  Open(Made(merges));
  const std::string text(1000000, 'a');
  const Ids ids = Encode(text);
  // 7812 times 128 and one of 64.
  EXPECT_EQ(ids.size(), 7813u);
  EXPECT_EQ(Decode(ids), text);
}

TEST_F(BytePairs, RandomBytesComeBack) {
  Open(Made({{"a", "b"}, {"\xc3", "\xa4"}, {" ", "\xc3\xa4"}, {"\xff", "7"}}));
  std::mt19937 random(2);
  const Texts parts = {"a", "b", " ", "\xc3\xa4", "\n", "'s", "\xff", "7"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (size_t k = random() % 60; k > 0; --k) {
      text += random() % 2 ? parts[random() % parts.size()]
                           : std::string(1, (char)random());
    }
    ASSERT_EQ(Decode(Encode(text)), text);
  }
}

TEST_F(BytePairs, TheCallersRoom) {
  Open(Made({{"a", "b"}}));
  Ids ids(3, -7);
  size_t count = 9;
  IO_EXPECT_FAILS(
      choir_byte_pairs_encode(pairs_, "abcab", 5, ids.data(), 2, &count),
      OUT_OF_RANGE, HasSubstr("3 ids; there is room for 2"));
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(ids[2], -7);
  ASSERT_OK(choir_byte_pairs_encode(pairs_, "abcab", 5, nullptr, 0, &count));
  EXPECT_EQ(count, 3u);
  ASSERT_OK(choir_byte_pairs_encode(pairs_, "abcab", 5, ids.data(), 3, &count));
  EXPECT_EQ(ids, (Ids{256, 255 - 'c', 256}));
  std::string text = "....-";
  size_t bytes = 9;
  IO_EXPECT_FAILS(
      choir_byte_pairs_decode(pairs_, ids.data(), 3, &text[0], 4, &bytes),
      OUT_OF_RANGE, HasSubstr("5 bytes; there is room for 4"));
  EXPECT_EQ(bytes, 5u);
  EXPECT_EQ(text[4], '-');
  for (int32_t id : {-1, 257, INT32_MIN, INT32_MAX}) {
    ids[1] = id;
    IO_EXPECT_FAILS(
        choir_byte_pairs_decode(pairs_, ids.data(), 3, &text[0], 5, &bytes),
        OUT_OF_RANGE,
        HasSubstr("id " + std::to_string(id) +
                  " at place 1; ids are from 0 to 256"));
    EXPECT_EQ(bytes, 0u);
  }
}

TEST_F(BytePairs, FilesAsOthersWriteThem) {
  // Escapes, spaces and lines; no #version, no last line's end; CR LF.
  std::string vocabulary = " \r\n{";
  for (int byte = 0; byte < 256; ++byte) {
    char form[16];
    const std::string character = Character(byte);
    const int point = character.size() == 1
                          ? character[0]
                          : (character[0] & 0x1f) << 6 | (character[1] & 0x3f);
    snprintf(form, sizeof form, byte % 2 ? "\\u%04x" : "\\u%04X", point);
    vocabulary += std::string("\t\"") + (byte == '/' ? "\\/" : form) +
                  "\" :\n" + std::to_string(byte) + " ,";
  }
  vocabulary += "\"\\u0120a\":257,\"# #\":258,\"\\\"#\":256}\n";
  // "# #" has a space, which is no character of the alphabet.
  VocabularyFails(vocabulary, {"line 258", "U+0020"});
  vocabulary.replace(vocabulary.find("# #"), 3, "##");
  choir_byte_pairs_destroy(pairs_);
  ASSERT_OK(Open(vocabulary, "\xc4\xa0 a\r\n# #\n\" #", &pairs_));
  EXPECT_EQ(Encode(" a## \"#"), (Ids{257, 258, ' ', 256}));
}

TEST_F(BytePairs, MissingFiles) {
  const Files files = Made({{"a", "b"}});
  const std::string vocabulary =
      folder_.Write("vocab.json", files.Vocabulary());
  const std::string merges = folder_.Write("merges.txt", files.merges);
  const std::string nothing = folder_.Path("nothing");
  IO_EXPECT_FAILS(
      choir_byte_pairs_open(nothing.c_str(), merges.c_str(), &pairs_),
      NOT_FOUND, HasSubstr(nothing));
  IO_EXPECT_FAILS(
      choir_byte_pairs_open(vocabulary.c_str(), nothing.c_str(), &pairs_),
      NOT_FOUND, HasSubstr(nothing));
  IO_EXPECT_FAILS(
      choir_byte_pairs_open(folder_.path().c_str(), merges.c_str(), &pairs_),
      INVALID_ARGUMENT, HasSubstr("folder"));
  IO_EXPECT_FAILS(choir_byte_pairs_open(nullptr, merges.c_str(), &pairs_),
                  INVALID_ARGUMENT, HasSubstr("(null)"));
  EXPECT_EQ(pairs_, nullptr);
  choir_byte_pairs_destroy(nullptr);
}

TEST_F(BytePairs, MistakesInTheVocabulary) {
  const std::string good = Made({}).Vocabulary();  // ends in `"\u0100": 255}`
  const std::string body = good.substr(0, good.size() - 1);
  VocabularyFails("", {"is empty"});
  VocabularyFails("{}", {"line 1", "0x7d"});
  VocabularyFails("[1]", {"line 1", "byte 0 is 0x5b; one of { is needed"});
  VocabularyFails("{\"a\": 0}", {"no token for the byte 0x00"});
  VocabularyFails(body + ", \"ab\": 257}",
                  {"token 'ab' has the id 257", "257 tokens are 0 to 256"});
  VocabularyFails(body + ",\n\"ab\": 7}",
                  {"tokens 'ab' and '\xc3\xb8' both have the id 7"});
  VocabularyFails(body + ",\n\"a\": 256}", {"token 'a'", "twice"});
  for (const char* id :
       {"-1", "2147483647", "2147483648", "4294967296", "18446744073709551617",
        "1.0", "1e2", "01", "null", "\"1\"", "", "+1", "0x1", "[1]", "{}"}) {
    VocabularyFails(body + ",\n\"\xc4\xa0the\": " + id + "}",
                    {"line 2: token '\xc4\xa0the' has the id '"});
  }
  VocabularyFails(body + ",\n\"ab\": \xff}", {"has the id '?'"});
  VocabularyFails(body + ",\n\"\": 256}", {"line 2", "without text"});
  VocabularyFails(body + ",\n\"a b\": 256}", {"line 2", "U+0020"});
  VocabularyFails(body + ",\n\"a\nb\": 256}", {"line 2", "U+000A"});
  VocabularyFails(body + ",\n\"\xe4\xb8\xad\": 256}", {"line 2", "U+4E2D"});
  VocabularyFails(body + ",\n\"\\u4e2d\": 256}", {"line 2", "U+4E2D"});
  VocabularyFails(body + ",\n\"\\u0000\": 256}", {"line 2", "U+0000"});
  VocabularyFails(body + ",\n\"\\n\": 256}", {"line 2", "backslash"});
  VocabularyFails(body + ",\n\"\\u01g0\": 256}", {"line 2", "four digits"});
  VocabularyFails(body + ",\n\"\xff\": 256}", {"line 2", "not UTF-8"});
  VocabularyFails(body + ",\n\"ab\" 256}", {"line 2", "one of : is needed"});
  VocabularyFails(body + ",\n\"ab\": 256 \"c\"}",
                  {"line 2", "is 0x22; one of ,} is needed"});
  VocabularyFails(body + ",\n\"ab\": 256]", {"line 2", "'256]'"});
  VocabularyFails(body + ",\n}", {"line 2"});
  VocabularyFails(good + "\n{}", {"line 2", "behind the end"});
  const std::string long_token(200, 'x');
  VocabularyFails(body + ",\"" + long_token + "\": -1}",
                  {"'" + std::string(48, 'x') + "' has"});
  for (size_t length = 0; length < good.size(); length += 5) {
    VocabularyFails(good.substr(0, length), {});
  }
}

TEST_F(BytePairs, MistakesInTheMerges) {
  MergesFail("", {"is empty"});
  MergesFail("#version: 0.2\na b\na e\n", {"line 3", "no token for 'a e'"});
  MergesFail("a b\nab cd\nc d\n", {"line 2", "no token for 'ab cd'"});
  MergesFail("ac b\n", {"line 1", "no token for 'ac'"});
  MergesFail("a bd\n", {"line 1", "no token for 'bd'"});
  MergesFail("#version: 0.2\na b\nc d\na b\n", {"line 4", "line 2 too"});
  MergesFail("a b\na b\n", {"line 2", "line 1 too"});
  for (const char* line : {"", "a", "a ", " b", " ", "a b ", "a  b", "a b c"}) {
    MergesFail(std::string("c d\n") + line + "\n",
               {"line 2", std::string("'") + line + "'", "two tokens"});
  }
  MergesFail("a b\n\xff\n", {"line 2", "'?'"});
  MergesFail("a b\n\xff b\n", {"line 2", "not UTF-8"});
  MergesFail("a b\n\xe4 b\n", {"line 2", "not UTF-8"});
  MergesFail("a b\na\tb c\n", {"line 2", "U+0009"});
  MergesFail("a b\n#version: 0.2\n", {"line 2", "'#version:'"});
}

TEST_F(BytePairs, RandomDamageIsNeverMoreThanAFailure) {
  const Files files = Made({{"a", "b"}, {"ab", "ab"}, {"c", "\""}});
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string parts[2] = {files.Vocabulary(), files.merges};
    for (int k = 0; k < 1 + round % 3; ++k) {
      std::string& part = parts[random() % 2];
      part[random() % part.size()] = (char)random();
    }
    choir_byte_pairs_t* pairs;
    choir_status_t status = Open(parts[0], parts[1], &pairs);
    if (!status) {
      int32_t ids[8];
      size_t count;
      EXPECT_OK(choir_byte_pairs_encode(pairs, "ababc\"", 6, ids, 8, &count));
    }
    choir_status_free(status);
    choir_byte_pairs_destroy(pairs);
  }
}

TEST_F(BytePairs, NoMemory) {
  const Files files = Made({{"a", "b"}});
  for (int n = 1;; ++n) {
    ScarceMemory::FailAt(n);
    choir_byte_pairs_t* pairs;
    Outcome outcome = Take(Open(files.Vocabulary(), files.merges, &pairs));
    ScarceMemory::FailAt(0);
    choir_byte_pairs_destroy(pairs);
    if (!ScarceMemory::Failed()) {
      EXPECT_GT(n, 8);
      break;
    }
    EXPECT_EQ(outcome.code, CHOIR_STATUS_OUT_OF_MEMORY) << outcome.message;
    EXPECT_EQ(pairs, nullptr);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }
  Open(files);
  const std::string word(65, 'a');
  size_t count;
  ScarceMemory::FailAt(1);
  // Short words need none.
  EXPECT_OK(
      choir_byte_pairs_encode(pairs_, word.data(), 64, nullptr, 0, &count));
  IO_EXPECT_FAILS(
      choir_byte_pairs_encode(pairs_, word.data(), 65, nullptr, 0, &count),
      OUT_OF_MEMORY, HasSubstr("memory"));
  EXPECT_EQ(count, 0u);
  ScarceMemory::FailAt(0);
}

}  // namespace
