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
#define X(name) extern choir_cuda_module_t choir__cuda_##name##_module;
#include "tensor/kernels/cuda/modules.def"
#undef X

// For libraries: where the view's first element lies, ...
static inline void* choir__cuda_data(const choir_view_t* view) {
  return (char*)choir_buffer_data(view->buffer) +
         (size_t)view->offset * choir_dtype_bytes(view->dtype);
}
// ... how an address, or several with their bits put together, is aligned, in
// bytes up to `most`, a power of two, ...
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
