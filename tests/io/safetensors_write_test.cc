// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "io/safetensors_internal.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

choir_checkpoint_entry_t Entry(const char* name, choir_dtype_t dtype,
                               const std::vector<int64_t>& shape) {
  choir_checkpoint_entry_t entry = {};
  entry.name = name;
  entry.dtype = dtype;
  entry.bytes = choir_dtype_bytes(dtype);
  for (int64_t size : shape) {
    entry.shape[entry.ndim++] = size;
    entry.bytes *= (size_t)size;
  }
  return entry;
}

class SafetensorsWrite : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override { EXPECT_EQ(ScarceMemory::Blocks(), blocks_); }

  // The text in a file, the 8 bytes of length included.
  Outcome Print(const std::vector<choir_checkpoint_entry_t>& entries,
                const std::vector<choir_metadata_t>& metadata) {
    choir__safetensors_t header;
    choir_status_t status = choir__safetensors_build(
        choir_allocator_default(), entries.data(), entries.size(),
        metadata.data(), metadata.size(), &header);
    if (status) return Take(status);
    char* text = nullptr;
    size_t bytes = 0;
    status = choir__safetensors_print(&header, &text, &bytes, &sum_offset_);
    if (!status) {
      text_.assign(text, bytes);
      choir_deallocate(choir_allocator_default(), text, bytes);
    }
    choir__safetensors_clear(&header);
    return Take(status);
  }

  size_t blocks_ = 0;
  std::string text_;
  size_t sum_offset_ = 0;
};

TEST_F(SafetensorsWrite, TheTextOfAHeader) {
  ASSERT_EQ(Print({Entry("flags", CHOIR_DTYPE_BOOL, {3}),
                   Entry("w", CHOIR_DTYPE_F32, {2, 3}),
                   Entry("step", CHOIR_DTYPE_I64, {}),
                   Entry("b", CHOIR_DTYPE_F32, {0})},
                  {{"z", "last"}, {"choir.sum", "0123"}})
                .code,
            CHOIR_STATUS_OK);
  const std::string wanted =
      R"({"__metadata__":{"choir.sum":"0123","z":"last"},)"
      R"("step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("b":{"dtype":"F32","shape":[0],"data_offsets":[32,32]},)"
      R"("flags":{"dtype":"BOOL","shape":[3],"data_offsets":[32,35]}})";
  EXPECT_EQ(text_.size() % 8, 0u);
  EXPECT_EQ(text_.substr(8, wanted.size()), wanted);
  EXPECT_EQ(text_.find_first_not_of(' ', 8 + wanted.size()), std::string::npos);
  EXPECT_EQ((size_t)(uint8_t)text_[0] + 256 * (size_t)(uint8_t)text_[1],
            text_.size() - 8);
  EXPECT_EQ(text_.substr(sum_offset_, 4), "0123");
}

TEST_F(SafetensorsWrite, NothingAtAll) {
  ASSERT_EQ(Print({}, {}).code, CHOIR_STATUS_OK);
  EXPECT_EQ(text_.substr(8), "{}      ");
  EXPECT_EQ(sum_offset_, 0u);
}

TEST_F(SafetensorsWrite, WhatIsWrittenCanBeParsed) {
  ASSERT_EQ(Print({Entry("a \"b\" \\ \n\x01 \xc3\xa4", CHOIR_DTYPE_U8, {7})},
                  {{"tab\t", "quote\" back\\ line\n"}, {"empty", ""}})
                .code,
            CHOIR_STATUS_OK);
  std::string text = text_.substr(8) + " ";
  choir__safetensors_t header;
  ASSERT_OK(choir__safetensors_parse(choir_allocator_default(), &text[0],
                                     text.size() - 1, 7, &header));
  ASSERT_EQ(header.count, 1u);
  EXPECT_STREQ(header.entries[0].entry.name, "a \"b\" \\ \n\x01 \xc3\xa4");
  EXPECT_STREQ(choir__safetensors_metadata(&header, "tab\t"),
               "quote\" back\\ line\n");
  EXPECT_STREQ(choir__safetensors_metadata(&header, "empty"), "");
  choir__safetensors_clear(&header);
}

TEST_F(SafetensorsWrite, WhatAHeaderCannotHold) {
  auto refused = [this](const std::vector<choir_checkpoint_entry_t>& entries,
                        const std::vector<choir_metadata_t>& metadata,
                        const char* part) {
    Outcome outcome = Print(entries, metadata);
    EXPECT_EQ(outcome.code, CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(outcome.message, HasSubstr(part));
  };
  for (const char* name : {"", "\xff", "__metadata__", (const char*)nullptr}) {
    refused({Entry("ok", CHOIR_DTYPE_U8, {1}), Entry(name, CHOIR_DTYPE_U8, {})},
            {}, "tensor 1");
    refused({}, {{name, "text"}}, "metadata 0");
  }
  refused({Entry("w", CHOIR_DTYPE_U8, {1}), Entry("v", CHOIR_DTYPE_U8, {1}),
           Entry("w", CHOIR_DTYPE_F32, {1})},
          {}, "called 'w'");
  refused({}, {{"k", "1"}, {"k", "2"}}, "'k' is given twice");
  refused({}, {{"k", nullptr}}, "'k' is NULL");
  refused({}, {{"k", "\x80"}}, "'k' is no UTF-8");
  const std::string huge(CHOIR__SAFETENSORS_MAX_HEADER, 'x');
  refused({}, {{"k", huge.c_str()}}, "at most");
  choir_checkpoint_entry_t large = Entry("a", CHOIR_DTYPE_U8, {});
  large.bytes = SIZE_MAX;
  choir_checkpoint_entry_t larger = large;
  larger.name = "b";
  refused({large, larger}, {}, "2^64");
}

TEST_F(SafetensorsWrite, NoMemoryIsAStatus) {
  int failures = 0;
  for (int n = 1;; ++n) {
    ScarceMemory::FailAt(n);
    Outcome outcome =
        Print({Entry("w", CHOIR_DTYPE_U8, {1})}, {{"key", "text"}});
    ScarceMemory::FailAt(0);
    if (!ScarceMemory::Failed()) {
      EXPECT_EQ(outcome.code, CHOIR_STATUS_OK);
      break;
    }
    ++failures;
    EXPECT_EQ(outcome.code, CHOIR_STATUS_OUT_OF_MEMORY);
  }
  EXPECT_EQ(failures, 4);
}

}  // namespace
