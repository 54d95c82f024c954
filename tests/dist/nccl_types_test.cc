// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "dist/backends/nccl/nccl_library_internal.h"

// Choir declares NCCL's functions itself; where the CUDA toolkit is, NCCL's
// header says whether that is right. The test is that this compiles.

#if defined(CHOIR_CUDA_TOOLKIT)

#define X(result, symbol, parameters)                                 \
  static_assert(                                                      \
      std::is_same<decltype(&::symbol), result(*) parameters>::value, \
      "nccl_library_internal.h declares it differently");
CHOIR__NCCL_SYMBOLS(X)
#undef X

static_assert(std::is_same<choir__nccl_comm_t, ncclComm_t>::value, "");
static_assert(std::is_same<choir__nccl_stream_t, cudaStream_t>::value, "");
// Without the toolkit these are int.
static_assert(sizeof(ncclResult_t) == sizeof(int), "");
static_assert(sizeof(ncclDataType_t) == sizeof(int), "");
static_assert(sizeof(ncclRedOp_t) == sizeof(int), "");
static_assert(sizeof(ncclScalarResidence_t) == sizeof(int), "");
static_assert(sizeof(ncclUniqueId) == 128, "");

static_assert(int{CHOIR__NCCL_SUCCESS} == int{ncclSuccess}, "");
static_assert(int{CHOIR__NCCL_IN_PROGRESS} == int{ncclInProgress}, "");
static_assert(int{CHOIR__NCCL_UINT8} == int{ncclUint8}, "");
static_assert(int{CHOIR__NCCL_INT32} == int{ncclInt32}, "");
static_assert(int{CHOIR__NCCL_INT64} == int{ncclInt64}, "");
static_assert(int{CHOIR__NCCL_FLOAT16} == int{ncclFloat16}, "");
static_assert(int{CHOIR__NCCL_FLOAT32} == int{ncclFloat32}, "");
static_assert(int{CHOIR__NCCL_FLOAT64} == int{ncclFloat64}, "");
static_assert(int{CHOIR__NCCL_BFLOAT16} == int{ncclBfloat16}, "");
static_assert(int{CHOIR__NCCL_SUM} == int{ncclSum}, "");
static_assert(int{CHOIR__NCCL_PRODUCT} == int{ncclProd}, "");
static_assert(int{CHOIR__NCCL_MAX} == int{ncclMax}, "");
static_assert(int{CHOIR__NCCL_MIN} == int{ncclMin}, "");
static_assert(int{CHOIR__NCCL_HOST_IMMEDIATE} == int{ncclScalarHostImmediate},
              "");
static_assert(int{CHOIR__NCCL_CONFIG_VERSION} == NCCL_VERSION(2, 14, 0), "");

// Ours is the beginning of theirs.
struct OurConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};
static_assert(offsetof(OurConfig, size) == offsetof(ncclConfig_t, size), "");
static_assert(offsetof(OurConfig, magic) == offsetof(ncclConfig_t, magic), "");
static_assert(offsetof(OurConfig, version) == offsetof(ncclConfig_t, version),
              "");
static_assert(offsetof(OurConfig, blocking) == offsetof(ncclConfig_t, blocking),
              "");

TEST(NcclTypesTest, AreTheToolkits) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(theirs.magic, CHOIR__NCCL_CONFIG_MAGIC);
}

#else

TEST(NcclTypesTest, AreTheToolkits) {
  GTEST_SKIP() << "this build is without the CUDA toolkit (--config=cuda)";
}

#endif
