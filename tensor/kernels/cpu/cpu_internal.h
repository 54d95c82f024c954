// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_INTERNAL_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_INTERNAL_H_

#include "core/body_backend.h"
#include "core/packed_backend.h"
#include "tensor/cpu_threads_def.h"
#include "tensor/kernels/nest.h"
#include "tensor/op_def.h"

// What the CPU kernels share: the choice of an instruction set, threads, and
// loops over strided operands.

#ifdef __cplusplus
extern "C" {
#endif

// ---- Instruction sets ----
//
// A kernel's loop is written once, as a function `<name>_body` that must be
// inlined, and CHOIR__ISA_VARIANTS wraps it once for each instruction set:
//
//   CHOIR__BODY void negate_body(float* y, int64_t n) { ... }
//   CHOIR__ISA_VARIANTS(negate, (float* y, int64_t n), (y, n))
//
// negate(y, n) then runs the best one for this processor. Compilers vectorise
// each wrapper for its own target; nothing in it is particular to gcc or clang.
// Loops that are written with the vector types below stand in a file of their
// own instead, which cpu_each_isa.inc includes once for each instruction set.

typedef enum choir__isa_e {
  CHOIR__ISA_BASE = 0,
  CHOIR__ISA_AVX2 = 1,
  CHOIR__ISA_AVX512 = 2,
} choir__isa_t;

// The best one that this processor has and that ONEDNN_MAX_CPU_ISA in the
// environment allows, or a lower one set by _limit.
choir__isa_t choir__isa(void);
// Whether fmaf is an instruction.
bool choir__has_fma(void);
// What oneDNN may use.
choir__isa_t choir__dnnl_isa(void);
// Whether the processor multiplies bf16 (AMX or AVX512-BF16) and oneDNN, which
// asks the system for AMX's registers, may let it (ONEDNN_MAX_CPU_ISA).
bool choir__dnnl_has_bf16(void);
// The same of AMX.
bool choir__dnnl_has_amx(void);
// For tests: use none above `isa`. Returns what is in force then. Call it only
// while no kernel runs.
choir__isa_t choir__isa_limit(choir__isa_t isa);

#if defined(__x86_64__)
#define CHOIR__TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define CHOIR__TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define CHOIR__ISA_SELECT(name, params, args) \
  static void name params {                   \
    switch (choir__isa()) {                   \
      case CHOIR__ISA_AVX512:                 \
        name##_avx512 args;                   \
        break;                                \
      case CHOIR__ISA_AVX2:                   \
        name##_avx2 args;                     \
        break;                                \
      default:                                \
        name##_base args;                     \
        break;                                \
    }                                         \
  }
#define CHOIR__ISA_VARIANTS(name, params, args)                               \
  CHOIR__TARGET_AVX512 static void name##_avx512 params { name##_body args; } \
  CHOIR__TARGET_AVX2 static void name##_avx2 params { name##_body args; }     \
  static void name##_base params { name##_body args; }                        \
  CHOIR__ISA_SELECT(name, params, args)
#else
#define CHOIR__ISA_SELECT(name, params, args) \
  static void name params { name##_base args; }
#define CHOIR__ISA_VARIANTS(name, params, args) \
  static void name params { name##_body args; }
#endif

// In front of a loop whose iterations touch no common element, except that a
// destination may be the very source.
#if defined(__clang__)
#define CHOIR__INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define CHOIR__INDEPENDENT _Pragma("GCC ivdep")
#endif

// Before loops of a constant few: vectors are to be registers all along.
#if defined(__clang__)
#define CHOIR__UNROLL _Pragma("unroll")
#else
#define CHOIR__UNROLL _Pragma("GCC unroll 8")
#endif

// Vectors for a *_loops.inc that cpu_each_isa.inc includes, at any element's
// address: CHOIR__ISA_LANES floats or integers. Wider ones than
// registers compilers would take apart, comparisons down to the element.
#define CHOIR__ISA_F32 CHOIR__VECTOR(f32, CHOIR__ISA_LANES)
#define CHOIR__ISA_I32 CHOIR__VECTOR(i32, CHOIR__ISA_LANES)
#define CHOIR__ISA_U8 CHOIR__VECTOR(u8, CHOIR__ISA_LANES)
#define CHOIR__VECTOR(element, lanes) CHOIR__VECTOR_TYPE(element, lanes)
#define CHOIR__VECTOR_TYPE(element, lanes) choir__##element##x##lanes##_t
#define CHOIR__VECTORS(lanes)                                         \
  typedef float CHOIR__VECTOR(f32, lanes)                             \
      __attribute__((vector_size(4 * lanes), aligned(4), may_alias)); \
  typedef int32_t CHOIR__VECTOR(i32, lanes)                           \
      __attribute__((vector_size(4 * lanes), aligned(4), may_alias)); \
  typedef uint32_t CHOIR__VECTOR(u32, lanes)                          \
      __attribute__((vector_size(4 * lanes), aligned(4), may_alias)); \
  typedef uint16_t CHOIR__VECTOR(u16, lanes)                          \
      __attribute__((vector_size(2 * lanes), aligned(2), may_alias)); \
  typedef uint8_t CHOIR__VECTOR(u8, lanes)                            \
      __attribute__((vector_size(lanes), aligned(1), may_alias));     \
  typedef uint16_t CHOIR__VECTOR(u16, lanes)                          \
      __attribute__((vector_size(2 * lanes), aligned(2), may_alias)); \
  typedef uint32_t CHOIR__VECTOR(u32, lanes)                          \
      __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
CHOIR__VECTORS(16)
CHOIR__VECTORS(8)
CHOIR__VECTORS(4)

// ---- Threads ----

// choir__cpu_parallel (tensor/cpu_threads_def.h) on the stream's threads with
// `bytes` of scratch memory for each range, at addresses of 64 bytes. All of it
// is taken before: how much a loop asks for does not follow the threads'
// timing. OUT_OF_MEMORY: nothing was run.
choir_status_t choir__cpu_parallel_scratch(
    choir_stream_t* stream, int64_t count, int64_t grain, size_t bytes,
    void (*fn)(void* context, void* scratch, int64_t begin, int64_t end),
    void* context) CHOIR_NODISCARD;

// Elements that are worth a thread of their own in a simple loop.
#define CHOIR__CPU_GRAIN 16384

// ---- Operands ----

// Where the view's first element lies.
static inline void* choir__view_data(const choir_view_t* view) {
  return (char*)choir__buffer_place(view->buffer) +
         (size_t)view->offset * choir_dtype_bytes(view->dtype);
}
static inline float* choir__view_f32(const choir_view_t* view) {
  return (float*)choir__buffer_place(view->buffer) + view->offset;
}

// True when all operands of the record are f32.
bool choir__all_f32(const choir_record_t* record);

// The last two dimensions of a nest at one place of the others.
typedef struct choir__plane_s {
  char* data[CHOIR__NEST_OPERANDS];
  int64_t rows;
  int64_t columns;
  int64_t row_stride[CHOIR__NEST_OPERANDS];     // elements
  int64_t column_stride[CHOIR__NEST_OPERANDS];  // elements
  const void* params;
} choir__plane_t;

// Calls fn for planes that together cover the nest, on the stream's threads.
// `sizes` are the operands' element sizes.
void choir__nest_run(const choir__nest_t* nest, void* const* data,
                     const size_t* sizes, int32_t threads,
                     void (*fn)(const choir__plane_t* plane),
                     const void* params);

// Copies the elements of `src` to memory that `dst` describes (its buffer is
// not looked at); same shape and element size.
void choir__cpu_copy_view(const choir_view_t* dst, void* dst_data,
                          const choir_view_t* src, int32_t threads);

// to[i] += from[i]
void choir__cpu_sum_into(float* to, const float* from, int64_t count);
// `segments` rows of `count` sums each become one, the first, in a binary tree.
void choir__cpu_add_segments(float* sums, int64_t segments, int64_t count,
                             int32_t threads);

// A source whose channels lie side by side, as the image kernels want it: the
// view itself, or a copy in the device's pool, counted as a reorder.
typedef struct choir__pixels_s {
  choir_view_t view;  // shape and strides in `data`
  void* data;         // the first element
  void* copy;         // NULL: none was made
  size_t copy_bytes;
} choir__pixels_t;
choir_status_t choir__pixels_take(const choir_view_t* view,
                                  choir_stream_t* stream,
                                  choir__pixels_t* out_pixels) CHOIR_NODISCARD;
void choir__pixels_give(choir__pixels_t* pixels, choir_stream_t* stream);

// A small source as floats in its own strides (weights, biases): itself, or of
// 16 bits a copy in the device's pool.
typedef struct choir__floats_s {
  const float* data;  // the first element
  void* copy;         // NULL: none was made
  size_t copy_bytes;
} choir__floats_t;
choir_status_t choir__floats_take(const choir_view_t* view,
                                  choir_stream_t* stream,
                                  choir__floats_t* out_floats) CHOIR_NODISCARD;
void choir__floats_give(choir__floats_t* floats, choir_stream_t* stream);

// What a kernel makes of a source for itself (core/packed_backend.h): a form
// that is kept beside the buffer, or else memory of the device's pool.
typedef struct choir__form_s {
  choir__packed_t* packed;  // NULL: not kept
  void* data;
  void* copy;
  size_t bytes;
  bool is_filled;  // before, by an earlier run
} choir__form_t;
choir_status_t choir__form_take(const choir_record_t* record,
                                choir_buffer_t* buffer, const void* key,
                                size_t key_bytes, size_t bytes,
                                choir_stream_t* stream, choir__form_t* out_form)
    CHOIR_NODISCARD;
void choir__form_give(choir__form_t* form, choir_stream_t* stream);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_INTERNAL_H_
