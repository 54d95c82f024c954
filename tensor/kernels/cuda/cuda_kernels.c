// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_kernels.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/gpu_parts_internal.h"

static const choir_op_kernel_t* const kernels[] = {
#define CHOIR__CUDA_KERNEL(OP, kernel) &choir__cuda_##kernel,
#include "tensor/kernels/kernels.def"
    NULL};

static const choir_calls_kernel_t* const calls_kernels[] = {
#define UPDATES(T, NAME, name, states, doc) &choir__cuda_##name##_updates,
    CHOIR_OPTIMIZER_LIST(UPDATES, )
#undef UPDATES
        NULL};

// Every op has a kernel or is a known gap, as in cpu_kernels.c.
#define CHOIR__CUDA_KERNEL(OP, kernel) typedef char place_of_##OP[1];
#define CHOIR__NO_CUDA_KERNEL(OP, why) typedef char place_of_##OP[2];
#include "tensor/kernels/kernels.def"
#define CHOIR__PLACED(OP, name, sources, attrs, grad) \
  _Static_assert(sizeof(place_of_##OP) <= 2, #name);
CHOIR_OP_LIST(CHOIR__PLACED)
#undef CHOIR__PLACED

const choir_kernel_table_t choir_kernel_table_cuda = {"cuda", kernels,
                                                      calls_kernels};

#if defined(CHOIR_CUDA_IMAGES)
#define CHOIR__CUDA_FILE(name)                             \
  extern const unsigned char choir__cuda_##name##_image[]; \
  choir_cuda_module_t choir__cuda_##name##_module = {      \
      "cuda_" #name ".cu", choir__cuda_##name##_image};
#else
#define CHOIR__CUDA_FILE(name) \
  choir_cuda_module_t choir__cuda_##name##_module = {"cuda_" #name ".cu", NULL};
#endif
#include "tensor/kernels/kernels.def"

choir_status_t choir__gpu_part_kernels(choir_gpu_part_t* part) {
  static choir_cuda_module_t* const modules[] = {
#define CHOIR__CUDA_FILE(name) &choir__cuda_##name##_module,
#include "tensor/kernels/kernels.def"
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

bool choir__cuda_allows_tf32(void) {
  // $CHOIR_TF32: 1: products and convolutions of f32 on a GPU may round their
  // factors to TF32. Not set: they do not.
  const char* text = getenv("CHOIR_TF32");
  return text && strcmp(text, "1") == 0;
}
