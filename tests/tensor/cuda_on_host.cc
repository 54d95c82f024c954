// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/cuda_on_host.h"

#include "tensor/kernels/cuda/cuda_kernels.h"

// What nvcc's keywords stand for here: a kernel is a function of one thread.
#define CHOIR__GPU static inline
#define CHOIR__GPU_METHOD inline
#define CHOIR__KERNEL(symbol, params_type) \
  static void symbol(const params_type& params, uint32_t thread)
#define CHOIR__THREAD thread

#include "tensor/kernels/cuda/cuda_elementwise.cu"
#include "tensor/kernels/cuda/cuda_optimizer.cu"

namespace choir {
namespace testing {

#define KERNEL(symbol, params_type)                                        \
  {#symbol, sizeof(params_type), [](const void* params, uint32_t thread) { \
     symbol(*static_cast<const params_type*>(params), thread);             \
   }},

void CudaKernelsOnHost(bool is_on) {
  static const HostKernels* const elementwise = new HostKernels{
#define CHOIR__UNARY(OP, name, formula)                   \
  KERNEL(choir_##name##_dense, choir__cuda_elementwise_t) \
  KERNEL(choir_##name##_strided, choir__cuda_elementwise_t)
#define CHOIR__BINARY(OP, name, formula) CHOIR__UNARY(OP, name, formula)
#include "tensor/kernels/cuda/cuda_elementwise.def"
  };
  static const HostKernels* const optimizer = new HostKernels{
#define CHOIR__UPDATE(OP, name, kept)                         \
  KERNEL(choir_##name##_update_dense, choir__cuda_##name##_t) \
  KERNEL(choir_##name##_update_strided, choir__cuda_##name##_t)
#include "tensor/kernels/cuda/cuda_optimizer.def"
  };
#define X(name) choir__cuda_##name##_module.image = is_on ? name : nullptr;
#include "tensor/kernels/cuda/modules.def"
#undef X
}

}  // namespace testing
}  // namespace choir
