// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDNN_GRAPH_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDNN_GRAPH_H_

#include <pthread.h>

#include "core/cuda_backend.h"
#include "tensor/kernels/cuda/cuda_plans.h"

#if defined(CHOIR_CUDA_TOOLKIT)
#include <cudnn_graph.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

// cuDNN (libcudnn.so.9), as far as Choir calls it: the graph interface, in
// which operations on tensors are described and the library says which of its
// engines can do them. The table of functions is opened when a GPU first needs
// it. The types are declared here, so that a build without the toolkit has the
// kernels too; tests/tensor:cudnn_types_test holds them against the library's
// own header.
//
// Threads: all functions here may be called from any thread, but
// choir__cudnn_replace only while no device uses the table.

#if defined(CHOIR_CUDA_TOOLKIT)
// In that test alone: the library's types take the place of ours.
typedef cudnnStatus_t choir__cudnn_result_t;
typedef cudnnBackendDescriptorType_t choir__cudnn_kind_t;
typedef cudnnBackendAttributeName_t choir__cudnn_attr_t;
typedef cudnnBackendAttributeType_t choir__cudnn_type_t;
#else
typedef int choir__cudnn_result_t;
typedef int choir__cudnn_kind_t;
typedef int choir__cudnn_attr_t;
typedef int choir__cudnn_type_t;
#endif
typedef struct cudnnContext* choir__cudnn_handle_t;
typedef void* choir__cudnn_desc_t;

