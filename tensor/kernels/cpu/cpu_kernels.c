// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cpu/cpu_kernels.h"

static const choir_op_kernel_t* const kernels[] = {
#define CHOIR__CPU_KERNEL(OP, kernel) &choir__cpu_##kernel,
#include "tensor/kernels/cpu/kernels.def"
#undef CHOIR__CPU_KERNEL
    NULL};

const choir_kernel_table_t choir_kernel_table_cpu = {"cpu", kernels, NULL};
