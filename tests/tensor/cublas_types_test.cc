// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "tensor/kernels/cuda/cublas_lt.h"

// Choir declares cuBLASLt's functions itself; where the CUDA toolkit is, its
// header says whether that is right. The test is that this compiles.

#if defined(CHOIR_CUDA_TOOLKIT)

#define X(type, symbol, parameters)                                           \
  static_assert(std::is_same<decltype(&::symbol), type(*) parameters>::value, \
                "tensor/kernels/cuda/cublas_lt.h declares it differently");
CHOIR__CUBLAS_SYMBOLS(X)
#undef X

template <typename Ours, typename Theirs>
constexpr bool Same() {
  return std::is_same<Ours, Theirs>::value;
}
static_assert(Same<choir__cublas_handle_t, cublasLtHandle_t>(), "");
static_assert(Same<struct CUstream_st*, cudaStream_t>(), "");
// Without the toolkit these are int, ...
static_assert(sizeof(cublasStatus_t) == sizeof(int), "");
static_assert(sizeof(cublasComputeType_t) == sizeof(int), "");
static_assert(sizeof(cudaDataType_t) == sizeof(int), "");
static_assert(sizeof(cublasLtMatmulDescAttributes_t) == sizeof(int), "");
static_assert(sizeof(cublasLtMatrixLayoutAttribute_t) == sizeof(int), "");
static_assert(sizeof(cublasLtMatmulPreferenceAttributes_t) == sizeof(int), "");
// ... these pointers, and these structs of ours.
static_assert(std::is_pointer<cublasLtMatmulDesc_t>::value, "");
static_assert(std::is_pointer<cublasLtMatrixLayout_t>::value, "");
static_assert(std::is_pointer<cublasLtMatmulPreference_t>::value, "");
using Algo = struct choir__cublas_algo_s;
using Found = struct choir__cublas_found_s;
static_assert(sizeof(Algo) == sizeof(cublasLtMatmulAlgo_t), "");
static_assert(alignof(Algo) == alignof(cublasLtMatmulAlgo_t), "");
static_assert(sizeof(Found) == sizeof(cublasLtMatmulHeuristicResult_t), "");
#define FIELD(field)                                                  \
  static_assert(offsetof(Found, field) ==                             \
                    offsetof(cublasLtMatmulHeuristicResult_t, field), \
                "");
FIELD(algo)
FIELD(workspaceSize)
FIELD(state)
FIELD(wavesCount)
FIELD(reserved)
#undef FIELD

#define VALUE(ours, theirs) \
  static_assert(int{CHOIR__##ours} == int{theirs}, #theirs);
VALUE(CUBLAS_SUCCESS, CUBLAS_STATUS_SUCCESS)
VALUE(CUBLAS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED)
VALUE(CUBLAS_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED)
VALUE(CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F)
VALUE(CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_64F)
VALUE(CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_TF32)
VALUE(CUBLAS_R_32F, CUDA_R_32F)
VALUE(CUBLAS_R_64F, CUDA_R_64F)
VALUE(CUBLAS_R_16F, CUDA_R_16F)
VALUE(CUBLAS_R_16BF, CUDA_R_16BF)
VALUE(CUBLAS_OP_N, CUBLAS_OP_N)
VALUE(CUBLAS_OP_T, CUBLAS_OP_T)
VALUE(CUBLAS_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA)
VALUE(CUBLAS_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB)
VALUE(CUBLAS_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE)
VALUE(CUBLAS_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER)
VALUE(CUBLAS_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS)
VALUE(CUBLAS_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
VALUE(CUBLAS_LAYOUT_BATCH_OFFSET, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
VALUE(CUBLAS_WISH_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
VALUE(CUBLAS_WISH_REDUCTION_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
VALUE(CUBLAS_WISH_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
VALUE(CUBLAS_WISH_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)
VALUE(CUBLAS_WISH_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
VALUE(CUBLAS_WISH_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
VALUE(CUBLAS_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
#undef VALUE

TEST(CublasTypesTest, AreTheToolkits) {}

// Where the toolkit is, the library mostly is too.
TEST(CublasTypesTest, TheLibraryHasEveryFunction) {
  if (!dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL) &&
      !dlopen("/usr/local/cuda/lib64/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL))
    GTEST_SKIP() << "this machine has no libcublasLt.so.13";
  EXPECT_TRUE(choir__cublas_is_there());
}

#else

TEST(CublasTypesTest, AreTheToolkits) {
  GTEST_SKIP() << "this build is without the CUDA toolkit (--config=cuda)";
}

#endif
