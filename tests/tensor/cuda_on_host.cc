// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/cuda_on_host.h"

#include "tensor/kernels/cuda/cuda_kernels.h"

// One list of kernels for each .cu file; each kernel puts itself into that of
// the file that is included at the moment, CHOIR__FILE.
#define X(name) static choir::testing::HostKernels name##_kernels;
#include "tensor/kernels/cuda/modules.def"
#undef X

static bool Add(choir::testing::HostKernels* kernels,
                choir::testing::HostKernel kernel) {
  kernels->push_back(kernel);
  return true;
}

// What nvcc's keywords stand for here: a kernel is a function of one block,
// whose threads take turns, phase by phase.
#define CHOIR__GPU static inline
#define CHOIR__GPU_METHOD inline
#define CHOIR__BLOCK_KERNEL(symbol, params_type)                            \
  static void symbol(const params_type& params, uint32_t block);            \
  [[maybe_unused]] static const bool symbol##_is_listed =                   \
      Add(&CHOIR__FILE, {#symbol, sizeof(params_type),                      \
                         [](const void* memory, uint32_t block, uint32_t) { \
                           symbol(*static_cast<const params_type*>(memory), \
                                  block);                                   \
                         }});                                               \
  static void symbol(const params_type& params, [[maybe_unused]] uint32_t block)
#define CHOIR__KERNEL(symbol, params_type)                            \
  static void symbol(const params_type& params, uint32_t thread);     \
  [[maybe_unused]] static const bool symbol##_is_listed =             \
      Add(&CHOIR__FILE,                                               \
          {#symbol, sizeof(params_type),                              \
           [](const void* memory, uint32_t block, uint32_t threads) { \
             for (uint32_t i = 0; i < threads; ++i)                   \
               symbol(*static_cast<const params_type*>(memory),       \
                      block* threads + i);                            \
           }});                                                       \
  static void symbol(const params_type& params, uint32_t thread)
#define CHOIR__THREAD thread
#define CHOIR__BLOCK block
#define CHOIR__SHARED
#define CHOIR__EACH_THREAD(thread) \
  for (uint32_t thread = 0; thread < CHOIR__CUDA_THREADS; ++thread)
#define CHOIR__FAIL() choir::testing::FakeCuda::FailKernel()

#define CHOIR__FILE elementwise_kernels
#include "tensor/kernels/cuda/cuda_elementwise.cu"
#undef CHOIR__FILE
#define CHOIR__FILE optimizer_kernels
#include "tensor/kernels/cuda/cuda_optimizer.cu"
#undef CHOIR__FILE
#define CHOIR__FILE reduce_kernels
#include "tensor/kernels/cuda/cuda_reduce.cu"
#undef CHOIR__FILE
#define CHOIR__FILE rows_kernels
#include "tensor/kernels/cuda/cuda_rows.cu"
#undef CHOIR__FILE
#define CHOIR__FILE move_kernels
#include "tensor/kernels/cuda/cuda_move.cu"
#undef CHOIR__FILE
#define CHOIR__FILE random_kernels
#include "tensor/kernels/cuda/cuda_random.cu"
#undef CHOIR__FILE
#define CHOIR__FILE pool2d_kernels
#include "tensor/kernels/cuda/cuda_pool2d.cu"
#undef CHOIR__FILE
#define CHOIR__FILE batch_norm_kernels
#include "tensor/kernels/cuda/cuda_batch_norm.cu"
#undef CHOIR__FILE

namespace choir {
namespace testing {

void CudaKernelsOnHost(bool is_on) {
#define X(name) \
  choir__cuda_##name##_module.image = is_on ? &name##_kernels : nullptr;
#include "tensor/kernels/cuda/modules.def"
#undef X
}

}  // namespace testing
}  // namespace choir
