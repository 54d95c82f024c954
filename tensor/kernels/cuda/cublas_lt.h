// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUBLAS_LT_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUBLAS_LT_H_

#include <pthread.h>

#include "core/cuda_backend.h"
#include "tensor/kernels/cuda/cuda_plans.h"

#if defined(CHOIR_CUDA_TOOLKIT)
#include <cublasLt.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

// cuBLASLt (libcublasLt.so.13), as far as Choir calls it: a table of its
// functions, opened when a GPU is first to multiply. The types are declared
// here, so that a build without the toolkit has the kernels too;
// tests/tensor:cublas_types_test holds them against the toolkit's own header.
//
// Threads: all functions here may be called from any thread, but
// choir__cublas_replace only while no device uses the table.

#if defined(CHOIR_CUDA_TOOLKIT)
// In that test alone: the toolkit's types take the place of ours.
typedef cublasStatus_t choir__cublas_result_t;
typedef cublasComputeType_t choir__cublas_compute_t;
typedef cudaDataType_t choir__cublas_dtype_t;
typedef cublasLtMatmulDescAttributes_t choir__cublas_desc_attr_t;
typedef cublasLtMatrixLayoutAttribute_t choir__cublas_layout_attr_t;
typedef cublasLtMatmulPreferenceAttributes_t choir__cublas_wish_attr_t;
typedef cublasLtMatmulDesc_t choir__cublas_desc_t;
typedef cublasLtMatrixLayout_t choir__cublas_layout_t;
typedef cublasLtMatmulPreference_t choir__cublas_wish_t;
typedef cublasLtMatmulAlgo_t choir__cublas_algo_t;
typedef cublasLtMatmulHeuristicResult_t choir__cublas_found_t;
#else
typedef int choir__cublas_result_t;
typedef int choir__cublas_compute_t;
typedef int choir__cublas_dtype_t;
typedef int choir__cublas_desc_attr_t;
typedef int choir__cublas_layout_attr_t;
typedef int choir__cublas_wish_attr_t;
typedef struct choir__cublas_desc_s* choir__cublas_desc_t;
typedef struct choir__cublas_layout_s* choir__cublas_layout_t;
typedef struct choir__cublas_wish_s* choir__cublas_wish_t;
typedef struct choir__cublas_algo_s choir__cublas_algo_t;
typedef struct choir__cublas_found_s choir__cublas_found_t;
#endif
typedef struct cublasLtContext* choir__cublas_handle_t;

struct choir__cublas_algo_s {
  uint64_t data[8];
};
// What the heuristics found: an algorithm and what it needs.
struct choir__cublas_found_s {
  struct choir__cublas_algo_s algo;
  size_t workspaceSize;
  choir__cublas_result_t state;
  float wavesCount;
  int reserved[4];
};

enum {
  CHOIR__CUBLAS_SUCCESS = 0,
  CHOIR__CUBLAS_ALLOC_FAILED = 3,
  CHOIR__CUBLAS_NOT_SUPPORTED = 15,
  CHOIR__CUBLAS_COMPUTE_32F = 68,
  CHOIR__CUBLAS_COMPUTE_64F = 70,
  CHOIR__CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
  CHOIR__CUBLAS_R_32F = 0,
  CHOIR__CUBLAS_R_64F = 1,
  CHOIR__CUBLAS_R_16F = 2,
  CHOIR__CUBLAS_R_16BF = 14,
  CHOIR__CUBLAS_OP_N = 0,
  CHOIR__CUBLAS_OP_T = 1,
  // Attributes of a product (int32_t, the epilogue uint32_t, the bias a
  // pointer), ...
  CHOIR__CUBLAS_DESC_TRANSA = 3,
  CHOIR__CUBLAS_DESC_TRANSB = 4,
  CHOIR__CUBLAS_DESC_EPILOGUE = 7,
  CHOIR__CUBLAS_DESC_BIAS_POINTER = 8,
  CHOIR__CUBLAS_EPILOGUE_BIAS = 4,
  // ... of an operand (int32_t, int64_t), ...
  CHOIR__CUBLAS_LAYOUT_BATCH_COUNT = 5,
  CHOIR__CUBLAS_LAYOUT_BATCH_OFFSET = 6,
  // ... of what the heuristics may choose (uint64_t, the rest uint32_t).
  CHOIR__CUBLAS_WISH_WORKSPACE_BYTES = 1,
  CHOIR__CUBLAS_WISH_REDUCTION_MASK = 3,
  CHOIR__CUBLAS_WISH_ALIGNMENT_A = 5,
  CHOIR__CUBLAS_WISH_ALIGNMENT_B = 6,
  CHOIR__CUBLAS_WISH_ALIGNMENT_C = 7,
  CHOIR__CUBLAS_WISH_ALIGNMENT_D = 8,
  CHOIR__CUBLAS_REDUCTION_COMPUTE_TYPE = 2,
};

