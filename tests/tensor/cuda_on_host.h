// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_CUDA_ON_HOST_H_
#define CHOIR_TESTS_TENSOR_CUDA_ON_HOST_H_

#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

// The kernels of tensor/kernels/cuda, compiled for the host, as the images of
// all modules: what the script in the place of the driver can load. Off: no
// images.
void CudaKernelsOnHost(bool is_on);

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_CUDA_ON_HOST_H_
