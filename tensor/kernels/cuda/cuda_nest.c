// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/cuda/cuda_nest_host.h"
#include "tensor/kernels/nest.h"

_Static_assert(CHOIR__CUDA_NEST_NDIM >= CHOIR_MAX_NDIM, "all dimensions fit");
_Static_assert(CHOIR__CUDA_NEST_OPERANDS >= CHOIR__NEST_OPERANDS,
               "all operands fit");

bool choir__cuda_nest_fits(const choir_view_t* const* views, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if (views[i]->dtype != CHOIR_DTYPE_F32) return false;
  return choir__cuda_nest_covers(views, count);
}

bool choir__cuda_nest_covers(const choir_view_t* const* views, int32_t count) {
  if (count > CHOIR__NEST_OPERANDS) return false;
  choir__nest_t nest;
  return choir__nest_make(views, count, &nest) && nest.count <= INT32_MAX;
}

static bool is_dense(const choir__cuda_nest_t* nest,
                     const choir_view_t* const* views) {
  if (nest->ndim != 2 || nest->shape[0] != 1) return false;
  for (int32_t i = 0; i < nest->operand_count; ++i) {
    const int64_t step = nest->strides[i][1];
    if (step == 0 && i > 0) continue;
    const uintptr_t group =
        CHOIR__CUDA_GROUP * choir_dtype_bytes(views[i]->dtype);
    if (step != 1 || (uintptr_t)nest->data[i] % group) return false;
  }
  return true;
}

bool choir__cuda_nest_make(const choir_view_t* const* views, int32_t count,
                           choir__cuda_nest_t* out_nest) {
  choir__nest_t nest;
  (void)choir__nest_make(views, count, &nest);
  *out_nest = (choir__cuda_nest_t){
      .count = (uint32_t)nest.count, .ndim = nest.ndim, .operand_count = count};
  for (int32_t i = 0; i < count; ++i)
    out_nest->data[i] = choir__cuda_data(views[i]);
  for (int32_t k = 0; k < nest.ndim; ++k) {
    out_nest->shape[k] = (uint32_t)nest.shape[k];
    for (int32_t i = 0; i < count; ++i)
      out_nest->strides[i][k] = nest.strides[i][k];
  }
  return is_dense(out_nest, views);
}

choir_status_t choir__cuda_nest_launch(choir_stream_t* stream,
                                       const choir_cuda_kernel_t* kernel,
                                       const choir__cuda_nest_t* nest,
                                       bool is_dense_nest, const void* params) {
  if (nest->count == 0) return NULL;
  return choir__cuda_launch_threads(
      stream, kernel,
      choir__cuda_quotient_up(nest->count,
                              is_dense_nest ? CHOIR__CUDA_GROUP : 1),
      params);
}
