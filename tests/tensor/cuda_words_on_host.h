// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_CUDA_WORDS_ON_HOST_H_
#define CHOIR_TESTS_TENSOR_CUDA_WORDS_ON_HOST_H_

#include "tensor/kernels/cuda/cuda_threads.h"
#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

inline bool AddHostKernel(HostKernels* kernels, HostKernel kernel) {
  kernels->push_back(kernel);
  return true;
}

}  // namespace testing
}  // namespace choir

// Of kernels of blocks: a processor that has fused multiply-add uses it, which
// takes a third of the time of calls of fmaf(). Not under a sanitizer, whose
// runtime is not there yet when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CHOIR__FUSED __attribute__((flatten, target_clones("fma", "default")))
#else
#define CHOIR__FUSED
#endif

// What the words of cuda_code.cuh stand for on the host, for files that include
// a .cu: a kernel is a function of one block, whose threads take turns, phase
// by phase. It puts itself into the list CHOIR__FILE, which the includer
// defines.
#define CHOIR__GPU static inline
#define CHOIR__GPU_METHOD inline
#define CHOIR__BLOCK_KERNEL(symbol, params_type)                              \
  CHOIR__FUSED static void symbol(const params_type& params, uint32_t block); \
  [[maybe_unused]] static const bool symbol##_is_listed =                     \
      choir::testing::AddHostKernel(                                          \
          &CHOIR__FILE, {#symbol, sizeof(params_type),                        \
                         [](const void* memory, uint32_t block, uint32_t) {   \
                           symbol(*static_cast<const params_type*>(memory),   \
                                  block);                                     \
                         }});                                                 \
  static void symbol(const params_type& params, [[maybe_unused]] uint32_t block)
#define CHOIR__KERNEL(symbol, params_type)                            \
  static void symbol(const params_type& params, uint32_t thread);     \
  [[maybe_unused]] static const bool symbol##_is_listed =             \
      choir::testing::AddHostKernel(                                  \
          &CHOIR__FILE,                                               \
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
#define CHOIR__UNROLLED
#define CHOIR__OWN(type, name) type name[CHOIR__CUDA_THREADS]
#define CHOIR__MINE(name, thread) name[thread]
#define CHOIR__FAIL() choir::testing::FakeCuda::FailKernel()
#define CHOIR__COUNT(place, n) \
  static_cast<void>(*(place) += static_cast<uint32_t>(n))

#endif  // CHOIR_TESTS_TENSOR_CUDA_WORDS_ON_HOST_H_
