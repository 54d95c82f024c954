// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/chain_kernel.h"

#include <string.h>

static const struct {
  const char* family;
  const choir__chain_kernel_t* chain;
} chains[] = {
#define X(family) {#family, &choir__##family##_chain},
#include "tensor/kernels/tables.def"
#undef X
};

const choir_kernel_t* choir__chain_kernel(const choir_device_t* device,
                                          const choir_record_t* record) {
  const char* family = choir_device_kernels(device);
  for (size_t i = 0; i < sizeof(chains) / sizeof(chains[0]); ++i) {
    const choir__chain_kernel_t* chain = chains[i].chain;
    if (strcmp(chains[i].family, family) == 0 &&
        (!chain->supports || chain->supports(record)))
      return &chain->kernel;
  }
  return NULL;
}
