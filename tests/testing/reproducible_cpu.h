// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_REPRODUCIBLE_CPU_H_
#define CHOIR_TESTS_TESTING_REPRODUCIBLE_CPU_H_

#include "core/device.h"
#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

// A CPU whose kernels have defined bits, made once for each number of threads
// from 1 to 4: threads cost more than most problems of tests.
inline choir_device_t* ReproducibleCpu(int threads) {
  static choir_device_t* devices[5] = {};
  if (!devices[threads]) {
    choir_device_options_t options = {};
    options.threads = threads;
    options.reproducible = true;
    EXPECT_OK(choir_device_create("cpu", &options, &devices[threads]));
  }
  return devices[threads];
}

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_REPRODUCIBLE_CPU_H_
