// SPDX-License-Identifier: Apache-2.0
#include "io/idx.h"

#include <sys/stat.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const bool installed = ScarceMemory::Install();

std::string Header(uint8_t type, const std::vector<uint32_t>& shape) {
  std::string bytes = {0, 0, (char)type, (char)shape.size()};
  for (uint32_t size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back((char)(size >> shift));
    }
  }
  return bytes;
}

std::string Numbers(size_t count) {
  std::string bytes(count, 0);
  for (size_t i = 0; i < count; ++i) bytes[i] = (char)(i * 7);
  return bytes;
}

class Idx : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(installed);
    blocks_ = ScarceMemory::Blocks();
  }
  void TearDown() override { EXPECT_EQ(ScarceMemory::Blocks(), blocks_); }

  // A failure leaves the value zeroed.
  void Fails(const std::string& path, int32_t ndim, choir_status_code_t code,
             const std::vector<std::string>& parts, int64_t limit = 0) {
    choir_idx_t idx;
    memset(&idx, 0xff, sizeof idx);
    Outcome outcome = Take(choir_idx_read(path.c_str(), ndim, limit, &idx));
    EXPECT_EQ(outcome.code, code) << outcome.message;
    for (const std::string& part : parts) {
      EXPECT_THAT(outcome.message, HasSubstr(part));
    }
    EXPECT_EQ(idx.data, nullptr);
    EXPECT_EQ(idx.bytes, 0u);
  }

  TemporaryFolder folder_;
  size_t blocks_ = 0;
};

TEST_F(Idx, ReadsPlainAndGzippedAlike) {
  const std::string bytes = Header(8, {3, 4, 5}) + Numbers(60);
  for (const std::string& path :
       {folder_.Write("plain", bytes), folder_.WriteGzip("packed", bytes)}) {
    choir_idx_t idx;
    ASSERT_OK(choir_idx_read(path.c_str(), 3, 0, &idx));
    EXPECT_EQ(idx.ndim, 3);
    EXPECT_EQ(idx.shape[0], 3);
    EXPECT_EQ(idx.shape[1], 4);
    EXPECT_EQ(idx.shape[2], 5);
    EXPECT_EQ(idx.total_rows, 3);
    EXPECT_EQ(std::string((char*)idx.data, idx.bytes), Numbers(60));
    choir_idx_clear(&idx);
    EXPECT_EQ(idx.data, nullptr);
    choir_idx_clear(&idx);
  }
}

TEST_F(Idx, ALimitReadsTheFirstRows) {
  // What follows the limit is not looked at: here it is missing.
  const std::string bytes = Header(8, {10, 4}) + Numbers(12);
  for (const std::string& path :
       {folder_.Write("plain", bytes), folder_.WriteGzip("packed", bytes)}) {
    choir_idx_t idx;
    ASSERT_OK(choir_idx_read(path.c_str(), 2, 3, &idx));
    EXPECT_EQ(idx.shape[0], 3);
    EXPECT_EQ(idx.total_rows, 10);
    EXPECT_EQ(idx.bytes, 12u);
    choir_idx_clear(&idx);
    Fails(path, 2, CHOIR_STATUS_OUT_OF_RANGE, {"truncated"}, 4);
  }
  folder_.Write("whole", Header(8, {2, 2}) + Numbers(4));
  choir_idx_t idx;
  ASSERT_OK(choir_idx_read(folder_.Path("whole").c_str(), 2, 5, &idx));
  EXPECT_EQ(idx.shape[0], 2);
  choir_idx_clear(&idx);
}

TEST_F(Idx, NoRows) {
  folder_.Write("none", Header(8, {0, 28, 28}));
  choir_idx_t idx;
  ASSERT_OK(choir_idx_read(folder_.Path("none").c_str(), 3, 0, &idx));
  EXPECT_EQ(idx.bytes, 0u);
  EXPECT_EQ(idx.data, nullptr);
  choir_idx_clear(&idx);
}

TEST_F(Idx, MissingFile) {
  Fails(folder_.Path("nothing"), 3, CHOIR_STATUS_NOT_FOUND,
        {folder_.Path("nothing"), "No such file"});
  Fails(folder_.Path("nothing") + "/deeper", 3, CHOIR_STATUS_NOT_FOUND, {});
}

TEST_F(Idx, FoldersAndPipesAreRefusedAtOnce) {
  Fails(folder_.path(), 3, CHOIR_STATUS_INVALID_ARGUMENT, {"folder"});
  ASSERT_EQ(mkfifo(folder_.Path("pipe").c_str(), 0600), 0);
  Fails(folder_.Path("pipe"), 3, CHOIR_STATUS_INVALID_ARGUMENT, {"special"});
  Fails("/dev/zero", 3, CHOIR_STATUS_INVALID_ARGUMENT, {"special"});
}

