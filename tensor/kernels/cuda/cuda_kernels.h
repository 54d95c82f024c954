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
#include "tensor/kernels/cuda/kernels.def"
#undef CHOIR__CUDA_KERNEL

// One per .cu file of this folder. Without the toolkit they have no image, and
// then no kernel of theirs supports any record. Not constant for the sake of
// tests, which give them an image that a script in the place of the driver
// understands.
#define X(name) extern choir_cuda_module_t choir__cuda_##name##_module;
#include "tensor/kernels/cuda/modules.def"
#undef X

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_KERNELS_H_
