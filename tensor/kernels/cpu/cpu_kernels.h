// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_KERNELS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_KERNELS_H_

#include "tensor/op_def.h"

#ifdef __cplusplus
extern "C" {
#endif

// choir__cpu_relu and so on.
#define CHOIR__CPU_KERNEL(OP, kernel) \
  extern const choir_op_kernel_t choir__cpu_##kernel;
#include "tensor/kernels/kernels.def"

// Defines one of them.
#define CHOIR__CPU_OP_KERNEL(OP, name, how, run, supports) \
  const choir_op_kernel_t choir__cpu_##name =              \
      CHOIR_OP_KERNEL(CHOIR_OP_##OP, #name, how, run, supports);

// Whether a reproducible CPU takes Winograd's algorithm for these gradients of
// filters, which is another definition than that of products: by the shapes of
// one sample alone.
bool choir__conv2d_filters_by_winograd(const choir_record_t* record);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_KERNELS_H_
