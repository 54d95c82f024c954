// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"
#include "io/io_internal.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(IoFile, SystemErrorsBecomeStatuses) {
  const struct {
    int error;
    choir_status_code_t code;
    const char* words;
  } cases[] = {
      {ENOENT, CHOIR_STATUS_NOT_FOUND, "No such file"},
      {ENOTDIR, CHOIR_STATUS_NOT_FOUND, "Not a directory"},
      {ENOMEM, CHOIR_STATUS_OUT_OF_MEMORY, "Cannot allocate"},
      {EIO, CHOIR_STATUS_INTERNAL, "Input/output error"},
      {EACCES, CHOIR_STATUS_FAILED_PRECONDITION, "Permission denied"},
      {ENOSPC, CHOIR_STATUS_FAILED_PRECONDITION, "No space left"},
  };
  for (const auto& each : cases) {
    Outcome outcome = Take(CHOIR__IO_ERROR(each.error, "doing %d", 7));
    EXPECT_EQ(outcome.code, each.code);
    EXPECT_THAT(outcome.message,
                AllOf(HasSubstr("doing 7: "), HasSubstr(each.words)));
  }
}

TEST(IoFile, ReadsAndWrites) {
  TemporaryFolder folder;
  const std::string path = folder.Path("file");
  int fd = open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  EXPECT_OK(choir__io_write(fd, path.c_str(), "0123456789", 10));
  close(fd);
  uint64_t bytes = 0;
  ASSERT_OK(choir__io_open("test", path.c_str(), &fd, &bytes));
  EXPECT_EQ(bytes, 10u);
  char text[5] = "";
  EXPECT_OK(choir__io_read_at(fd, "test", path.c_str(), 3, text, 4));
  EXPECT_STREQ(text, "3456");
  IO_EXPECT_FAILS(choir__io_read_at(fd, "test", path.c_str(), 8, text, 4),
                  OUT_OF_RANGE,
                  AllOf(HasSubstr("ends at byte 10"), HasSubstr("2 more")));
  IO_EXPECT_FAILS(choir__io_write(fd, path.c_str(), "x", 1),
                  FAILED_PRECONDITION, HasSubstr("cannot write"));
  close(fd);
}

TEST(IoFile, AFullDiskIsTold) {
  int fd = open("/dev/full", O_WRONLY);
  if (fd < 0) GTEST_SKIP() << "there is no /dev/full";
  IO_EXPECT_FAILS(choir__io_write(fd, "/dev/full", "x", 1), FAILED_PRECONDITION,
                  HasSubstr("No space left"));
  close(fd);
}

}  // namespace
