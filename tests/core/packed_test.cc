// SPDX-License-Identifier: Apache-2.0
#include "core/packed_backend.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "tests/testing/status_matchers.h"

namespace {

choir_status_t RunNothing(const choir_record_t*, choir_stream_t*) {
  return nullptr;
}
choir_status_t RunFailing(const choir_record_t*, choir_stream_t*) {
  return CHOIR_ERROR(INTERNAL, "half way");
}
constexpr choir_kernel_t kNothing = {"nothing", RunNothing, nullptr,
                                     nullptr,   nullptr,    false};
constexpr choir_kernel_t kFailing = {"failing", RunFailing, nullptr,
                                     nullptr,   nullptr,    false};

class PackedTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_device_create(GetParam(), nullptr, &device_));
    stream_ = choir_device_stream(device_);
    ASSERT_OK(choir_buffer_create(device_, 64, &buffer_));
    ASSERT_OK(choir_buffer_create(device_, 64, &other_));
  }
  void TearDown() override {
    choir_buffer_release(buffer_);
    choir_buffer_release(other_);
    choir_device_release(device_);
  }

  // "none", "new" or, with its first byte, "kept x"; a new one is filled with
  // `fill` and kept.
  std::string Ask(const std::string& key, char fill = '-') {
    return AskOf(buffer_, key, fill);
  }
  static std::string AskOf(choir_buffer_t* buffer, const std::string& key,
                           char fill = '-') {
    choir__packed_t* packed = nullptr;
    EXPECT_OK(choir__packed_take(buffer, key.data(), key.size(), 8, &packed));
    if (!packed) return "none";
    char* data = static_cast<char*>(choir__packed_data(packed));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    std::string found = "new";
    if (choir__packed_is_kept(packed)) {
      found = std::string("kept ") + data[0];
    } else {
      memset(data, fill, 8);
      choir__packed_keep(buffer, packed);
    }
    choir__packed_release(packed);
    return found;
  }
  // A record that reads one buffer and writes another.
  choir_status_t Run(const choir_kernel_t* kernel, choir_buffer_t* from,
                     choir_buffer_t* to) {
    choir_view_t operands[2];
    const int64_t count = 8;
    for (int i = 0; i < 2; ++i) {
      CHOIR_TRY(choir_view_make(CHOIR_DTYPE_I64, 1, &count, &operands[i]));
      operands[i].buffer = i == 0 ? from : to;
    }
    choir_record_t record = {};
    record.kernel = kernel;
    record.operands = operands;
    record.src_count = record.dst_count = 1;
    choir_status_t status = choir_stream_submit(stream_, &record);
    return choir_status_join(status, choir_stream_synchronize(stream_));
  }

  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
  choir_buffer_t* buffer_ = nullptr;
  choir_buffer_t* other_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Devices, PackedTest,
                         testing::Values("cpu", "cpu_async"));

TEST_P(PackedTest, IsMadeWhenTheSameContentIsAskedForAgain) {
  EXPECT_EQ(Ask("a"), "none");
  EXPECT_EQ(Ask("a", '1'), "new");
  EXPECT_EQ(Ask("a"), "kept 1");
  EXPECT_EQ(Ask("b", '2'), "new");
  EXPECT_EQ(Ask("b"), "kept 2");
  EXPECT_EQ(Ask("a"), "kept 1");
  EXPECT_EQ(AskOf(other_, "a"), "none");
}

TEST_P(PackedTest, GoesWithAWriteOfTheHost) {
  const char zeros[8] = {};
  for (char fill : {'1', '2', '3'}) {
    EXPECT_EQ(Ask("a"), "none");
    EXPECT_EQ(Ask("a", fill), "new");
    EXPECT_EQ(Ask("a"), std::string("kept ") + fill);
    ASSERT_OK(choir_buffer_write(buffer_, stream_, 56, zeros, 8));
  }
}

TEST_P(PackedTest, GoesWithARecordThatWrites) {
  Ask("a");
  Ask("a", '1');
  ASSERT_OK(Run(&kNothing, buffer_, other_));
  EXPECT_EQ(Ask("a"), "kept 1");
  ASSERT_OK(Run(&kNothing, other_, buffer_));
  EXPECT_EQ(Ask("a"), "none");
  EXPECT_EQ(Ask("a", '2'), "new");
  EXPECT_STATUS(INTERNAL, "half way", Run(&kFailing, other_, buffer_));
  EXPECT_EQ(Ask("a"), "none");
}

// What changes in each step has no form.
TEST_P(PackedTest, IsNotMadeOfWhatChanges) {
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(Ask("a"), "none");
    ASSERT_OK(Run(&kNothing, other_, buffer_));
  }
}

TEST_P(PackedTest, IsNotKeptWhenItsBufferWasWrittenMeanwhile) {
  choir__packed_t* packed = nullptr;
  Ask("a");
  ASSERT_OK(choir__packed_take(buffer_, "a", 1, 8, &packed));
  ASSERT_NE(packed, nullptr);
  ASSERT_OK(Run(&kNothing, other_, buffer_));
  choir__packed_keep(buffer_, packed);
  EXPECT_FALSE(choir__packed_is_kept(packed));
  choir__packed_release(packed);
  EXPECT_EQ(Ask("a"), "none");
}

// Whoever has the address may write at any time.
TEST_P(PackedTest, ABufferThatWasLentKeepsNone) {
  Ask("a");
  Ask("a", '1');
  EXPECT_NE(choir_buffer_data(buffer_), nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Ask("a"), "none");
  int64_t memory[8] = {};
  choir_buffer_t* wrapped = nullptr;
  ASSERT_OK(choir_buffer_wrap(device_, memory, sizeof memory, nullptr, nullptr,
                              &wrapped));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(AskOf(wrapped, "a"), "none");
  choir_buffer_release(wrapped);
}

TEST_P(PackedTest, TheOldestGoes) {
  Ask("a");
  Ask("a", '1');
  Ask("b", '2');
  EXPECT_EQ(Ask("c", '3'), "new");
  EXPECT_EQ(Ask("b"), "kept 2");
  EXPECT_EQ(Ask("a", '4'), "new");
  EXPECT_EQ(Ask("b", '5'), "new");
  EXPECT_EQ(Ask("a"), "kept 4");
}

TEST_P(PackedTest, IsUsedOnWhenItsBufferIsWritten) {
  choir__packed_t* packed = nullptr;
  Ask("a");
  Ask("a", '1');
  ASSERT_OK(choir__packed_take(buffer_, "a", 1, 8, &packed));
  ASSERT_OK(Run(&kNothing, other_, buffer_));
  EXPECT_EQ(static_cast<char*>(choir__packed_data(packed))[7], '1');
  choir__packed_release(packed);
}

}  // namespace
