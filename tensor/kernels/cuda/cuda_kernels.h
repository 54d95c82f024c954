// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_KERNELS_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_KERNELS_H_

#include "core/cuda_backend.h"
#include "tensor/kernels/cuda/cuda_threads.h"
#include "tensor/op_def.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CHOIR__CUDA_KERNEL(OP, kernel) \
  extern const choir_op_kernel_t choir__cuda_##kernel;
#include "tensor/kernels/kernels.def"

#define CHOIR__UPDATES(T, NAME, name, states, doc) \
  extern const choir_calls_kernel_t choir__cuda_##name##_updates;
CHOIR_OPTIMIZER_LIST(CHOIR__UPDATES, )
#undef CHOIR__UPDATES

// Defines one of the first: `maker` is "cuda", or the library that computes.
#define CHOIR__CUDA_OP_KERNEL(OP, name, maker, run, supports) \
  const choir_op_kernel_t choir__cuda_##name =                \
      CHOIR_OP_KERNEL(CHOIR_OP_##OP, #name, maker, run, supports);

// One per .cu file of this folder. Without the toolkit they have no image, and
// then no kernel of theirs supports any record. Not constant for the sake of
// tests, which give them an image that a script in the place of the driver
// understands.
#define CHOIR__CUDA_FILE(name) \
  extern choir_cuda_module_t choir__cuda_##name##_module;
#include "tensor/kernels/kernels.def"

// Launches a thread for each of so many things, in blocks of
// CHOIR__CUDA_THREADS.
static inline uint32_t choir__cuda_quotient_up(uint64_t a, uint64_t b) {
  return (uint32_t)((a + b - 1) / b);
}
static inline choir_status_t choir__cuda_launch_threads(
    choir_stream_t* stream, const choir_cuda_kernel_t* kernel, uint64_t threads,
    const void* params) {
  return choir__cuda_launch(
      stream, kernel, choir__cuda_quotient_up(threads, CHOIR__CUDA_THREADS),
      CHOIR__CUDA_THREADS, params);
}
// Whether CHOIR__CUDA_GROUP elements of f32 may be read at once from there.
static inline bool choir__cuda_is_group(const void* data) {
  return (uintptr_t)data % (CHOIR__CUDA_GROUP * sizeof(float)) == 0;
}

// Where the view's first element lies, ...
static inline void* choir__cuda_data(const choir_view_t* view) {
  return (char*)choir_buffer_data(view->buffer) +
         (size_t)view->offset * choir_dtype_bytes(view->dtype);
}
// For libraries: how an address, or several with their bits put together, is
// aligned, in bytes up to `most`, a power of two, ...
static inline uint32_t choir__cuda_alignment(uint64_t bits, uint32_t most) {
  bits |= most;
  return (uint32_t)(bits & (~bits + 1));
}
// ... and whether they may round factors in f32 to TF32: CHOIR_TF32=1 in the
// environment now.
bool choir__cuda_allows_tf32(void);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_KERNELS_H_
