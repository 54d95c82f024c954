// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_CUDA_DRIVER_INTERNAL_H_
#define CHOIR_CORE_CUDA_DRIVER_INTERNAL_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// The NVIDIA driver's interface (libcuda.so.1), as far as Choir calls it: a
// table of its functions, opened when first asked for. The types are declared
// here, so that a build without the toolkit has the device too;
// tests/core:cuda_types_test holds them against the toolkit's own header.
//
// Threads: all functions here may be called from any thread, but
// choir__cuda_driver_replace only while no device uses the table.

#if defined(CHOIR_CUDA_TOOLKIT)
// In that test alone: the toolkit's types take the place of ours.
#include <cuda.h>
typedef CUresult choir__cu_result_t;
typedef CUdevice_attribute choir__cu_attribute_t;
typedef CUstreamCaptureMode choir__cu_capture_mode_t;
typedef CUstreamCaptureStatus choir__cu_capture_status_t;
typedef CUDA_KERNEL_NODE_PARAMS choir__cu_kernel_params_t;
#else
typedef int choir__cu_result_t;
typedef int choir__cu_attribute_t;
typedef int choir__cu_capture_mode_t;
typedef int choir__cu_capture_status_t;
// A kernel's launch in a graph.
typedef struct choir__cu_kernel_params_s {
  struct CUfunc_st* func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
  struct CUkern_st* kern;
  struct CUctx_st* ctx;
} choir__cu_kernel_params_t;
#endif
typedef int choir__cu_gpu_t;
typedef unsigned long long choir__cu_address_t;
typedef struct CUctx_st* choir__cu_context_t;
typedef struct CUstream_st* choir__cu_stream_t;
typedef struct CUevent_st* choir__cu_event_t;
typedef struct CUmod_st* choir__cu_module_t;
typedef struct CUfunc_st* choir__cu_function_t;
typedef struct CUgraph_st* choir__cu_graph_t;
typedef struct CUgraphNode_st* choir__cu_node_t;
typedef struct CUgraphExec_st* choir__cu_graph_exec_t;
struct CUgraphEdgeData_st;

enum {
  CHOIR__CU_SUCCESS = 0,
  CHOIR__CU_OUT_OF_MEMORY = 2,
  CHOIR__CU_NOT_READY = 600,
  CHOIR__CU_ATTRIBUTE_MAJOR = 75,  // of the compute capability
  CHOIR__CU_ATTRIBUTE_MINOR = 76,
  CHOIR__CU_STREAM_NON_BLOCKING = 1,
  CHOIR__CU_EVENT_DISABLE_TIMING = 2,
  // What one thread captures is in nobody else's way.
  CHOIR__CU_CAPTURE_THREAD_LOCAL = 1,
};

