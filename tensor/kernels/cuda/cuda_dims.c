// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_dims.h"

#include "core/view.h"

_Static_assert(CHOIR__CUDA_DIMS >= CHOIR_MAX_NDIM, "all dimensions fit");

void choir__cuda_dims_add(choir__cuda_dims_t* dims, int64_t size, int64_t src,
                          int64_t dst) {
  if (size == 1) return;
  const int32_t last = dims->ndim - 1;
  if (last >= 0 && dims->src[last] == src * size &&
      dims->dst[last] == dst * size) {
    dims->shape[last] *= (uint32_t)size;
    dims->src[last] = src;
    dims->dst[last] = dst;
    return;
  }
  dims->shape[dims->ndim] = (uint32_t)size;
  dims->src[dims->ndim] = src;
  dims->dst[dims->ndim++] = dst;
}

void choir__cuda_dims_end(choir__cuda_dims_t* dims) {
  if (dims->ndim > 0) return;
  dims->ndim = 1;
  dims->shape[0] = 1;
}
