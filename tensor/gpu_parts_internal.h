// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_GPU_PARTS_INTERNAL_H_
#define CHOIR_TENSOR_GPU_PARTS_INTERNAL_H_

#include "tensor/gpu_parts.h"

// One per line of the list: NULL, with the version if there is one, or
// UNAVAILABLE. The name is set by who calls.
#define X(name) \
  choir_status_t choir__gpu_part_##name(choir_gpu_part_t* part) CHOIR_NODISCARD;
#include "tensor/gpu_parts.def"
#undef X

#endif  // CHOIR_TENSOR_GPU_PARTS_INTERNAL_H_
