// SPDX-License-Identifier: Apache-2.0
#include "tests/dist/compress_on_host.h"

#include "dist/compress_cuda_modules_internal.h"
#include "tests/tensor/cuda_words_on_host.h"

static const void* const compress_image = choir__compress_cuda_module.image;
static const void* const top_k_image = choir__top_k_cuda_module.image;

static choir::testing::HostKernels compress_kernels;
static choir::testing::HostKernels top_k_kernels;

#define CHOIR__FILE compress_kernels
#include "dist/compress_cuda.cu"
#undef CHOIR__FILE
#define CHOIR__FILE top_k_kernels
#include "dist/top_k_cuda.cu"
#undef CHOIR__FILE

namespace choir {
namespace testing {

void CompressKernelsOnHost(bool is_on) {
  choir__compress_cuda_module.image = is_on ? &compress_kernels : nullptr;
  choir__top_k_cuda_module.image = is_on ? &top_k_kernels : nullptr;
}

void CompressKernelsOfTheBuild() {
  choir__compress_cuda_module.image = compress_image;
  choir__top_k_cuda_module.image = top_k_image;
}

Copied CopiedBytes(const std::vector<std::string>& log) {
  Copied copied;
  for (const std::string& line : log) {
    if (line.rfind("to_host ", 0) == 0)
      copied.down += std::stoul(line.substr(8));
    if (line.rfind("to_device ", 0) == 0)
      copied.up += std::stoul(line.substr(10));
  }
  return copied;
}

}  // namespace testing
}  // namespace choir
