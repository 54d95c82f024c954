// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "core/cuda_driver_internal.h"

// Choir declares the driver's functions itself; where the CUDA toolkit is, its
// header says whether that is right. The test is that this compiles.

#if defined(CHOIR_CUDA_TOOLKIT)

#define X(symbol, parameters)                                          \
  static_assert(std::is_same<decltype(&::symbol),                      \
                             choir__cu_result_t(*) parameters>::value, \
                "core/cuda_driver_internal.h declares it differently");
CHOIR__CUDA_SYMBOLS(X)
#undef X

template <typename Ours, typename Theirs>
constexpr bool Same() {
  return std::is_same<Ours, Theirs>::value;
}
static_assert(Same<choir__cu_gpu_t, CUdevice>(), "");
static_assert(Same<choir__cu_address_t, CUdeviceptr>(), "");
static_assert(Same<choir__cu_context_t, CUcontext>(), "");
static_assert(Same<choir__cu_stream_t, CUstream>(), "");
static_assert(Same<choir__cu_event_t, CUevent>(), "");
static_assert(Same<choir__cu_module_t, CUmodule>(), "");
static_assert(Same<choir__cu_function_t, CUfunction>(), "");
static_assert(Same<choir__cu_graph_t, CUgraph>(), "");
static_assert(Same<choir__cu_node_t, CUgraphNode>(), "");
static_assert(Same<choir__cu_graph_exec_t, CUgraphExec>(), "");
// Without the toolkit both are int.
static_assert(sizeof(CUresult) == sizeof(int), "");
static_assert(sizeof(CUdevice_attribute) == sizeof(int), "");
static_assert(sizeof(CUstreamCaptureMode) == sizeof(int), "");
static_assert(sizeof(CUstreamCaptureStatus) == sizeof(int), "");
// A struct of ours has this layout there, its members in this order.
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS, gridDimX) == 8, "");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS, blockDimX) == 20, "");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes) == 32, "");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS, kernelParams) == 40, "");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS, extra) == 48, "");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS, kern) == 56, "");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS, ctx) == 64, "");

static_assert(int{CHOIR__CU_SUCCESS} == int{CUDA_SUCCESS}, "");
static_assert(int{CHOIR__CU_OUT_OF_MEMORY} == int{CUDA_ERROR_OUT_OF_MEMORY},
              "");
static_assert(int{CHOIR__CU_NOT_READY} == int{CUDA_ERROR_NOT_READY}, "");
static_assert(int{CHOIR__CU_ATTRIBUTE_MAJOR} ==
                  int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
              "");
static_assert(int{CHOIR__CU_ATTRIBUTE_MINOR} ==
                  int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
              "");
static_assert(int{CHOIR__CU_STREAM_NON_BLOCKING} == int{CU_STREAM_NON_BLOCKING},
              "");
static_assert(int{CHOIR__CU_EVENT_DISABLE_TIMING} ==
                  int{CU_EVENT_DISABLE_TIMING},
              "");
static_assert(int{CHOIR__CU_CAPTURE_THREAD_LOCAL} ==
                  int{CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
              "");

TEST(CudaTypesTest, AreTheToolkits) {}

#else

// What the toolkit's has, above.
static_assert(sizeof(choir__cu_kernel_params_t) == 72, "");
static_assert(offsetof(choir__cu_kernel_params_t, kernelParams) == 40, "");
static_assert(offsetof(choir__cu_kernel_params_t, ctx) == 64, "");

TEST(CudaTypesTest, AreTheToolkits) {
  GTEST_SKIP() << "this build is without the CUDA toolkit (--config=cuda)";
}

#endif