enum {
  CHOIR__CUDNN_SUCCESS = 0,
  CHOIR__CUDNN_NOT_SUPPORTED = 3000,  // to 3999
  CHOIR__CUDNN_HOST_ALLOCATION_FAILED = 4003,
  CHOIR__CUDNN_DEVICE_ALLOCATION_FAILED = 4004,
  // Types of elements.
  CHOIR__CUDNN_FLOAT = 0,
  CHOIR__CUDNN_DOUBLE = 1,
  CHOIR__CUDNN_HALF = 2,
  CHOIR__CUDNN_BFLOAT16 = 9,
  // Types of attributes.
  CHOIR__CUDNN_TYPE_HANDLE = 0,
  CHOIR__CUDNN_TYPE_DATA_TYPE = 1,
  CHOIR__CUDNN_TYPE_BOOLEAN = 2,
  CHOIR__CUDNN_TYPE_INT64 = 3,
  CHOIR__CUDNN_TYPE_FLOAT = 4,
  CHOIR__CUDNN_TYPE_DOUBLE = 5,
  CHOIR__CUDNN_TYPE_VOID_PTR = 6,
  CHOIR__CUDNN_TYPE_CONVOLUTION_MODE = 7,
  CHOIR__CUDNN_TYPE_HEUR_MODE = 8,
  CHOIR__CUDNN_TYPE_NUMERICAL_NOTE = 11,
  CHOIR__CUDNN_TYPE_POINTWISE_MODE = 14,
  CHOIR__CUDNN_TYPE_DESCRIPTOR = 15,
  // Kinds of descriptors, each with its attributes.
  CHOIR__CUDNN_POINTWISE = 0,
  CHOIR__CUDNN_POINTWISE_MODE = 0,
  CHOIR__CUDNN_POINTWISE_MATH_PREC = 1,
  CHOIR__CUDNN_CONVOLUTION = 1,
  CHOIR__CUDNN_CONVOLUTION_COMP_TYPE = 100,
  CHOIR__CUDNN_CONVOLUTION_CONV_MODE = 101,
  CHOIR__CUDNN_CONVOLUTION_DILATIONS = 102,
  CHOIR__CUDNN_CONVOLUTION_FILTER_STRIDES = 103,
  CHOIR__CUDNN_CONVOLUTION_POST_PADDINGS = 104,
  CHOIR__CUDNN_CONVOLUTION_PRE_PADDINGS = 105,
  CHOIR__CUDNN_CONVOLUTION_SPATIAL_DIMS = 106,
  CHOIR__CUDNN_ENGINE = 2,
  CHOIR__CUDNN_ENGINE_GLOBAL_INDEX = 1301,
  CHOIR__CUDNN_ENGINE_NUMERICAL_NOTE = 1303,
  CHOIR__CUDNN_ENGINECFG = 3,
  CHOIR__CUDNN_ENGINECFG_ENGINE = 300,
  CHOIR__CUDNN_ENGINEHEUR = 4,
  CHOIR__CUDNN_ENGINEHEUR_MODE = 200,
  CHOIR__CUDNN_ENGINEHEUR_OPERATION_GRAPH = 201,
  CHOIR__CUDNN_ENGINEHEUR_RESULTS = 202,
  CHOIR__CUDNN_EXECUTION_PLAN = 5,
  CHOIR__CUDNN_EXECUTION_PLAN_HANDLE = 400,
  CHOIR__CUDNN_EXECUTION_PLAN_ENGINE_CONFIG = 401,
  CHOIR__CUDNN_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
  CHOIR__CUDNN_CONVOLUTION_FORWARD = 10,
  CHOIR__CUDNN_FORWARD_ALPHA = 700,
  CHOIR__CUDNN_FORWARD_BETA = 701,
  CHOIR__CUDNN_FORWARD_CONV_DESC = 702,
  CHOIR__CUDNN_FORWARD_W = 703,
  CHOIR__CUDNN_FORWARD_X = 704,
  CHOIR__CUDNN_FORWARD_Y = 705,
  CHOIR__CUDNN_CONVOLUTION_BWD_FILTER = 11,
  CHOIR__CUDNN_BWD_FILTER_ALPHA = 712,
  CHOIR__CUDNN_BWD_FILTER_BETA = 713,
  CHOIR__CUDNN_BWD_FILTER_CONV_DESC = 714,
  CHOIR__CUDNN_BWD_FILTER_DW = 715,
  CHOIR__CUDNN_BWD_FILTER_X = 716,
  CHOIR__CUDNN_BWD_FILTER_DY = 717,
  CHOIR__CUDNN_CONVOLUTION_BWD_DATA = 12,
  CHOIR__CUDNN_BWD_DATA_ALPHA = 706,
  CHOIR__CUDNN_BWD_DATA_BETA = 707,
  CHOIR__CUDNN_BWD_DATA_CONV_DESC = 708,
  CHOIR__CUDNN_BWD_DATA_W = 709,
  CHOIR__CUDNN_BWD_DATA_DX = 710,
  CHOIR__CUDNN_BWD_DATA_DY = 711,
  CHOIR__CUDNN_OPERATION_POINTWISE = 13,
  CHOIR__CUDNN_OPERATION_POINTWISE_DESC = 750,
  CHOIR__CUDNN_OPERATION_POINTWISE_X = 751,
  CHOIR__CUDNN_OPERATION_POINTWISE_B = 752,
  CHOIR__CUDNN_OPERATION_POINTWISE_Y = 753,
  CHOIR__CUDNN_OPERATIONGRAPH = 15,
  CHOIR__CUDNN_OPERATIONGRAPH_HANDLE = 800,
  CHOIR__CUDNN_OPERATIONGRAPH_OPS = 801,
  CHOIR__CUDNN_VARIANT_PACK = 16,
  CHOIR__CUDNN_VARIANT_PACK_UNIQUE_IDS = 1000,
  CHOIR__CUDNN_VARIANT_PACK_DATA_POINTERS = 1001,
  CHOIR__CUDNN_VARIANT_PACK_WORKSPACE = 1003,
  CHOIR__CUDNN_TENSOR = 17,
  CHOIR__CUDNN_TENSOR_BYTE_ALIGNMENT = 900,
  CHOIR__CUDNN_TENSOR_DATA_TYPE = 901,
  CHOIR__CUDNN_TENSOR_DIMENSIONS = 902,
  CHOIR__CUDNN_TENSOR_STRIDES = 903,
  CHOIR__CUDNN_TENSOR_UNIQUE_ID = 906,
  CHOIR__CUDNN_TENSOR_IS_VIRTUAL = 907,
  // Values of some of them.
  CHOIR__CUDNN_CROSS_CORRELATION = 1,
  CHOIR__CUDNN_POINTWISE_ADD = 0,
  CHOIR__CUDNN_HEUR_MODE_B = 1,
  CHOIR__CUDNN_HEUR_MODE_FALLBACK = 2,
  CHOIR__CUDNN_HEUR_MODE_A = 3,
  CHOIR__CUDNN_NOTE_TENSOR_CORE = 0,
  CHOIR__CUDNN_NOTE_DOWN_CONVERT_INPUTS = 1,
  CHOIR__CUDNN_NOTE_REDUCED_PRECISION_REDUCTION = 2,
  CHOIR__CUDNN_NOTE_FFT = 3,
  CHOIR__CUDNN_NOTE_NONDETERMINISTIC = 4,
  CHOIR__CUDNN_NOTE_WINOGRAD = 5,
  CHOIR__CUDNN_NOTE_WINOGRAD_TILE_4X4 = 6,
};

