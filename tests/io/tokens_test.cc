// SPDX-License-Identifier: Apache-2.0
#include "io/tokens.h"

#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "io/loader.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

// Ids with llm.c's header.
template <typename T>
std::string WithHeader(uint32_t magic, uint32_t count,
                       const std::vector<T>& ids) {
  std::vector<uint32_t> header(256);
  header[0] = magic;
  header[1] = 1;
  header[2] = count;
  return Bytes(header) + Bytes(ids);
}

class Tokens : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override {
    choir_dataset_release(dataset_);
    choir_tokens_release(tokens_);
    EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
  }
  choir_status_t OpenText(const std::string& path,
                          choir_text_unit_t unit = CHOIR_TEXT_CHARACTERS) {
    return choir_tokens_open_text(path.c_str(), unit, &tokens_);
  }
  choir_status_t OpenIds(const std::string& path, int id_bytes,
                         int64_t vocabulary) {
    return choir_tokens_open_ids(path.c_str(), id_bytes, vocabulary, &tokens_);
  }
  std::vector<int32_t> Read(int64_t first, int64_t count) {
    std::vector<int32_t> ids((size_t)count);
    EXPECT_OK(choir_tokens_read(tokens_, first, count, ids.data()));
    return ids;
  }
  std::vector<int32_t> All() { return Read(0, choir_tokens_count(tokens_)); }
  std::string Text(int32_t id) {
    size_t bytes = 0;
    const char* text = choir_tokens_text(tokens_, id, &bytes);
    return text ? std::string(text, bytes) : "(none)";
  }
  choir_status_t Windows(int64_t first, int64_t count, int64_t length,
                         int64_t stride) {
    const choir_windows_t windows = {first, count, length, stride};
    return choir_dataset_create_windows(tokens_, &windows, &dataset_);
  }

  TemporaryFolder folder_;
  choir_tokens_t* tokens_ = nullptr;
  choir_dataset_t* dataset_ = nullptr;
  size_t blocks_ = 0;
};

TEST_F(Tokens, CharactersInTheOrderOfTheirCodes) {
  // a, e acute, euro, a note of 4 bytes, and a line's end.
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9d\x84\x9e\na";
  for (bool gzip : {false, true}) {
    ASSERT_OK(OpenText(gzip ? folder_.WriteGzip("t.gz", text)
                            : folder_.Write("t", text)));
    EXPECT_EQ(choir_tokens_vocabulary(tokens_), 5);
    EXPECT_THAT(All(), ElementsAre(1, 2, 3, 4, 0, 1));
    EXPECT_EQ(Text(0), "\n");
    EXPECT_EQ(Text(2), "\xc3\xa9");
    EXPECT_EQ(Text(4), "\xf0\x9d\x84\x9e");
    EXPECT_EQ(Text(5), "(none)");
    EXPECT_EQ(Text(-1), "(none)");
    int32_t ids[16];
    int64_t count = 0;
    ASSERT_OK(
        choir_tokens_encode(tokens_, text.data(), text.size(), ids, &count));
    EXPECT_EQ(std::vector<int32_t>(ids, ids + count), All());
    IO_EXPECT_FAILS(choir_tokens_encode(tokens_, "aab", 3, ids, &count),
                    INVALID_ARGUMENT,
                    AllOf(HasSubstr("'b' at byte 2"), HasSubstr("5")));
    IO_EXPECT_FAILS(choir_tokens_encode(tokens_, "a\xc3", 2, ids, &count),
                    INVALID_ARGUMENT, HasSubstr("not UTF-8 at byte 1"));
    choir_tokens_release(tokens_);
    tokens_ = nullptr;
  }
}

TEST_F(Tokens, ManyCharactersNeedWiderIds) {
  for (int characters : {256, 257, 0x10001}) {
    std::string text;
    for (uint32_t i = 0; i < (uint32_t)characters; ++i) {
      const uint32_t code = 0x20000 + i;  // four bytes each
      text += {(char)(0xf0 | code >> 18), (char)(0x80 | (code >> 12 & 63)),
               (char)(0x80 | (code >> 6 & 63)), (char)(0x80 | (code & 63))};
    }
    ASSERT_OK(OpenText(folder_.Write("t", text)));
    EXPECT_EQ(choir_tokens_vocabulary(tokens_), characters);
    const std::vector<int32_t> ids = All();
    ASSERT_EQ((int)ids.size(), characters);
    for (int i = 0; i < characters; ++i) ASSERT_EQ(ids[(size_t)i], i);
    choir_tokens_release(tokens_);
    tokens_ = nullptr;
  }
}

