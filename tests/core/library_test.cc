// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "core/library_backend.h"
#include "core/log.h"
#include "tests/testing/status_matchers.h"

// Opening shared libraries that need not be there (core/library.c).

namespace {

using Cosine = double (*)(double);
Cosine cosine = nullptr;
const choir_library_symbol_t kSymbols[] = {{"cos", &cosine}};

choir_library_t Library() {
  choir_library_t library = {};
  library.who = "trigonometry";
  library.needs = "a C library";
  library.table = &cosine;
  library.symbols = kSymbols;
  library.symbol_count = std::size(kSymbols);
  library.lock = PTHREAD_MUTEX_INITIALIZER;
  cosine = nullptr;
  return library;
}

choir_status_t Open(choir_library_t* library) {
  const void* table = nullptr;
  choir_status_t status = choir__library_open(library, &table);
  EXPECT_EQ(table, status ? nullptr : &cosine);
  return status;
}

TEST(LibraryTest, TheFirstFileThatLoadsGivesTheSymbols) {
  choir_library_t library = Library();
  library.files[0] = "libchoir_is_not_there.so";
  library.files[1] = "libm.so.6";
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(Open(&library));
    ASSERT_NE(cosine, nullptr);
    EXPECT_EQ(cosine(0.0), 1.0);
  }
}

TEST(LibraryTest, AMissingLibraryIsOneSentenceWithAllThatWasTried) {
  choir_library_t library = Library();
  library.files[0] = "libchoir_one.so";
  library.files[1] = "libchoir_two.so";
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(UNAVAILABLE,
                  "trigonometry: libchoir_one.so: cannot open shared object "
                  "file: No such file or directory; libchoir_two.so: cannot "
                  "open shared object file: No such file or directory; needs a "
                  "C library",
                  Open(&library));
  }
}

TEST(LibraryTest, WhoCanDoWithoutIsToldOnceWhy) {
  choir_library_t library = Library();
  library.files[0] = "libchoir_one.so";
  library.without = "all angles are right";
  std::vector<std::string> logged;
  choir_log_set_sink(
      [](void* self, choir_log_level_t, const char*, const char* message) {
        static_cast<std::vector<std::string>*>(self)->emplace_back(message);
      },
      &logged, CHOIR_LOG_WARNING);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(choir__library_is_there(&library));
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
  EXPECT_EQ(logged,
            std::vector<std::string>{
                "trigonometry: libchoir_one.so: cannot open shared object "
                "file: No such file or directory; needs a C library; all "
                "angles are right"});
  library = Library();
  library.files[0] = "libm.so.6";
  EXPECT_TRUE(choir__library_is_there(&library));
  EXPECT_NE(cosine, nullptr);
}

TEST(LibraryTest, ALibraryWithoutASymbolIsNamedWithIt) {
  const choir_library_symbol_t symbols[] = {{"cos", &cosine},
                                            {"choir_no_such", &cosine}};
  choir_library_t library = Library();
  library.files[0] = "libm.so.6";
  library.symbols = symbols;
  library.symbol_count = 2;
  EXPECT_STATUS(UNAVAILABLE,
                "trigonometry: libm.so.6 has no choir_no_such; needs a C "
                "library",
                Open(&library));
}

TEST(LibraryTest, TheEnvironmentNamesTheOnlyFile) {
  setenv("CHOIR_TEST_LIBRARY", "/nowhere/libm.so", 1);
  choir_library_t library = Library();
  library.variable = "CHOIR_TEST_LIBRARY";
  library.files[0] = "libm.so.6";
  EXPECT_STATUS(UNAVAILABLE,
                "/nowhere/libm.so: cannot open shared object file: No such "
                "file or directory; needs a C library (or its path in "
                "CHOIR_TEST_LIBRARY)",
                Open(&library));
  EXPECT_EQ(cosine, nullptr);
  // Empty: as if it were not set.
  setenv("CHOIR_TEST_LIBRARY", "", 1);
  library = Library();
  library.variable = "CHOIR_TEST_LIBRARY";
  library.files[0] = "libm.so.6";
  EXPECT_OK(Open(&library));
  unsetenv("CHOIR_TEST_LIBRARY");
}

TEST(LibraryTest, AReplacementIsGivenWithoutALibrary) {
  choir_library_t library = Library();
  library.files[0] = "libchoir_one.so";
  const int script = 0;
  choir__library_replace(&library, &script);
  EXPECT_TRUE(choir__library_is_there(&library));
  const void* table = nullptr;
  ASSERT_OK(choir__library_open(&library, &table));
  EXPECT_EQ(table, &script);
  choir__library_replace(&library, nullptr);
  EXPECT_STATUS(UNAVAILABLE, "libchoir_one.so", Open(&library));
}

}  // namespace
