// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_kernels.h"

#include "tensor/gpu_parts_internal.h"

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

choir_status_t choir__gpu_part_kernels(choir_gpu_part_t* part) {
  static choir_cuda_module_t* const modules[] = {
#define X(name) &choir__cuda_##name##_module,
#include "tensor/kernels/cuda/modules.def"
#undef X
  };
  (void)part;  // their version is Choir's
  for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); ++i) {
    if (modules[i]->image) continue;
    return CHOIR_ERROR(UNAVAILABLE,
                       "this build has no code for GPUs (none of %s); needs "
                       "one with --config=cuda, else ops run on the host",
                       modules[i]->name);
  }
  return NULL;
}
