// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_NO_CUDA_KERNELS_H_
#define CHOIR_TESTS_TENSOR_NO_CUDA_KERNELS_H_

#include <vector>

#include "tensor/kernels/cuda/cuda_kernels.h"

namespace choir::testing {

// While it lives, the build's own kernels for GPUs are not there: a script in
// the place of the driver cannot run what --config=cuda compiled.
class NoCudaKernels {
 public:
  NoCudaKernels() {
    for (choir_cuda_module_t* module : Modules()) {
      images_.push_back(module->image);
      module->image = nullptr;
    }
  }
  ~NoCudaKernels() {
    size_t i = 0;
    for (choir_cuda_module_t* module : Modules()) module->image = images_[i++];
  }
  NoCudaKernels(const NoCudaKernels&) = delete;
  NoCudaKernels& operator=(const NoCudaKernels&) = delete;

 private:
  static std::vector<choir_cuda_module_t*> Modules() {
    return {
#define X(name) &choir__cuda_##name##_module,
#include "tensor/kernels/cuda/modules.def"
#undef X
    };
  }
  std::vector<decltype(choir_cuda_module_t::image)> images_;
};

}  // namespace choir::testing

#endif  // CHOIR_TESTS_TENSOR_NO_CUDA_KERNELS_H_