TEST_F(Tokens, BytesOfAnyFile) {
  std::string bytes(70000, 'x');
  bytes[0] = '\0';
  bytes[69999] = '\xff';
  ASSERT_OK(OpenText(folder_.Write("t", bytes), CHOIR_TEXT_BYTES));
  EXPECT_EQ(choir_tokens_vocabulary(tokens_), 256);
  EXPECT_EQ(choir_tokens_count(tokens_), 70000);
  EXPECT_THAT(Read(0, 2), ElementsAre(0, 'x'));
  EXPECT_THAT(Read(69998, 2), ElementsAre('x', 255));
  EXPECT_EQ(Text(255), "\xff");
  int32_t ids[2];
  int64_t count = 0;
  ASSERT_OK(choir_tokens_encode(tokens_, "\xff", 1, ids, &count));
  EXPECT_EQ(ids[0], 255);
}

TEST_F(Tokens, WrongTexts) {
  IO_EXPECT_FAILS(OpenText(folder_.Path("none")), NOT_FOUND,
                  HasSubstr("none'"));
  IO_EXPECT_FAILS(OpenText(folder_.Write("t", "")), INVALID_ARGUMENT,
                  HasSubstr("is empty"));
  IO_EXPECT_FAILS(OpenText(folder_.path()), INVALID_ARGUMENT,
                  HasSubstr("is a folder"));
  struct {
    const char* text;
    int at;
  } const cases[] = {{"ab\xff", 2},           {"a\xc0\x80", 1},
                     {"\xe2\x82", 0},         {"\xe0\x80\x80", 0},
                     {"\xed\xa0\x80", 0},     {"aaa\xf4\x90\x80\x80", 3},
                     {"\xf5\x80\x80\x80", 0}, {"\xc3(", 0}};
  for (const auto& test : cases)
    IO_EXPECT_FAILS(OpenText(folder_.Write("t", test.text)), INVALID_ARGUMENT,
                    HasSubstr("not UTF-8 at byte " + std::to_string(test.at)));
  std::string packed = folder_.WriteGzip("t.gz", std::string(9999, 'a') + "b");
  packed = folder_.Read("t.gz");
  IO_EXPECT_FAILS(
      OpenText(folder_.Write("t.gz", packed.substr(0, packed.size() - 9))),
      OUT_OF_RANGE, HasSubstr("truncated"));
}

// A vocabulary of `count` tokens: the bytes (byte b has the id b), "ab",
// "abab", " a" and others, and its merges.
class PairFiles {
 public:
  PairFiles(const TemporaryFolder& folder, int count) {
    std::string text;
    int other = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints =
          (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
      char token[16];
      snprintf(token, sizeof token, "\\u%04x", prints ? byte : other++);
      Add(token, &text);
    }
    for (const char* token : {"ab", "abab", "\\u0120a"}) Add(token, &text);
    while (next_ < count) Add("x" + std::to_string(next_), &text);
    vocab = folder.Write("vocab.json", text + "}");
    merges =
        folder.Write("merges.txt", "#version: 0.2\na b\nab ab\n\xc4\xa0 a\n");
  }
  std::string vocab, merges;

 private:
  void Add(const std::string& token, std::string* text) {
    *text += (next_ ? ",\"" : "{\"") + token + "\":" + std::to_string(next_);
    ++next_;
  }
  int next_ = 0;
};