// X(symbol, parameters); all return a result.
#define CHOIR__CUDA_SYMBOLS(X)                                               \
  X(cuInit, (unsigned flags))                                                \
  X(cuDriverGetVersion, (int* version))                                      \
  X(cuGetErrorName, (choir__cu_result_t result, const char** name))          \
  X(cuGetErrorString, (choir__cu_result_t result, const char** text))        \
  X(cuDeviceGetCount, (int* count))                                          \
  X(cuDeviceGet, (choir__cu_gpu_t * gpu, int ordinal))                       \
  X(cuDeviceGetName, (char* name, int length, choir__cu_gpu_t gpu))          \
  X(cuDeviceGetAttribute,                                                    \
    (int* value, choir__cu_attribute_t attribute, choir__cu_gpu_t gpu))      \
  X(cuDeviceTotalMem_v2, (size_t * bytes, choir__cu_gpu_t gpu))              \
  X(cuDevicePrimaryCtxRetain,                                                \
    (choir__cu_context_t * context, choir__cu_gpu_t gpu))                    \
  X(cuDevicePrimaryCtxRelease_v2, (choir__cu_gpu_t gpu))                     \
  X(cuCtxPushCurrent_v2, (choir__cu_context_t context))                      \
  X(cuCtxPopCurrent_v2, (choir__cu_context_t * context))                     \
  X(cuCtxSynchronize, (void))                                                \
  X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                \
  X(cuMemGetInfo_v2, (size_t * free, size_t * total))                        \
  X(cuMemAlloc_v2, (choir__cu_address_t * address, size_t bytes))            \
  X(cuMemFree_v2, (choir__cu_address_t address))                             \
  X(cuMemAllocHost_v2, (void** memory, size_t bytes))                        \
  X(cuMemFreeHost, (void* memory))                                           \
  X(cuMemcpyHtoDAsync_v2, (choir__cu_address_t dst, const void* src,         \
                           size_t bytes, choir__cu_stream_t stream))         \
  X(cuMemcpyDtoHAsync_v2, (void* dst, choir__cu_address_t src, size_t bytes, \
                           choir__cu_stream_t stream))                       \
  X(cuStreamCreateWithPriority,                                              \
    (choir__cu_stream_t * stream, unsigned flags, int priority))             \
  X(cuStreamDestroy_v2, (choir__cu_stream_t stream))                         \
  X(cuStreamSynchronize, (choir__cu_stream_t stream))                        \
  X(cuStreamWaitEvent,                                                       \
    (choir__cu_stream_t stream, choir__cu_event_t event, unsigned flags))    \
  X(cuEventCreate, (choir__cu_event_t * event, unsigned flags))              \
  X(cuEventDestroy_v2, (choir__cu_event_t event))                            \
  X(cuEventRecord, (choir__cu_event_t event, choir__cu_stream_t stream))     \
  X(cuEventQuery, (choir__cu_event_t event))                                 \
  X(cuEventSynchronize, (choir__cu_event_t event))                           \
  X(cuModuleLoadData, (choir__cu_module_t * module, const void* image))      \
  X(cuModuleUnload, (choir__cu_module_t module))                             \
  X(cuModuleGetFunction, (choir__cu_function_t * function,                   \
                          choir__cu_module_t module, const char* name))      \
  X(cuLaunchKernel,                                                          \
    (choir__cu_function_t function, unsigned blocks_x, unsigned blocks_y,    \
     unsigned blocks_z, unsigned threads_x, unsigned threads_y,              \
     unsigned threads_z, unsigned shared_bytes, choir__cu_stream_t stream,   \
     void** params, void** extra))                                           \
  X(cuStreamBeginCapture_v2,                                                 \
    (choir__cu_stream_t stream, choir__cu_capture_mode_t mode))              \
  X(cuStreamEndCapture,                                                      \
    (choir__cu_stream_t stream, choir__cu_graph_t * graph))                  \
  X(cuStreamGetCaptureInfo_v3,                                               \
    (choir__cu_stream_t stream, choir__cu_capture_status_t * status,         \
     uint64_t * id, choir__cu_graph_t * graph,                               \
     const choir__cu_node_t** latest, const struct CUgraphEdgeData_st** how, \
     size_t* count))                                                         \
  X(cuGraphInstantiateWithFlags,                                             \
    (choir__cu_graph_exec_t * exec, choir__cu_graph_t graph,                 \
     unsigned long long flags))                                              \
  X(cuGraphExecKernelNodeSetParams_v2,                                       \
    (choir__cu_graph_exec_t exec, choir__cu_node_t node,                     \
     const choir__cu_kernel_params_t* params))                               \
  X(cuGraphLaunch, (choir__cu_graph_exec_t exec, choir__cu_stream_t stream)) \
  X(cuGraphExecDestroy, (choir__cu_graph_exec_t exec))                       \
  X(cuGraphDestroy, (choir__cu_graph_t graph))

typedef struct choir__cuda_driver_s {
#define CHOIR__CUDA_MEMBER_(symbol, parameters) \
  choir__cu_result_t(*symbol) parameters;
  CHOIR__CUDA_SYMBOLS(CHOIR__CUDA_MEMBER_)
#undef CHOIR__CUDA_MEMBER_
} choir__cuda_driver_t;

// The driver's functions, lent for good; opened by the first call. UNAVAILABLE
// with the reason where there is no driver, or one that lacks a function.
choir_status_t choir__cuda_driver(const choir__cuda_driver_t** out_driver)
    CHOIR_NODISCARD;

// For tests: `driver` takes the place of the machine's, until NULL is given.
void choir__cuda_driver_replace(const choir__cuda_driver_t* driver);

// NULL for success. Else "<who>: <symbol>: <CUDA's name>, <CUDA's text>":
// OUT_OF_MEMORY when CUDA says so, else INTERNAL. `who` is "cuda:0"; a version
// at the end of `symbol` is left out.
choir_status_t choir__cuda_status(const choir__cuda_driver_t* driver,
                                  choir__cu_result_t result, const char* who,
                                  const char* symbol) CHOIR_NODISCARD;

// The status of one call.
#define CHOIR__CUDA_CALL(driver, who, symbol, ...) \
  choir__cuda_status((driver), (driver)->symbol(__VA_ARGS__), (who), #symbol)

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_CUDA_DRIVER_INTERNAL_H_
