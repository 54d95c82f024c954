// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_ONNX_H_
#define CHOIR_ONNX_ONNX_H_

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

// Models of ONNX files, to be run and trained (docs/onnx.md).
//
//   choir_onnx_t* onnx;
//   CHOIR_TRY(choir_onnx_open("resnet18.onnx", &onnx));
//   choir_model_t* model;
//   CHOIR_TRY(choir_model_create(device, &choir_onnx_model_def, onnx, 0,
//                                &model));
//   CHOIR_TRY(choir_model_compile(model, choir_tensor_view(images), 1));
//   CHOIR_TRY(choir_model_predict(model, &images, 1, &scores));
//
// A file holds graphs of nodes, each an operator of a version of ONNX's list.
// Each forward goes through the nodes and calls ops of Choir on variables of
// the scope, so that what holds for other models holds for these: gradients,
// recorded graphs, precision, DistOpt. What follows from constants and shapes
// alone is computed on the host beside the step.
//
// Initialisers of floating-point numbers with more than one element are
// parameters, which training learns; the means and variances of batch
// normalisation are states, and so are values that an operator has to know
// (the scales of Resize). Parameters have their names in the file.
//
// A file is not trusted: sizes, offsets and depths are checked before they are
// used, and what is wrong with one is said in a sentence.
//
// Ownership: shared. Threads: one thread at a time.

typedef struct choir_onnx_s choir_onnx_t;

// Opens a file; tensors that it keeps in files beside it are read too.
// UNIMPLEMENTED: operators that Choir lacks; all are named, with node, domain
// and version. INVALID_ARGUMENT: it is no ONNX model, or a broken one.
CHOIR_API choir_status_t choir_onnx_open(const char* path,
                                         choir_onnx_t** out_onnx)
    CHOIR_NODISCARD;
// The same of a file's bytes, which are copied. folder: where files beside it
// lie; NULL: tensors in other files are refused.
CHOIR_API choir_status_t choir_onnx_parse(const void* bytes, size_t size,
                                          const char* folder,
                                          choir_onnx_t** out_onnx)
    CHOIR_NODISCARD;
CHOIR_API void choir_onnx_retain(choir_onnx_t* onnx);
CHOIR_API void choir_onnx_release(choir_onnx_t* onnx);

// What an element of a tensor is in ONNX's list (TensorProto.DataType), and the
// dtype in which Choir keeps it: integers of 8, 16 and fewer bits as I32 (U8
// and BOOL as themselves), unsigned ones of 32 and 64 bits as I64,
// floating-point numbers of 8 and 4 bits as F32. X(NAME, name, number, dtype)
#define CHOIR_ONNX_TYPE_LIST(X)              \
  X(FLOAT, float, 1, F32)                    \
  X(UINT8, uint8, 2, U8)                     \
  X(INT8, int8, 3, I32)                      \
  X(UINT16, uint16, 4, I32)                  \
  X(INT16, int16, 5, I32)                    \
  X(INT32, int32, 6, I32)                    \
  X(INT64, int64, 7, I64)                    \
  X(BOOL, bool, 9, BOOL)                     \
  X(FLOAT16, float16, 10, F16)               \
  X(DOUBLE, double, 11, F64)                 \
  X(UINT32, uint32, 12, I64)                 \
  X(UINT64, uint64, 13, I64)                 \
  X(BFLOAT16, bfloat16, 16, BF16)            \
  X(FLOAT8E4M3FN, float8e4m3fn, 17, F32)     \
  X(FLOAT8E4M3FNUZ, float8e4m3fnuz, 18, F32) \
  X(FLOAT8E5M2, float8e5m2, 19, F32)         \
  X(FLOAT8E5M2FNUZ, float8e5m2fnuz, 20, F32) \
  X(UINT4, uint4, 21, I32)                   \
  X(INT4, int4, 22, I32)                     \
  X(FLOAT4E2M1, float4e2m1, 23, F32)         \
  X(FLOAT8E8M0, float8e8m0, 24, F32)         \
  X(UINT2, uint2, 25, I32)                   \
  X(INT2, int2, 26, I32)
