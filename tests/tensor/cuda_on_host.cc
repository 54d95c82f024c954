// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/cuda_on_host.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tests/tensor/cuda_words_on_host.h"

// One list of kernels for each .cu file.
#define CHOIR__CUDA_FILE(name) \
  static choir::testing::HostKernels name##_kernels;
#include "tensor/kernels/kernels.def"

// Each of them, with CHOIR__FILE as its list (made by the BUILD file).
#include "tests/tensor/cuda_files_on_host.inc"

namespace choir {
namespace testing {

void CudaKernelsOnHost(bool is_on) {
#define CHOIR__CUDA_FILE(name) \
  choir__cuda_##name##_module.image = is_on ? &name##_kernels : nullptr;
#include "tensor/kernels/kernels.def"
}

}  // namespace testing
}  // namespace choir
