// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_elementwise.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/cuda/cuda_nest_host.h"
#include "tensor/kernels/element_params.h"

// The record's operands, the destination first; how many.
static int32_t operands(const choir_record_t* record,
                        const choir_view_t** out_views) {
  out_views[0] = choir_record_dst(record, 0);
  for (int32_t i = 0; i < record->src_count; ++i)
    out_views[i + 1] = choir_record_src(record, i);
  return record->src_count + 1;
}

static bool supports(const choir_record_t* record) {
  if (!choir__cuda_elementwise_module.image) return false;
  const choir_view_t* views[CHOIR__CUDA_NEST_OPERANDS];
  return choir__cuda_nest_fits(views, operands(record, views));
}

static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          const choir_cuda_kernel_t* dense,
                          const choir_cuda_kernel_t* strided) {
  const choir_view_t* views[CHOIR__CUDA_NEST_OPERANDS];
  const int32_t count = operands(record, views);
  choir__cuda_elementwise_t params = {.element = choir__element_params(record)};
  const bool is_dense = choir__cuda_nest_make(views, count, &params.nest);
  params.nest.written = 1;
  params.nest.read = (1u << count) - (record->accumulate ? 1 : 2);
  return choir__cuda_nest_launch(stream, is_dense ? dense : strided,
                                 &params.nest, is_dense, &params);
}

#define CHOIR__FORMULA(OP, name, sources, formula, ...)            \
  static const choir_cuda_kernel_t name##_dense = {                \
      &choir__cuda_elementwise_module, "choir_" #name "_dense"};   \
  static const choir_cuda_kernel_t name##_strided = {              \
      &choir__cuda_elementwise_module, "choir_" #name "_strided"}; \
  static choir_status_t name##_run(const choir_record_t* record,   \
                                   choir_stream_t* stream) {       \
    return run(record, stream, &name##_dense, &name##_strided);    \
  }                                                                \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, supports)
#define CHOIR__FUNCTION CHOIR__FORMULA
#include "tensor/kernels/cuda/cuda_elementwise.def"