TEST_F(Tokens, BytePairsOfAnyBytes) {
  const std::string text = "abab ab a\xff abx";
  // "ab" is the first merge, so that " ab" is a space and "ab".
  const std::vector<int32_t> want = {257, ' ', 256, 258, 255, ' ', 256, 'x'};
  for (int count : {259, 65537}) {  // ids of 2 bytes, and of 4
    const PairFiles files(folder_, count);
    for (bool gzip : {false, true}) {
      ASSERT_OK(choir_tokens_open_byte_pairs(
          (gzip ? folder_.WriteGzip("t.gz", text) : folder_.Write("t", text))
              .c_str(),
          files.vocab.c_str(), files.merges.c_str(), &tokens_));
      EXPECT_EQ(choir_tokens_vocabulary(tokens_), count);
      EXPECT_EQ(All(), want);
      std::string back;
      for (int32_t id : want) back += Text(id);
      EXPECT_EQ(back, text);
      EXPECT_EQ(Text(257), "abab");
      EXPECT_EQ(Text(0), std::string(1, '\0'));
      EXPECT_EQ(Text(count), "(none)");
      EXPECT_EQ(Text(-1), "(none)");
      // Of other texts too, whatever they have.
      int32_t ids[8];
      int64_t ids_count = 0;
      ASSERT_OK(choir_tokens_encode(tokens_, "\xc3 ab", 4, ids, &ids_count));
      EXPECT_EQ(std::vector<int32_t>(ids, ids + ids_count),
                (std::vector<int32_t>{0xc3, ' ', 256}));
      // Its windows keep the tokens.
      ASSERT_OK(Windows(0, 0, 3, 1));
      EXPECT_EQ(choir_dataset_class_count(dataset_), count);
      EXPECT_EQ(choir_dataset_count(dataset_), 5);
      choir_dataset_release(dataset_);
      dataset_ = nullptr;
      choir_tokens_release(tokens_);
      tokens_ = nullptr;
    }
  }
}

TEST_F(Tokens, WrongBytePairs) {
  const PairFiles files(folder_, 259);
  const std::string text = folder_.Write("t", "ab ab");
  const auto open = [&](const std::string& path, const std::string& vocab,
                        const std::string& merges) {
    return choir_tokens_open_byte_pairs(path.c_str(), vocab.c_str(),
                                        merges.c_str(), &tokens_);
  };
  const std::string none = folder_.Path("none");
  IO_EXPECT_FAILS(open(none, files.vocab, files.merges), NOT_FOUND,
                  HasSubstr("none'"));
  IO_EXPECT_FAILS(open(text, none, files.merges), NOT_FOUND,
                  HasSubstr("none'"));
  IO_EXPECT_FAILS(open(text, files.vocab, none), NOT_FOUND, HasSubstr("none'"));
  IO_EXPECT_FAILS(open(folder_.Write("e", ""), files.vocab, files.merges),
                  INVALID_ARGUMENT, HasSubstr("is empty"));
  IO_EXPECT_FAILS(open(text, text, files.merges), INVALID_ARGUMENT,
                  HasSubstr("t', line 1"));
  int refused = 0;
  for (int n = 1; refused == n - 1; ++n) {
    ScarceMemory::FailAt(n);
    const Outcome outcome = Take(open(text, files.vocab, files.merges));
    ScarceMemory::FailAt(0);
    if (!ScarceMemory::Failed()) continue;
    ++refused;
    EXPECT_EQ(outcome.code, CHOIR_STATUS_OUT_OF_MEMORY) << outcome.message;
    EXPECT_EQ(tokens_, nullptr);
  }
  EXPECT_GE(refused, 5);
}

TEST_F(Tokens, FilesOfIds) {
  const std::vector<uint16_t> narrow = {0, 7, 65535, 3, 50256};
  const std::vector<uint32_t> wide = {0, 7, 65536, 128255};
  struct {
    std::string bytes;
    int given;
    std::vector<int32_t> ids;
  } const cases[] = {
      {Bytes(narrow), 2, {0, 7, 65535, 3, 50256}},
      {Bytes(narrow), 0, {0, 7, 65535, 3, 50256}},
      {Bytes(wide), 4, {0, 7, 65536, 128255}},
      {WithHeader(20240520, 5, narrow), 0, {0, 7, 65535, 3, 50256}},
      {WithHeader(20240520, 5, narrow), 2, {0, 7, 65535, 3, 50256}},
      {WithHeader(20240801, 4, wide), 0, {0, 7, 65536, 128255}},
  };
  for (const auto& test : cases) {
    ASSERT_OK(OpenIds(folder_.Write("ids", test.bytes), test.given, 128256));
    EXPECT_EQ(All(), test.ids);
    EXPECT_THAT(Read(1, 2), ElementsAre(test.ids[1], test.ids[2]));
    EXPECT_EQ(Text(0), "(none)");
    int32_t id;
    int64_t count;
    IO_EXPECT_FAILS(choir_tokens_encode(tokens_, "a", 1, &id, &count),
                    FAILED_PRECONDITION, HasSubstr("ids'"));
    IO_EXPECT_FAILS(
        choir_tokens_read(tokens_, 2, choir_tokens_count(tokens_), &id),
        OUT_OF_RANGE, HasSubstr("from 2 on"));
    choir_tokens_release(tokens_);
    tokens_ = nullptr;
  }
}

