// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_DNNL_ENGINE_H_
#define CHOIR_TENSOR_KERNELS_CPU_DNNL_ENGINE_H_

#include "tensor/kernels/problem_key.h"
#include "tensor/op_def.h"
#include "third_party/dnnl/dnnl_v3.h"

// The only files that know oneDNN's interface are dnnl_*.c.
//
// A plan is what one problem needs to run: primitives, reorders around them
// and their memory objects. Plans are kept by what builds them and key, the
// problem written as plain numbers, and used by one thread at a time; a second
// thread with the same problem gets a plan of its own. A steady loop makes
// nothing new.
//
//   choir__key_t key = {.count = 0};
//   choir__key_add(&key, ...);
//   return choir__dnnl_run(&key, build, &problem, stream, operands);
//
// Threads: thread-safe.

#ifdef __cplusplus
extern "C" {
#endif

// Fails the calling function when a oneDNN call did.
#define CHOIR__DNNL_TRY(call)                                                 \
  do {                                                                        \
    const dnnl_status_t choir_dnnl_status_ = (call);                          \
    if (choir_dnnl_status_ != dnnl_success)                                   \
      return choir__dnnl_error(choir_dnnl_status_, #call, __FILE__, __LINE__, \
                               __func__);                                     \
  } while (0)
choir_status_t choir__dnnl_error(dnnl_status_t status, const char* call,
                                 const char* file, int line,
                                 const char* function) CHOIR_NODISCARD;

// Whether a sum of products, of factors f32 or, where the processor multiplies
// them, bf16, is for oneDNN: all sources are the one, and results are of their
// dtype or f32.
bool choir__dnnl_takes_dtypes(const choir_record_t* record);
// Of an operand that it takes.
dnnl_data_type_t choir__dnnl_dtype(choir_dtype_t dtype);
// The process's one CPU engine, made on first use.
choir_status_t choir__dnnl_engine(dnnl_engine_t* out_engine) CHOIR_NODISCARD;
// oneDNN takes as many threads as OpenMP would give the calling thread, a
// number that belongs to the program above. Between _begin and _end it is
// `threads`; _end gives back what _begin returned, on every path. No thread is
// started or ended by either.
int32_t choir__dnnl_threads_begin(int32_t threads);
void choir__dnnl_threads_end(int32_t before);

// Attributes of a primitive whose scratchpad is the plan's, and which, where
// `accumulate`, adds its result to what is there; destroy them.
choir_status_t choir__dnnl_attr(bool accumulate,
                                dnnl_primitive_attr_t* out_attr)
    CHOIR_NODISCARD;

// ---- Plans ----

typedef struct choir__dnnl_plan_s choir__dnnl_plan_t;

// A memory object of a plan, by number; negative: none.
typedef int32_t choir__dnnl_slot_t;

// Operand `index` of the record, as described. Call it while building.
choir_status_t choir__dnnl_operand(choir__dnnl_plan_t* plan, int32_t index,
                                   const_dnnl_memory_desc_t md,
                                   choir__dnnl_slot_t* out_slot)
    CHOIR_NODISCARD;
// Memory between two calls of one run.
choir_status_t choir__dnnl_scratch(choir__dnnl_plan_t* plan,
                                   const_dnnl_memory_desc_t md,
                                   choir__dnnl_slot_t* out_slot)
    CHOIR_NODISCARD;
// Operand `index`, which lies as `own` says, for a primitive that reads it as
// `wanted`: the operand itself, or a reordered copy.
choir_status_t choir__dnnl_input(choir__dnnl_plan_t* plan, int32_t index,
                                 const_dnnl_memory_desc_t own,
                                 const_dnnl_memory_desc_t wanted,
                                 choir__dnnl_slot_t* out_slot) CHOIR_NODISCARD;
// The same, of which the copy is kept beside the operand's buffer for later
// runs (core/packed_backend.h).
choir_status_t choir__dnnl_weights(choir__dnnl_plan_t* plan, int32_t index,
                                   const_dnnl_memory_desc_t own,
                                   const_dnnl_memory_desc_t wanted,
                                   choir__dnnl_slot_t* out_slot)
    CHOIR_NODISCARD;
// The same for a result that the primitive writes as `wanted`; _finish, after
// the primitive was added, brings it to the operand (or adds it there).
typedef struct choir__dnnl_output_s {
  choir__dnnl_slot_t slot;     // what the primitive writes
  choir__dnnl_slot_t operand;  // where it belongs
  bool accumulate;
} choir__dnnl_output_t;
choir_status_t choir__dnnl_output(choir__dnnl_plan_t* plan, int32_t index,
                                  const_dnnl_memory_desc_t own,
                                  const_dnnl_memory_desc_t wanted,
                                  bool accumulate, choir__dnnl_output_t* out)
    CHOIR_NODISCARD;
choir_status_t choir__dnnl_output_finish(choir__dnnl_plan_t* plan,
                                         const choir__dnnl_output_t* output)
    CHOIR_NODISCARD;
// Appends a call. `arguments` are (DNNL_ARG_..., slot) pairs. The scratchpad
// is added when the descriptor asks for one (attribute: user mode). Takes the
// descriptor over.
choir_status_t choir__dnnl_call(choir__dnnl_plan_t* plan,
                                dnnl_primitive_desc_t pd,
                                const int32_t (*arguments)[2],
                                int32_t argument_count) CHOIR_NODISCARD;

// Makes a plan's calls for a problem.
typedef choir_status_t (*choir__dnnl_build_fn_t)(choir__dnnl_plan_t* plan,
                                                 dnnl_engine_t engine,
                                                 const void* problem);
// Runs the plan of `build` and `key` on the operands' memory, with the threads
// of the stream's device, which join the key; makes the plan when none is free.
choir_status_t choir__dnnl_run(choir__key_t* key, choir__dnnl_build_fn_t build,
                               const void* problem, choir_stream_t* stream,
                               void* const* operands) CHOIR_NODISCARD;

// The same for one block of the operands after the other: `after`, if it is
// not NULL, is called behind each. What is the same for all of them is
// reordered once.
typedef struct choir__dnnl_blocks_s {
  int64_t count;
  const size_t* strides;  // bytes, from block to block; one for each operand
  choir_status_t (*after)(void* context, int64_t block);
  void* context;
  // Of choir__dnnl_weights' operands; NULL: what they are reordered to is not
  // kept.
  const choir_record_t* record;
} choir__dnnl_blocks_t;
choir_status_t choir__dnnl_run_blocks(
    choir__key_t* key, choir__dnnl_build_fn_t build, const void* problem,
    choir_stream_t* stream, void* const* operands,
    const choir__dnnl_blocks_t* blocks) CHOIR_NODISCARD;

// ---- The cache, for tests ----

// Most plans that are kept; the one that was not used for longest goes.
#define CHOIR__DNNL_PLANS 512

typedef struct choir__dnnl_cache_stats_s {
  uint64_t built;
  uint64_t reused;
  uint64_t dropped;
  int32_t kept;
} choir__dnnl_cache_stats_t;
choir__dnnl_cache_stats_t choir__dnnl_cache_stats(void);
// Drops every plan that is not in use.
void choir__dnnl_cache_clear(void);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_DNNL_ENGINE_H_