typedef enum choir_onnx_type_e {
  CHOIR_ONNX_UNDEFINED = 0,
  CHOIR_ONNX_STRING = 8,
#define CHOIR_ONNX_TYPE_ENUM_(NAME, name, number, dtype) \
  CHOIR_ONNX_##NAME = number,
  CHOIR_ONNX_TYPE_LIST(CHOIR_ONNX_TYPE_ENUM_)
#undef CHOIR_ONNX_TYPE_ENUM_
} choir_onnx_type_t;
// "float16"; "?" for what is not in the list. Static storage.
CHOIR_API const char* choir_onnx_type_name(int32_t type);
// In which dtype Choir keeps it; UNIMPLEMENTED: in none.
CHOIR_API choir_status_t choir_onnx_type_dtype(int32_t type,
                                               choir_dtype_t* out_dtype)
    CHOIR_NODISCARD;

// An input or a result as the file declares it.
typedef struct choir_onnx_value_info_s {
  const char* name;  // lent
  int32_t type;      // choir_onnx_type_t; UNDEFINED: none is said
  int32_t ndim;      // -1: not said
  const char* kind;  // "tensor", "sequence", "map", "optional"; static
  int64_t shape[CHOIR_MAX_NDIM];        // -1: any
  const char* symbols[CHOIR_MAX_NDIM];  // names of sizes ("batch"), or NULL
} choir_onnx_value_info_t;
// Inputs that have no initialiser, in order: what forward takes.
CHOIR_API int32_t choir_onnx_input_count(const choir_onnx_t* onnx);
CHOIR_API choir_onnx_value_info_t choir_onnx_input(const choir_onnx_t* onnx,
                                                   int32_t index);
CHOIR_API int32_t choir_onnx_output_count(const choir_onnx_t* onnx);
CHOIR_API choir_onnx_value_info_t choir_onnx_output(const choir_onnx_t* onnx,
                                                    int32_t index);
// Chooses what forward gives from now on, for features of a trained model: runs
// the first `nodes` nodes of the graph (functions written out; negative: all
// but so many) and gives the results of the last of them, where that are all
// the file's; then the values called more[i]. Nodes that these do not need do
// not run. INT32_MAX, NULL, 0: as the file says, but for nodes without use.
CHOIR_API choir_status_t choir_onnx_select(choir_onnx_t* onnx, int32_t nodes,
                                           const char* const* more,
                                           int32_t more_count) CHOIR_NODISCARD;
// How many results forward gives.
CHOIR_API int32_t choir_onnx_result_count(const choir_onnx_t* onnx);
// What the last forward gave as result `index`; UNDEFINED: nothing.
CHOIR_API int32_t choir_onnx_result_type(const choir_onnx_t* onnx,
                                         int32_t index);

// The file for a reader: versions, inputs, results, parameters, one line for
// each node. A malloc'ed text that the caller frees.
CHOIR_API choir_status_t choir_onnx_print(const choir_onnx_t* onnx,
                                          char** out_text) CHOIR_NODISCARD;

// ---- As a model ----

// A model whose `self` is a choir_onnx_t, which outlives it: forward takes the
// inputs and gives the results as a tuple (choir_scope_result); training
// compares result 0 with class labels by softmax cross-entropy. For another
// loss, or layers behind the file's, write a definition that calls the next two
// functions.
CHOIR_API extern const choir_model_def_t choir_onnx_model_def;
// In define: adds the file's parameters and states. A later call, for another
// model, takes the file away from the first.
CHOIR_API void choir_onnx_define(choir_model_t* model, choir_onnx_t* onnx);
// In forward: computes the file's results of its inputs, as a tuple.
CHOIR_API choir_var_t* choir_onnx_forward(choir_scope_t* scope,
                                          choir_onnx_t* onnx,
                                          choir_vars_t inputs);