TEST_F(Tokens, WrongFilesOfIds) {
  const std::vector<uint16_t> ids = {1, 2, 300, 4};
  const std::string plain = folder_.Write("plain", Bytes(ids));
  IO_EXPECT_FAILS(OpenIds(folder_.Path("none"), 2, 10), NOT_FOUND,
                  HasSubstr("none'"));
  IO_EXPECT_FAILS(OpenIds(folder_.Write("empty", ""), 2, 10), INVALID_ARGUMENT,
                  HasSubstr("0 bytes of ids"));
  IO_EXPECT_FAILS(OpenIds(plain, 3, 10), INVALID_ARGUMENT,
                  HasSubstr("3 bytes"));
  IO_EXPECT_FAILS(OpenIds(plain, 2, 0), INVALID_ARGUMENT, HasSubstr("below 0"));
  IO_EXPECT_FAILS(OpenIds(folder_.Write("odd", Bytes(ids) + "x"), 2, 10),
                  INVALID_ARGUMENT, HasSubstr("9 bytes of ids; a multiple"));
  const std::string cut = folder_.Write("cut", WithHeader(20240520, 5, ids));
  IO_EXPECT_FAILS(
      OpenIds(cut, 0, 10), INVALID_ARGUMENT,
      AllOf(HasSubstr("cut' has 8 bytes"), HasSubstr("promises 10")));
  const std::string good = folder_.Write("good", WithHeader(20240520, 4, ids));
  IO_EXPECT_FAILS(OpenIds(good, 4, 10), INVALID_ARGUMENT,
                  AllOf(HasSubstr("2 bytes by its header"), HasSubstr("4")));
  // A wrong id is told where it is read.
  ASSERT_OK(OpenIds(good, 0, 300));
  EXPECT_THAT(Read(0, 2), ElementsAre(1, 2));
  int32_t read[4];
  IO_EXPECT_FAILS(choir_tokens_read(tokens_, 1, 3, read), OUT_OF_RANGE,
                  AllOf(HasSubstr("good' has id 300 at place 2"),
                        HasSubstr("vocabulary has 300")));
  // The file becomes shorter under a reader.
  ASSERT_EQ(truncate(good.c_str(), 1026), 0);
  IO_EXPECT_FAILS(choir_tokens_read(tokens_, 0, 2, read), OUT_OF_RANGE,
                  HasSubstr("good' ends at byte 1026"));
}

TEST_F(Tokens, WindowsAndWhatFollows) {
  std::string text(23, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = (char)('a' + i);
  ASSERT_OK(OpenText(folder_.Write("t", text)));
  struct {
    choir_windows_t windows;
    std::vector<int32_t> firsts;
  } const cases[] = {
      {{0, 0, 10, 10}, {0, 10}},   // 20 tokens and the one behind
      {{0, 21, 10, 10}, {0, 10}},  // just enough
      {{0, 20, 10, 10}, {0}},      // one too few
      {{18, 0, 3, 1}, {18, 19}},   //
      {{5, 8, 3, 2}, {5, 7, 9}},   //
      {{0, 0, 22, 1}, {0}},        //
  };
  for (const auto& test : cases) {
    const choir_windows_t& w = test.windows;
    ASSERT_OK(Windows(w.first, w.count, w.length, w.stride));
    ASSERT_EQ(choir_dataset_count(dataset_), (int64_t)test.firsts.size());
    EXPECT_EQ(choir_dataset_class_count(dataset_), 23);
    const choir_view_t* x = choir_dataset_x(dataset_);
    EXPECT_EQ(x->dtype, CHOIR_DTYPE_I32);
    EXPECT_EQ(x->ndim, 2);
    EXPECT_EQ(x->shape[1], w.length);
    EXPECT_EQ(choir_dataset_shape(dataset_), nullptr);
    EXPECT_EQ(choir_dataset_pixels(dataset_), nullptr);
    EXPECT_EQ(choir_dataset_labels(dataset_), nullptr);

    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create("cpu", nullptr, &device));
    choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
    config.batch = 1;
    config.micro_shard = 1;
    config.shuffle = false;
    choir_loader_t* loader = nullptr;
    ASSERT_OK(choir_loader_create(dataset_, device, 0, 1, &config, &loader));
    for (const int32_t first : test.firsts) {
      const choir_batch_t* batch = nullptr;
      ASSERT_OK(choir_loader_next(loader, &batch));
      ASSERT_NE(batch, nullptr);
      std::vector<int32_t> inputs((size_t)w.length), targets(inputs.size());
      const size_t bytes = inputs.size() * sizeof(int32_t);
      ASSERT_OK(choir_tensor_read(batch->x, inputs.data(), bytes));
      ASSERT_OK(choir_tensor_read(batch->y, targets.data(), bytes));
      for (int32_t i = 0; i < (int32_t)w.length; ++i) {
        EXPECT_EQ(inputs[(size_t)i], first + i);
        EXPECT_EQ(targets[(size_t)i], first + i + 1);
      }
    }
    const choir_batch_t* batch = nullptr;
    ASSERT_OK(choir_loader_next(loader, &batch));
    EXPECT_EQ(batch, nullptr);
    choir_loader_destroy(loader);
    choir_device_release(device);
    choir_dataset_release(dataset_);
    dataset_ = nullptr;
  }
}

