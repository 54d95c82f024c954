// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_CUDA_ON_HOST_H_
#define CHOIR_TESTS_TENSOR_CUDA_ON_HOST_H_

#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

// The kernels of tensor/kernels/cuda, compiled for the host: an image for the
// script in the place of the driver. One function per file, lent for good.
const HostKernels* ElementwiseOnHost();

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_CUDA_ON_HOST_H_