// A value that need not be a tensor: one variable is a tensor, none an empty
// optional; with is_sequence any number of them are a sequence of tensors.
typedef struct choir_onnx_value_s {
  choir_vars_t vars;  // lent
  bool is_sequence;
  int32_t type;  // choir_onnx_type_t of a result's elements; not read of inputs
} choir_onnx_value_t;
// As choir_onnx_forward, for files that take or give sequences or optional
// values; `inputs` are as many as the file has. False: the scope failed.
CHOIR_API bool choir_onnx_run(choir_scope_t* scope, choir_onnx_t* onnx,
                              const choir_onnx_value_t* inputs, int32_t count);
// What it gave as result `index`, for as long as the variables live; empty:
// there is none.
CHOIR_API choir_onnx_value_t choir_onnx_result(const choir_onnx_t* onnx,
                                               int32_t index);
// A file and a model of it in one. Release the model before the file.
CHOIR_API choir_status_t choir_onnx_load(choir_device_t* device,
                                         const char* path, int64_t seed,
                                         choir_onnx_t** out_onnx,
                                         choir_model_t** out_model)
    CHOIR_NODISCARD;

// ---- Without a model, for programs that keep parameters themselves ----

// Puts parameters and states on the device, for forward calls in scopes of this
// device. They are the file's.
CHOIR_API choir_status_t choir_onnx_place(choir_onnx_t* onnx,
                                          choir_device_t* device)
    CHOIR_NODISCARD;
// After choir_onnx_define or _place; lent.
CHOIR_API int32_t choir_onnx_param_count(const choir_onnx_t* onnx);
CHOIR_API choir_param_t* choir_onnx_param(const choir_onnx_t* onnx,
                                          int32_t index);
// The result called `name` of any node of the last forward, for as long as its
// variables live; NULL: there is none, or it is no tensor.
CHOIR_API choir_var_t* choir_onnx_find_result(const choir_onnx_t* onnx,
                                              const char* name);

// ---- Writing ----

// How a file is written; NULL wherever it is asked for: all false.
typedef struct choir_onnx_write_options_s {
  // The sizes that inputs have are the only ones. Else dimension 0 of each, as
  // far as it is that of the first, is the batch, of any size.
  bool fixed_batch;
  // Parameters lie in a file beside it, PATH.data. They do anyway where they
  // have more than 1 GiB, as a file itself can have 2 GiB at most.
  bool data_beside;
} choir_onnx_write_options_t;

// Writes what forward computes in inference, with the parameters as they are
// now: version 20 of ONNX's operators. inputs: as choir_model_compile takes
// them. The file is there as a whole or not at all. UNIMPLEMENTED: forward has
// an op that has no form there (random numbers, a loop of the host's).
// NOT_FOUND: there is no such folder.
CHOIR_API choir_status_t
choir_onnx_save(choir_model_t* model, const choir_view_t* inputs, int32_t count,
                const char* path, const choir_onnx_write_options_t* options)
    CHOIR_NODISCARD;

// A variable and what it is called in a file.
typedef struct choir_onnx_name_s {
  const char* name;
  choir_var_t* var;
} choir_onnx_name_t;
// What is written of a step: the ops behind the results. Constants that are one
// of `params` are initialisers of these names, others nodes. All is lent; names
// differ.
typedef struct choir_onnx_trace_s {
  const char* name;  // of the graph; NULL: "choir"
  const choir_onnx_name_t* inputs;
  int32_t input_count;
  const choir_onnx_name_t* results;
  int32_t result_count;
  const choir_named_tensor_t* params;
  int32_t param_count;
} choir_onnx_trace_t;
// Of a step that keeps_all and runs still, as a file; or as bytes, which the
// caller frees (malloc).
CHOIR_API choir_status_t choir_onnx_write(
    choir_scope_t* scope, const choir_onnx_trace_t* trace, const char* path,
    const choir_onnx_write_options_t* options) CHOIR_NODISCARD;
CHOIR_API choir_status_t
choir_onnx_pack(choir_scope_t* scope, const choir_onnx_trace_t* trace,
                const choir_onnx_write_options_t* options, void** out_bytes,
                size_t* out_size) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_ONNX_ONNX_H_
