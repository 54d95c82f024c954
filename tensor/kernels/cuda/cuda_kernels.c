// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_kernels.h"

static const choir_op_kernel_t* const kernels[] = {
#define CHOIR__CUDA_KERNEL(OP, kernel) &choir__cuda_##kernel,
#include "tensor/kernels/cuda/kernels.def"
#undef CHOIR__CUDA_KERNEL
    NULL};

const choir_kernel_table_t choir_kernel_table_cuda = {"cuda", kernels};

#if defined(CHOIR_CUDA_IMAGES)
extern const unsigned char choir__cuda_elementwise_image[];
#else
#define choir__cuda_elementwise_image NULL
#endif

choir_cuda_module_t choir__cuda_elementwise_module = {
    "cuda_elementwise.cu", choir__cuda_elementwise_image};
