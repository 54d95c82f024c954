// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_kernels.h"

static const choir_op_kernel_t* const kernels[] = {
#define CHOIR__CUDA_KERNEL(OP, kernel) &choir__cuda_##kernel,
#include "tensor/kernels/cuda/kernels.def"
#undef CHOIR__CUDA_KERNEL
    NULL};

const choir_kernel_table_t choir_kernel_table_cuda = {"cuda", kernels};

#if defined(CHOIR_CUDA_IMAGES)
#define X(name)                                            \
  extern const unsigned char choir__cuda_##name##_image[]; \
  choir_cuda_module_t choir__cuda_##name##_module = {      \
      "cuda_" #name ".cu", choir__cuda_##name##_image};
#else
#define X(name) \
  choir_cuda_module_t choir__cuda_##name##_module = {"cuda_" #name ".cu", NULL};
#endif
#include "tensor/kernels/cuda/modules.def"
#undef X
