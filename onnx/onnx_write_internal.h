// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_ONNX_WRITE_INTERNAL_H_
#define CHOIR_ONNX_ONNX_WRITE_INTERNAL_H_

#include "onnx/onnx_internal.h"
#include "onnx/onnx_put_def.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the files share that write: the ops of a step become messages
// (onnx_write.c) by their writers (writers/, onnx_put.c), and these a file
// (onnx_save.c).

// Of ONNX's operators and of its files; ONNX Runtime reads them from 1.17 on.
enum { CHOIR__ONNX_WRITTEN_VERSION = 20, CHOIR__ONNX_WRITTEN_FORMAT = 9 };

// All memory is the scope's: what a list had before it grew stays.
typedef struct choir__onnx_list_s {
  void** at;
  size_t count, capacity;
} choir__onnx_list_t;

// A variable of the step, or the tensor of a parameter.
typedef struct choir__onnx_written_s {
  const void* key;
  const char* name;        // NULL: none yet
  const char* wanted;      // of a result of the file
  choir_tensor_t* tensor;  // of a parameter
  bool is_used;            // an op or the file needs it
  bool is_made;            // by an op
  bool has_other;
  int64_t other[CHOIR_MAX_NDIM];  // its sizes for another size of the batch
  int64_t inner;                  // see choir__onnx_put_t
} choir__onnx_written_t;

// A graph that grows.
typedef struct choir__onnx_body_s {
  choir__onnx_list_t nodes, inputs, outputs;
  struct choir__onnx_body_s* outer;
  Onnx__NodeProto* owner;  // whose attribute it becomes
} choir__onnx_body_t;

struct choir__onnx_writer_s {
  choir_scope_t* scope;  // whose failure is the writer's
  const choir_onnx_trace_t* trace;
  void* values;  // of choir__onnx_written_t, by tsearch
  void* names;   // texts, by tsearch
  choir__onnx_body_t* graph;
  Onnx__NodeProto* last;
  choir__onnx_list_t params;   // of choir__onnx_written_t: the initialisers
  choir__onnx_list_t numbers;  // vectors that are constants already
  const char* label;           // of the op that is written
  const char* batch_name;      // of the node that gives the batch's size
  int64_t last_number;         // in a name
  int64_t batch, other_batch;
};

// onnx_put.c
// Cleared, for as long as the scope's variables; NULL: the writer failed.
void* choir__onnx_writer_alloc(choir__onnx_writer_t* w, size_t bytes);
void choir__onnx_stop(choir__onnx_writer_t* w, choir_status_t status);
// False after a failure.
bool choir__onnx_writes(const choir__onnx_writer_t* w);
bool choir__onnx_add_to(choir__onnx_writer_t* w, choir__onnx_list_t* list,
                        void* one);
// The entry of a variable or a tensor; NULL: there is none.
choir__onnx_written_t* choir__onnx_find_written(const choir__onnx_writer_t* w,
                                                const void* key);
// The same, made if there is none; NULL: no memory.
choir__onnx_written_t* choir__onnx_need_written(choir__onnx_writer_t* w,
                                                const void* key);
// False: somebody has the name.
bool choir__onnx_take_name(choir__onnx_writer_t* w, const char* name);
const char* choir__onnx_name_of(choir__onnx_put_t* p, choir_var_t* var);
Onnx__TensorProto* choir__onnx_make_proto(choir__onnx_writer_t* w,
                                          choir_dtype_t dtype, int32_t ndim,
                                          const int64_t* shape);
Onnx__ValueInfoProto* choir__onnx_make_info(choir__onnx_writer_t* w,
                                            const char* name,
                                            choir_dtype_t dtype);
Onnx__GraphProto* choir__onnx_make_graph(choir__onnx_writer_t* w,
                                         const choir__onnx_body_t* body,
                                         const char* name);

// onnx_write.c: the messages, but for the elements of initialisers, which are
// w->params in order. NULL: the scope failed.
Onnx__ModelProto* choir__onnx_build_model(choir__onnx_writer_t* w,
                                          bool fixed_batch);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_ONNX_ONNX_WRITE_INTERNAL_H_
