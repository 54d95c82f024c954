// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_IO_IO_TESTING_H_
#define CHOIR_TESTS_IO_IO_TESTING_H_

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "core/allocator.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"

// What the tests of io share: statuses as values, a folder that goes away,
// files in it, and memory that runs out on request.

struct Outcome {
  choir_status_code_t code;
  std::string message;
};

// Takes the status over.
inline Outcome Take(choir_status_t status) {
  Outcome outcome = {choir_status_code(status), choir_status_message(status)};
  choir_status_free(status);
  return outcome;
}

// The code, and a matcher on the message.
#define IO_EXPECT_FAILS(expr, code_, matcher)                           \
  do {                                                                  \
    Outcome outcome_ = Take(expr);                                      \
    EXPECT_EQ(outcome_.code, CHOIR_STATUS_##code_) << outcome_.message; \
    EXPECT_THAT(outcome_.message, matcher);                             \
  } while (0)

class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* base = getenv("TEST_TMPDIR");
    std::string form = std::string(base ? base : "/tmp") + "/choir_io_XXXXXX";
    if (mkdtemp(&form[0])) path_ = form;
  }
  ~TemporaryFolder() {
    for (const std::string& name : Names()) {
      unlink(Path(name).c_str());
      rmdir(Path(name).c_str());
    }
    rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

  std::set<std::string> Names() const {
    std::set<std::string> names;
    if (DIR* folder = opendir(path_.c_str())) {
      while (const dirent* entry = readdir(folder)) {
        std::string name = entry->d_name;
        if (name != "." && name != "..") names.insert(name);
      }
      closedir(folder);
    }
    return names;
  }

  std::string Write(const std::string& name, const std::string& bytes) const {
    // A new file: some file systems flush one that is cut and written again.
    unlink(Path(name).c_str());
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  std::string WriteGzip(const std::string& name,
                        const std::string& bytes) const {
    unlink(Path(name).c_str());
    gzFile file = gzopen(Path(name).c_str(), "wb");
    gzwrite(file, bytes.data(), (unsigned)bytes.size());
    gzclose(file);
    return Path(name);
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  std::string path_;
};

// The process default allocator of a test program that calls Install at its
// start: one that checks and counts, and runs dry on request.
class ScarceMemory {
 public:
  static bool Install() {
    return Take(choir_allocator_set_default(Memory().get())).code ==
           CHOIR_STATUS_OK;
  }
  // Refuses block number `n` (1 is the next one) and all after it, for a pool
  // tries again; 0: none from here on.
  static void FailAt(int n) {
    failed_ = Memory().failed();
    Memory().FailAt(n - 1, /*for_good=*/true);
  }
  // Whether a block was refused before the last FailAt.
  static bool Failed() { return failed_; }
  // Blocks that are out, and all that ever were.
  static size_t Blocks() { return Memory().live_blocks(); }
  static uint64_t Requests() { return Memory().allocations(); }

 private:
  static choir::testing::FailingAllocator& Memory() {
    static auto* memory = new choir::testing::FailingAllocator;
    return *memory;
  }
  static inline bool failed_ = false;
};

#endif  // CHOIR_TESTS_IO_IO_TESTING_H_
