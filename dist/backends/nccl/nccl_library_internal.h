// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_NCCL_NCCL_LIBRARY_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_NCCL_NCCL_LIBRARY_INTERNAL_H_

#include "core/status.h"

#if defined(CHOIR_CUDA_TOOLKIT)
#include <nccl.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

// NCCL's interface (libnccl.so.2), as far as Choir calls it: a table of its
// functions, opened when first asked for. The types are declared here, so that
// a build without NCCL has the communicator too; tests/dist:nccl_types_test
// holds them against NCCL's own header.
//
// Threads: all functions here may be called from any thread, but
// choir__nccl_replace only while no communicator uses the table.

#if defined(CHOIR_CUDA_TOOLKIT)
// In that test alone: NCCL's types take the place of ours.
typedef ncclResult_t choir__nccl_result_t;
typedef ncclDataType_t choir__nccl_type_t;
typedef ncclRedOp_t choir__nccl_op_t;
typedef ncclScalarResidence_t choir__nccl_residence_t;
typedef ncclUniqueId choir__nccl_id_t;
typedef ncclConfig_t choir__nccl_config_t;
#else
typedef int choir__nccl_result_t;
typedef int choir__nccl_type_t;
typedef int choir__nccl_op_t;
typedef int choir__nccl_residence_t;
typedef struct choir__nccl_id_s {
  char internal[128];
} choir__nccl_id_t;
// As of NCCL 2.14, which later ones take: `size` and `version` tell them what
// they have before them.
typedef struct choir__nccl_config_s {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
} choir__nccl_config_t;
#endif
typedef struct ncclComm* choir__nccl_comm_t;
typedef struct CUstream_st* choir__nccl_stream_t;

enum {
  CHOIR__NCCL_SUCCESS = 0,
  CHOIR__NCCL_IN_PROGRESS = 7,
  CHOIR__NCCL_UINT8 = 1,
  CHOIR__NCCL_INT32 = 2,
  CHOIR__NCCL_INT64 = 4,
  CHOIR__NCCL_FLOAT16 = 6,
  CHOIR__NCCL_FLOAT32 = 7,
  CHOIR__NCCL_FLOAT64 = 8,
  CHOIR__NCCL_BFLOAT16 = 9,
  CHOIR__NCCL_SUM = 0,
  CHOIR__NCCL_PRODUCT = 1,
  CHOIR__NCCL_MAX = 2,
  CHOIR__NCCL_MIN = 3,
  CHOIR__NCCL_HOST_IMMEDIATE = 1,
  CHOIR__NCCL_CONFIG_VERSION = 21400,
};
#define CHOIR__NCCL_CONFIG_MAGIC 0xcafebeefu

// X(result, symbol, parameters)
#define CHOIR__NCCL_SYMBOLS(X)                                           \
  X(choir__nccl_result_t, ncclGetVersion, (int* version))                \
  X(choir__nccl_result_t, ncclGetUniqueId, (choir__nccl_id_t * id))      \
  X(choir__nccl_result_t, ncclCommInitRankConfig,                        \
    (choir__nccl_comm_t * comm, int size, choir__nccl_id_t id, int rank, \
     choir__nccl_config_t* config))                                      \
  X(choir__nccl_result_t, ncclCommFinalize, (choir__nccl_comm_t comm))   \
  X(choir__nccl_result_t, ncclCommDestroy, (choir__nccl_comm_t comm))    \
  X(choir__nccl_result_t, ncclCommAbort, (choir__nccl_comm_t comm))      \
  X(choir__nccl_result_t, ncclCommGetAsyncError,                         \
    (choir__nccl_comm_t comm, choir__nccl_result_t * state))             \
  X(const char*, ncclGetErrorString, (choir__nccl_result_t result))      \
  X(const char*, ncclGetLastError, (choir__nccl_comm_t comm))            \
  X(choir__nccl_result_t, ncclRedOpCreatePreMulSum,                      \
    (choir__nccl_op_t * op, void* scalar, choir__nccl_type_t type,       \
     choir__nccl_residence_t residence, choir__nccl_comm_t comm))        \
  X(choir__nccl_result_t, ncclRedOpDestroy,                              \
    (choir__nccl_op_t op, choir__nccl_comm_t comm))                      \
  X(choir__nccl_result_t, ncclGroupStart, (void))                        \
  X(choir__nccl_result_t, ncclGroupEnd, (void))                          \
  X(choir__nccl_result_t, ncclAllReduce,                                 \
    (const void* src, void* dst, size_t count, choir__nccl_type_t type,  \
     choir__nccl_op_t op, choir__nccl_comm_t comm,                       \
     choir__nccl_stream_t stream))                                       \
  X(choir__nccl_result_t, ncclBroadcast,                                 \
    (const void* src, void* dst, size_t count, choir__nccl_type_t type,  \
     int root, choir__nccl_comm_t comm, choir__nccl_stream_t stream))    \
  X(choir__nccl_result_t, ncclReduce,                                    \
    (const void* src, void* dst, size_t count, choir__nccl_type_t type,  \
     choir__nccl_op_t op, int root, choir__nccl_comm_t comm,             \
     choir__nccl_stream_t stream))                                       \
  X(choir__nccl_result_t, ncclAllGather,                                 \
    (const void* src, void* dst, size_t count, choir__nccl_type_t type,  \
     choir__nccl_comm_t comm, choir__nccl_stream_t stream))              \
  X(choir__nccl_result_t, ncclReduceScatter,                             \
    (const void* src, void* dst, size_t count, choir__nccl_type_t type,  \
     choir__nccl_op_t op, choir__nccl_comm_t comm,                       \
     choir__nccl_stream_t stream))                                       \
  X(choir__nccl_result_t, ncclSend,                                      \
    (const void* src, size_t count, choir__nccl_type_t type, int peer,   \
     choir__nccl_comm_t comm, choir__nccl_stream_t stream))              \
  X(choir__nccl_result_t, ncclRecv,                                      \
    (void* dst, size_t count, choir__nccl_type_t type, int peer,         \
     choir__nccl_comm_t comm, choir__nccl_stream_t stream))

typedef struct choir__nccl_library_s {
#define CHOIR__NCCL_MEMBER_(result, symbol, parameters) \
  result(*symbol) parameters;
  CHOIR__NCCL_SYMBOLS(CHOIR__NCCL_MEMBER_)
#undef CHOIR__NCCL_MEMBER_
} choir__nccl_library_t;

// NCCL's functions, lent for good; opened by the first call. UNAVAILABLE with
// the reason where there is no NCCL, or one that lacks a function.
choir_status_t choir__nccl_library(const choir__nccl_library_t** out_library)
    CHOIR_NODISCARD;

// For tests: `library` takes the place of the machine's, until NULL is given.
void choir__nccl_replace(const choir__nccl_library_t* table);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_BACKENDS_NCCL_NCCL_LIBRARY_INTERNAL_H_
