// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_SANITIZED_H_
#define CHOIR_TESTS_TESTING_SANITIZED_H_

namespace choir {
namespace testing {

// Whether this is a build whose memory accesses are watched, where everything
// takes many times as long, or that of the second compiler (CHOIR_TEST_FEWER,
// .bazelrc). A suite that tries each case in many ways, all of which run the
// same code, may take fewer of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    defined(CHOIR_TEST_FEWER)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_SANITIZED_H_
