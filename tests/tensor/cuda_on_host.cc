// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/cuda_on_host.h"

// What nvcc's keywords stand for here: a kernel is a function of one thread.
#define CHOIR__GPU static inline
#define CHOIR__KERNEL(symbol, params_type) \
  static void symbol(const params_type& params, uint32_t thread)
#define CHOIR__THREAD thread

#include "tensor/kernels/cuda/cuda_elementwise.cu"

namespace choir {
namespace testing {

#define KERNEL(symbol, params_type)                                        \
  {#symbol, sizeof(params_type), [](const void* params, uint32_t thread) { \
     symbol(*static_cast<const params_type*>(params), thread);             \
   }},

const HostKernels* ElementwiseOnHost() {
  static const HostKernels* const kernels = new HostKernels{
#define CHOIR__UNARY(OP, name, formula)                   \
  KERNEL(choir_##name##_dense, choir__cuda_elementwise_t) \
  KERNEL(choir_##name##_strided, choir__cuda_elementwise_t)
#define CHOIR__BINARY(OP, name, formula) CHOIR__UNARY(OP, name, formula)
#include "tensor/kernels/cuda/cuda_elementwise.def"
  };
  return kernels;
}

}  // namespace testing
}  // namespace choir
