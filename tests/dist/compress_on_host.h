// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_DIST_COMPRESS_ON_HOST_H_
#define CHOIR_TESTS_DIST_COMPRESS_ON_HOST_H_

#include <string>
#include <vector>

#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

// The kernels of dist for GPUs, compiled for the host, as the images of their
// modules: what the script in the place of the driver can load. Off: no images.
void CompressKernelsOnHost(bool is_on);
// The images that the modules had at first.
void CompressKernelsOfTheBuild();

// What a log of that script (FakeCuda::TakeLog) tells of the bus, in bytes.
struct Copied {
  size_t down = 0;
  size_t up = 0;
};
Copied CopiedBytes(const std::vector<std::string>& log);

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_DIST_COMPRESS_ON_HOST_H_