// X(type of the result, symbol, parameters)
#define CHOIR__CUDNN_SYMBOLS(X)                                                \
  X(const char*, cudnnGetErrorString, (choir__cudnn_result_t result))          \
  X(void, cudnnGetLastErrorString, (char* text, size_t bytes))                 \
  X(choir__cudnn_result_t, cudnnCreate, (choir__cudnn_handle_t * handle))      \
  X(choir__cudnn_result_t, cudnnDestroy, (choir__cudnn_handle_t handle))       \
  X(choir__cudnn_result_t, cudnnSetStream,                                     \
    (choir__cudnn_handle_t handle, struct CUstream_st * stream))               \
  X(choir__cudnn_result_t, cudnnBackendCreateDescriptor,                       \
    (choir__cudnn_kind_t kind, choir__cudnn_desc_t * desc))                    \
  X(choir__cudnn_result_t, cudnnBackendDestroyDescriptor,                      \
    (choir__cudnn_desc_t desc))                                                \
  X(choir__cudnn_result_t, cudnnBackendFinalize, (choir__cudnn_desc_t desc))   \
  X(choir__cudnn_result_t, cudnnBackendSetAttribute,                           \
    (choir__cudnn_desc_t desc, choir__cudnn_attr_t attr,                       \
     choir__cudnn_type_t type, int64_t count, const void* values))             \
  X(choir__cudnn_result_t, cudnnBackendGetAttribute,                           \
    (choir__cudnn_desc_t desc, choir__cudnn_attr_t attr,                       \
     choir__cudnn_type_t type, int64_t wanted, int64_t * count, void* values)) \
  X(choir__cudnn_result_t, cudnnBackendExecute,                                \
    (choir__cudnn_handle_t handle, choir__cudnn_desc_t plan,                   \
     choir__cudnn_desc_t pack))

typedef struct choir__cudnn_table_s {
#define CHOIR__CUDNN_MEMBER_(type, symbol, parameters) type(*symbol) parameters;
  CHOIR__CUDNN_SYMBOLS(CHOIR__CUDNN_MEMBER_)
#undef CHOIR__CUDNN_MEMBER_
} choir__cudnn_table_t;

// Whether there is the library; opened by the first call, which logs why not.
bool choir__cudnn_is_there(void);

// For tests: `table` takes the place of the machine's, until NULL is given.
void choir__cudnn_replace(const choir__cudnn_table_t* table);

// ---- The library on one device ----

typedef struct choir__cudnn_s {
  const char* who;  // "cuda:0", for messages
  choir_allocator_t objects;
  const choir__cudnn_table_t* table;
  choir__cudnn_handle_t handle;
  bool tf32;             // CHOIR_TF32=1 in the environment when it was made
  pthread_mutex_t lock;  // for the handle's stream and the plans
  choir__cuda_plans_t plans;  // of cudnn_conv2d.c
} choir__cudnn_t;

// That of the device, lent; made by the first call. Inside a record's run.
choir_status_t choir__cudnn_of(choir_device_t* device,
                               choir__cudnn_t** out_cudnn) CHOIR_NODISCARD;

// NULL for success. Else "<who>: <symbol>: <text> (<number>), <what the library
// says besides>": OUT_OF_MEMORY or UNIMPLEMENTED when the library says so, else
// INTERNAL.
choir_status_t choir__cudnn_status(const choir__cudnn_t* cudnn,
                                   choir__cudnn_result_t result,
                                   const char* symbol) CHOIR_NODISCARD;

