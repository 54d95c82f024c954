// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CHAIN_KERNEL_H_
#define CHOIR_TENSOR_KERNELS_CHAIN_KERNEL_H_

#include "core/device.h"

// What runs chains (tensor/kernels/chain.h), which are no op and so in no
// kernels.def. It gives the bits of the family's kernels for the ops.
typedef struct choir__chain_kernel_s {
  choir_kernel_t kernel;
  bool (*supports)(const choir_record_t* record);  // NULL: all
} choir__chain_kernel_t;

// choir__cpu_chain and so on.
#define X(family) extern const choir__chain_kernel_t choir__##family##_chain;
#include "tensor/kernels/tables.def"
#undef X

// The device's kernel for the chain; NULL: it has none.
const choir_kernel_t* choir__chain_kernel(const choir_device_t* device,
                                          const choir_record_t* record);

#endif  // CHOIR_TENSOR_KERNELS_CHAIN_KERNEL_H_