// X(type of the result, symbol, parameters)
#define CHOIR__CUBLAS_SYMBOLS(X)                                               \
  X(const char*, cublasLtGetStatusName, (choir__cublas_result_t result))       \
  X(const char*, cublasLtGetStatusString, (choir__cublas_result_t result))     \
  X(choir__cublas_result_t, cublasLtCreate, (choir__cublas_handle_t * handle)) \
  X(choir__cublas_result_t, cublasLtDestroy, (choir__cublas_handle_t handle))  \
  X(choir__cublas_result_t, cublasLtMatmulDescCreate,                          \
    (choir__cublas_desc_t * desc, choir__cublas_compute_t compute,             \
     choir__cublas_dtype_t scale))                                             \
  X(choir__cublas_result_t, cublasLtMatmulDescDestroy,                         \
    (choir__cublas_desc_t desc))                                               \
  X(choir__cublas_result_t, cublasLtMatmulDescSetAttribute,                    \
    (choir__cublas_desc_t desc, choir__cublas_desc_attr_t attr,                \
     const void* value, size_t bytes))                                         \
  X(choir__cublas_result_t, cublasLtMatrixLayoutCreate,                        \
    (choir__cublas_layout_t * layout, choir__cublas_dtype_t dtype,             \
     uint64_t rows, uint64_t columns, int64_t ld))                             \
  X(choir__cublas_result_t, cublasLtMatrixLayoutDestroy,                       \
    (choir__cublas_layout_t layout))                                           \
  X(choir__cublas_result_t, cublasLtMatrixLayoutSetAttribute,                  \
    (choir__cublas_layout_t layout, choir__cublas_layout_attr_t attr,          \
     const void* value, size_t bytes))                                         \
  X(choir__cublas_result_t, cublasLtMatmulPreferenceCreate,                    \
    (choir__cublas_wish_t * wish))                                             \
  X(choir__cublas_result_t, cublasLtMatmulPreferenceDestroy,                   \
    (choir__cublas_wish_t wish))                                               \
  X(choir__cublas_result_t, cublasLtMatmulPreferenceSetAttribute,              \
    (choir__cublas_wish_t wish, choir__cublas_wish_attr_t attr,                \
     const void* value, size_t bytes))                                         \
  X(choir__cublas_result_t, cublasLtMatmulAlgoGetHeuristic,                    \
    (choir__cublas_handle_t handle, choir__cublas_desc_t desc,                 \
     choir__cublas_layout_t a, choir__cublas_layout_t b,                       \
     choir__cublas_layout_t c, choir__cublas_layout_t d,                       \
     choir__cublas_wish_t wish, int wanted, choir__cublas_found_t* found,      \
     int* count))                                                              \
  X(choir__cublas_result_t, cublasLtMatmul,                                    \
    (choir__cublas_handle_t handle, choir__cublas_desc_t desc,                 \
     const void* alpha, const void* a, choir__cublas_layout_t a_layout,        \
     const void* b, choir__cublas_layout_t b_layout, const void* beta,         \
     const void* c, choir__cublas_layout_t c_layout, void* d,                  \
     choir__cublas_layout_t d_layout, const choir__cublas_algo_t* algo,        \
     void* workspace, size_t workspace_bytes, struct CUstream_st* stream))

typedef struct choir__cublas_table_s {
#define CHOIR__CUBLAS_MEMBER_(type, symbol, parameters) \
  type(*symbol) parameters;
  CHOIR__CUBLAS_SYMBOLS(CHOIR__CUBLAS_MEMBER_)
#undef CHOIR__CUBLAS_MEMBER_
} choir__cublas_table_t;

// Whether there is the library; opened by the first call, which logs why not.
bool choir__cublas_is_there(void);

// For tests: `table` takes the place of the machine's, until NULL is given.
void choir__cublas_replace(const choir__cublas_table_t* table);

// The library on one device.
typedef struct choir__cublas_s {
  const char* who;  // "cuda:0", for messages
  choir_allocator_t objects;
  const choir__cublas_table_t* table;
  choir__cublas_handle_t handle;
  bool tf32;             // CHOIR_TF32=1 in the environment when it was made
  pthread_mutex_t lock;  // for the rest, and calls with descriptors of plans
  choir__cuda_plans_t plans;  // of cublas_matmul.c
} choir__cublas_t;

// That of the device, lent; made by the first call. Inside a record's run.
choir_status_t choir__cublas_of(choir_device_t* device,
                                choir__cublas_t** out_cublas) CHOIR_NODISCARD;

// NULL for success. Else "<who>: <symbol>: <name>, <text>": OUT_OF_MEMORY when
// the library says so, else INTERNAL.
choir_status_t choir__cublas_status(const choir__cublas_t* cublas,
                                    choir__cublas_result_t result,
                                    const char* symbol) CHOIR_NODISCARD;

// The status of one call.
#define CHOIR__CUBLAS_CALL(cublas, symbol, ...) \
  choir__cublas_status((cublas), (cublas)->table->symbol(__VA_ARGS__), #symbol)

// cublas_matmul.c: takes a plan apart.
void choir__cublas_plan_destroy(const choir__cublas_t* cublas,
                                choir__cuda_plan_t* plan);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUBLAS_LT_H_
