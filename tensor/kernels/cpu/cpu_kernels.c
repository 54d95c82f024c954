// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cpu/cpu_kernels.h"

static const choir_op_kernel_t* const kernels[] = {
#define CHOIR__CPU_KERNEL(OP, kernel) &choir__cpu_##kernel,
#define CHOIR__CPU_DEFINED(OP, kernel)
#include "tensor/kernels/kernels.def"
    NULL};

const choir_kernel_table_t choir_kernel_table_cpu = {"cpu", kernels, NULL};

// Those of reproducible devices.
static const choir_op_kernel_t* const defined_kernels[] = {
#define CHOIR__CPU_KERNEL(OP, kernel) &choir__cpu_##kernel,
#define CHOIR__CPU_LOOSE(OP, kernel)
#include "tensor/kernels/kernels.def"
    NULL};

const choir_kernel_table_t choir_kernel_table_defined = {"defined",
                                                         defined_kernels, NULL};

// Every op has a kernel or is a known gap. A second line of the same kind says
// the same again; of the other kind, it contradicts; and what has none is
// unknown below.
#define CHOIR__CPU_KERNEL(OP, kernel) typedef char place_of_##OP[1];
#define CHOIR__NO_CPU_KERNEL(OP, why) typedef char place_of_##OP[2];
#include "tensor/kernels/kernels.def"
#define CHOIR__PLACED(OP, name, sources, attrs, grad) \
  _Static_assert(sizeof(place_of_##OP) <= 2, #name);
CHOIR_OP_LIST(CHOIR__PLACED)
#undef CHOIR__PLACED