// The status of one call.
#define CHOIR__CUDNN_CALL(cudnn, symbol, ...) \
  choir__cudnn_status((cudnn), (cudnn)->table->symbol(__VA_ARGS__), #symbol)

// cudnn_conv2d.c: takes a plan apart.
void choir__cudnn_plan_destroy(const choir__cudnn_t* cudnn,
                               choir__cuda_plan_t* plan);

// ---- Graphs ----
//
// Describe tensors and operations, then let the library choose; run as often as
// you like. All but run, which is under `lock` too, return UNIMPLEMENTED where
// the library cannot do it.
//
//   choir__cudnn_graph_t graph = {0};
//   status = choir__cudnn_tensor(cudnn, &graph, &x, 1, 16, false, &x_desc);
//   ...
//   if (!status) status = choir__cudnn_choose(cudnn, &graph, dtype);
//   if (!status) status = choir__cudnn_run(cudnn, &graph, ids, ...);
//   choir__cudnn_graph_close(cudnn, &graph);

// Most descriptors that a graph keeps.
enum { CHOIR__CUDNN_GRAPH_DESCS = 24, CHOIR__CUDNN_GRAPH_OPS = 2 };

typedef struct choir__cudnn_graph_s {
  choir__cudnn_desc_t descs[CHOIR__CUDNN_GRAPH_DESCS];
  int32_t desc_count;
  choir__cudnn_desc_t ops[CHOIR__CUDNN_GRAPH_OPS];
  int32_t op_count;
  choir__cudnn_kind_t conv_kind;  // of its convolution; 0: it has none
  choir__cudnn_desc_t plan;       // one of `descs`; NULL: not chosen yet
  size_t workspace_bytes;
} choir__cudnn_graph_t;

// A tensor of the view's four dimensions and dtype, dense with channels last;
// its memory is given when the graph runs, by `id` (1, 2, ...), and aligned to
// so many bytes. Virtual: between two operations, without memory.
choir_status_t choir__cudnn_tensor(const choir__cudnn_t* cudnn,
                                   choir__cudnn_graph_t* graph,
                                   const choir_view_t* view, int64_t id,
                                   int64_t alignment, bool is_virtual,
                                   choir__cudnn_desc_t* out_desc)
    CHOIR_NODISCARD;
// A convolution or one of its gradients, by the kind of operation, as
// attributes say; adds to its result with beta = 1.
typedef struct choir__cudnn_conv_s {
  choir__cudnn_kind_t kind;
  choir__cudnn_desc_t x, w, y;  // or their gradients
  choir_dtype_t dtype;
  int64_t stride[2];
  int64_t before[2], after[2];  // padding
  int64_t dilation[2];
  bool accumulate;
} choir__cudnn_conv_t;
choir_status_t choir__cudnn_conv(const choir__cudnn_t* cudnn,
                                 choir__cudnn_graph_t* graph,
                                 const choir__cudnn_conv_t* conv)
    CHOIR_NODISCARD;
// y = x + b.
choir_status_t choir__cudnn_add(const choir__cudnn_t* cudnn,
                                choir__cudnn_graph_t* graph,
                                choir_dtype_t dtype, choir__cudnn_desc_t x,
                                choir__cudnn_desc_t b, choir__cudnn_desc_t y)
    CHOIR_NODISCARD;
// Takes the first engine that the heuristics name and that gives the same bits
// each time, in the precision of `dtype`, with no more workspace than Choir
// allows.
choir_status_t choir__cudnn_choose(const choir__cudnn_t* cudnn,
                                   choir__cudnn_graph_t* graph,
                                   choir_dtype_t dtype) CHOIR_NODISCARD;
// Launches it. `workspace` has graph->workspace_bytes.
choir_status_t choir__cudnn_run(const choir__cudnn_t* cudnn,
                                const choir__cudnn_graph_t* graph,
                                const int64_t* ids, void* const* data,
                                int32_t count, void* workspace,
                                choir_stream_t* stream) CHOIR_NODISCARD;
void choir__cudnn_graph_close(const choir__cudnn_t* cudnn,
                              choir__cudnn_graph_t* graph);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDNN_GRAPH_H_
