// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_STATUS_MATCHERS_H_
#define CHOIR_TESTS_TESTING_STATUS_MATCHERS_H_

#include <gtest/gtest.h>

#include <string>

#include "core/status.h"

// Checks on statuses that say the whole story when they fail, and free what
// they were given.
//
//   ASSERT_OK(choir_device_create("cpu", nullptr, &device));
//   EXPECT_STATUS(NOT_FOUND, "known are", choir_device_create("x", ...));

#define EXPECT_OK(expr) EXPECT_PRED_FORMAT1(choir::testing::IsOk, expr)
#define ASSERT_OK(expr) ASSERT_PRED_FORMAT1(choir::testing::IsOk, expr)
// The code's short name, and a text that the message must hold.
#define EXPECT_STATUS(code, text, expr) \
  EXPECT_TRUE(choir::testing::HasStatus(#expr, expr, CHOIR_STATUS_##code, text))
#define ASSERT_STATUS(code, text, expr) \
  ASSERT_TRUE(choir::testing::HasStatus(#expr, expr, CHOIR_STATUS_##code, text))

namespace choir {
namespace testing {

inline ::testing::AssertionResult IsOk(const char* expression,
                                       choir_status_t status) {
  if (!status) return ::testing::AssertionSuccess();
  ::testing::AssertionResult result = ::testing::AssertionFailure();
  result << expression
         << "\n  failed: " << choir_status_code_text(choir_status_code(status))
         << "\n  " << choir_status_message(status) << "\n  at "
         << choir_status_origin(status);
  choir_status_free(status);
  return result;
}

inline ::testing::AssertionResult HasStatus(const char* expression,
                                            choir_status_t status,
                                            choir_status_code_t code,
                                            const std::string& text) {
  std::string message = choir_status_message(status);
  bool fits = choir_status_code(status) == code &&
              message.find(text) != std::string::npos;
  ::testing::AssertionResult result =
      fits ? ::testing::AssertionSuccess() : ::testing::AssertionFailure();
  if (!fits) {
    result << expression
           << "\n  gave: " << choir_status_code_text(choir_status_code(status))
           << "\n  " << message
           << "\n  expected: " << choir_status_code_text(code) << ", with '"
           << text << "' in the message";
  }
  choir_status_free(status);
  return result;
}

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_STATUS_MATCHERS_H_