TEST_F(Tokens, WrongWindows) {
  ASSERT_OK(OpenText(folder_.Write("t", "0123456789")));
  const choir_windows_t wrong[] = {{-1, 0, 2, 1}, {11, 0, 2, 1}, {0, 11, 2, 1},
                                   {4, 7, 2, 1},  {0, 0, 0, 1},  {0, 0, 2, 0},
                                   {0, -3, 2, 1}};
  for (const choir_windows_t& w : wrong)
    IO_EXPECT_FAILS(Windows(w.first, w.count, w.length, w.stride),
                    INVALID_ARGUMENT, HasSubstr("of 10 tokens"));
  IO_EXPECT_FAILS(Windows(0, 0, 10, 1), INVALID_ARGUMENT,
                  HasSubstr("10 tokens are too few for a window of 10"));
  IO_EXPECT_FAILS(Windows(10, 0, 1, 1), INVALID_ARGUMENT,
                  HasSubstr("0 tokens are too few"));
}

TEST_F(Tokens, AnIdBeyondTheVocabularyEndsTheLoader) {
  const std::vector<uint16_t> ids = {1, 2, 3, 4, 99, 5};
  ASSERT_OK(OpenIds(folder_.Write("ids", Bytes(ids)), 2, 50));
  ASSERT_OK(Windows(0, 0, 2, 2));
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  config.batch = 1;
  config.micro_shard = 1;
  config.shuffle = false;
  choir_loader_t* loader = nullptr;
  ASSERT_OK(choir_loader_create(dataset_, device, 0, 1, &config, &loader));
  const choir_batch_t* batch = nullptr;
  ASSERT_OK(choir_loader_next(loader, &batch));
  IO_EXPECT_FAILS(choir_loader_next(loader, &batch), OUT_OF_RANGE,
                  HasSubstr("ids' has id 99 at place 4"));
  choir_loader_destroy(loader);
  choir_device_release(device);
}

TEST_F(Tokens, NoMemory) {
  const std::string path = folder_.Write("t", std::string(200000, 'a') + "bc");
  for (choir_text_unit_t unit : {CHOIR_TEXT_CHARACTERS, CHOIR_TEXT_BYTES}) {
    int failures = 0;
    for (int n = 1; n < 50; ++n) {
      ScarceMemory::FailAt(n);
      choir_status_t status = OpenText(path, unit);
      if (!status) status = Windows(0, 0, 2, 1);
      ScarceMemory::FailAt(0);
      if (!ScarceMemory::Failed()) {
        EXPECT_EQ(status, nullptr);
        break;
      }
      ++failures;
      IO_EXPECT_FAILS(status, OUT_OF_MEMORY, HasSubstr("memory"));
      choir_tokens_release(tokens_);
      tokens_ = nullptr;
      EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
    }
    EXPECT_GE(failures, 5);
    choir_dataset_release(dataset_);
    choir_tokens_release(tokens_);
    dataset_ = nullptr;
    tokens_ = nullptr;
  }
}

}  // namespace