TEST_F(Idx, WrongKindsOfFiles) {
  Fails(folder_.Write("text", "hello, this is text"), 3,
        CHOIR_STATUS_INVALID_ARGUMENT, {"text", "68 65", "00 00"});
  Fails(folder_.Write("float", Header(0x0d, {1, 1, 1}) + "1234"), 3,
        CHOIR_STATUS_INVALID_ARGUMENT, {"0x0d", "0x08"});
  Fails(folder_.Write("labels", Header(8, {4}) + "1234"), 3,
        CHOIR_STATUS_INVALID_ARGUMENT, {"1 dimensions", "3 are needed"});
  choir_idx_t idx;
  IO_EXPECT_FAILS(choir_idx_read(nullptr, 3, 0, &idx), INVALID_ARGUMENT,
                  HasSubstr("(null)"));
  for (int32_t ndim : {0, -1, CHOIR_MAX_NDIM + 1}) {
    IO_EXPECT_FAILS(choir_idx_read("x", ndim, 0, &idx), INVALID_ARGUMENT,
                    HasSubstr("dimensions"));
  }
  IO_EXPECT_FAILS(choir_idx_read("x", 1, -1, &idx), INVALID_ARGUMENT,
                  HasSubstr("limit"));
}

TEST_F(Idx, TruncatedAnywhere) {
  const std::string bytes = Header(8, {3, 4, 5}) + Numbers(60);
  for (size_t length = 0; length < bytes.size(); ++length) {
    SCOPED_TRACE(length);
    const std::string part = bytes.substr(0, length);
    Fails(folder_.Write("plain", part), 3, CHOIR_STATUS_OUT_OF_RANGE,
          {folder_.Path("plain")});
    Fails(folder_.WriteGzip("packed", part), 3, CHOIR_STATUS_OUT_OF_RANGE,
          {folder_.Path("packed")});
  }
  folder_.WriteGzip("packed", bytes);
  const std::string packed = folder_.Read("packed");
  for (size_t length = 0; length < packed.size(); ++length) {
    SCOPED_TRACE(length);
    choir_idx_t idx;
    choir_status_t status = choir_idx_read(
        folder_.Write("cut", packed.substr(0, length)).c_str(), 3, 0, &idx);
    EXPECT_NE(status, nullptr);
    choir_status_free(status);
    EXPECT_EQ(idx.data, nullptr);
  }
}

TEST_F(Idx, TheMessageOfATruncatedFileSaysWhatIsMissing) {
  Fails(folder_.Write("cut", Header(8, {3, 4, 5}) + Numbers(59)), 3,
        CHOIR_STATUS_OUT_OF_RANGE, {"59 of the 60 bytes", "3 x 4 x 5"});
  Fails(folder_.WriteGzip("packed", Header(8, {3, 4, 5}) + Numbers(59)), 3,
        CHOIR_STATUS_OUT_OF_RANGE, {"59 of the 60 bytes", "3 x 4 x 5"});
}

TEST_F(Idx, TrailingBytes) {
  const std::string bytes = Header(8, {3, 4, 5}) + Numbers(61);
  Fails(folder_.Write("plain", bytes), 3, CHOIR_STATUS_OUT_OF_RANGE,
        {"goes on after the 60 bytes"});
  Fails(folder_.WriteGzip("packed", bytes), 3, CHOIR_STATUS_OUT_OF_RANGE,
        {"goes on after the 60 bytes"});
}

TEST_F(Idx, ADamagedChecksumIsNoticed) {
  folder_.WriteGzip("packed", Header(8, {3, 4, 5}) + Numbers(60));
  std::string packed = folder_.Read("packed");
  packed[packed.size() - 6] ^= 1;  // in the CRC
  Fails(folder_.Write("packed", packed), 3, CHOIR_STATUS_OUT_OF_RANGE,
        {"broken"});
}

// A header may claim anything; nobody allocates for it.
TEST_F(Idx, HugeClaims) {
  const uint32_t huge = UINT32_MAX;
  Fails(folder_.Write("a", Header(8, {huge, huge, huge})), 3,
        CHOIR_STATUS_OUT_OF_RANGE, {"4294967295 x 4294967295"});
  Fails(folder_.Write("b", Header(8, {60000, 28, 28})), 3,
        CHOIR_STATUS_OUT_OF_RANGE, {"60000 x 28 x 28"});
  Fails(folder_.WriteGzip("c", Header(8, {huge, 2, 2})), 3,
        CHOIR_STATUS_OUT_OF_RANGE, {});
  Fails(folder_.Write("d", Header(8, std::vector<uint32_t>(8, huge))), 8,
        CHOIR_STATUS_OUT_OF_RANGE, {});
  Fails(folder_.Write("e", Header(8, {huge, huge, huge})), 3,
        CHOIR_STATUS_OUT_OF_RANGE, {}, 1);
  EXPECT_EQ(ScarceMemory::Blocks(), blocks_);
}

TEST_F(Idx, RandomDamageIsNeverMoreThanAFailure) {
  const std::string plain = Header(8, {3, 4, 5}) + Numbers(60);
  folder_.WriteGzip("packed", plain);
  const std::string packed = folder_.Read("packed");
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = round % 2 ? plain : packed;
    for (int k = 0; k < 1 + round % 3; ++k) {
      bytes[random() % bytes.size()] = (char)random();
    }
    choir_idx_t idx;
    choir_status_t status = choir_idx_read(
        folder_.Write("damaged", bytes).c_str(), 3, round % 5, &idx);
    choir_status_free(status);
    choir_idx_clear(&idx);
  }
}

TEST_F(Idx, NoMemory) {
  const std::string path =
      folder_.Write("plain", Header(8, {3, 4, 5}) + Numbers(60));
  ScarceMemory::FailAt(1);
  Fails(path, 3, CHOIR_STATUS_OUT_OF_MEMORY, {});
  ScarceMemory::FailAt(0);
  EXPECT_TRUE(ScarceMemory::Failed());
}

}  // namespace
