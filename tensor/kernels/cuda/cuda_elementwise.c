// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_elementwise.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/element_params.h"
#include "tensor/kernels/nest.h"

_Static_assert(CHOIR__CUDA_ELEMENTWISE_NDIM >= CHOIR_MAX_NDIM,
               "a view's dimensions fit");

enum { THREADS = CHOIR__CUDA_THREADS, WIDTH = CHOIR__CUDA_ELEMENTWISE_WIDTH };

// The record's operands, the destination first.
static bool nest_of(const choir_record_t* record, choir__nest_t* out_nest) {
  const choir_view_t* views[CHOIR__NEST_OPERANDS];
  if (record->dst_count != 1 ||
      record->src_count > CHOIR__CUDA_ELEMENTWISE_SRCS)
    return false;
  views[0] = choir_record_dst(record, 0);
  for (int32_t i = 0; i < record->src_count; ++i)
    views[i + 1] = choir_record_src(record, i);
  return choir__nest_make(views, record->src_count + 1, out_nest);
}

static bool supports(const choir_record_t* record) {
  if (!choir__cuda_elementwise_module.image) return false;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i)
    if (record->operands[i].dtype != CHOIR_DTYPE_F32) return false;
  choir__nest_t nest;
  return nest_of(record, &nest) && nest.count <= INT32_MAX;
}

static float* data_of(const choir_view_t* view) {
  return (float*)choir_buffer_data(view->buffer) + view->offset;
}

// Whether all operands are one row, in steps of one or, the sources, of none,
// that groups of WIDTH elements may be read from.
static bool is_dense(const choir__nest_t* nest,
                     const choir__cuda_elementwise_t* params) {
  if (nest->ndim != 2 || nest->shape[0] != 1) return false;
  const uintptr_t group = WIDTH * sizeof(float);
  if (nest->strides[0][1] != 1 || (uintptr_t)params->dst % group) return false;
  for (int32_t i = 1; i < nest->operand_count; ++i) {
    const int64_t step = nest->strides[i][1];
    if (step != 0 && (step != 1 || (uintptr_t)params->srcs[i - 1] % group))
      return false;
  }
  return true;
}

static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          choir_op_t op, const choir_cuda_kernel_t* dense,
                          const choir_cuda_kernel_t* strided) {
  choir__nest_t nest;
  if (!nest_of(record, &nest)) {
    return CHOIR_ERROR(INTERNAL, "%s: operands do not broadcast",
                       record->kernel->name);
  }
  if (nest.count == 0) return NULL;
  choir__cuda_elementwise_t params = {
      .dst = data_of(choir_record_dst(record, 0)),
      .count = (uint32_t)nest.count,
      .ndim = nest.ndim,
      .element = choir__element_params(op, record)};
  for (int32_t i = 0; i < record->src_count; ++i)
    params.srcs[i] = data_of(choir_record_src(record, i));
  for (int32_t k = 0; k < nest.ndim; ++k) {
    params.shape[k] = (uint32_t)nest.shape[k];
    for (int32_t i = 0; i < nest.operand_count; ++i)
      params.strides[i][k] = nest.strides[i][k];
  }
  const bool in_groups = is_dense(&nest, &params);
  const uint32_t share = THREADS * (in_groups ? WIDTH : 1);
  const uint32_t blocks = (params.count + share - 1) / share;
  return choir__cuda_launch(stream, in_groups ? dense : strided, blocks,
                            THREADS, &params);
}

#define CHOIR__UNARY(OP, name, formula)                                        \
  static const choir_cuda_kernel_t name##_dense = {                            \
      &choir__cuda_elementwise_module, "choir_" #name "_dense"};               \
  static const choir_cuda_kernel_t name##_strided = {                          \
      &choir__cuda_elementwise_module, "choir_" #name "_strided"};             \
  static choir_status_t name##_run(const choir_record_t* record,               \
                                   choir_stream_t* stream) {                   \
    return run(record, stream, CHOIR_OP_##OP, &name##_dense, &name##_strided); \
  }                                                                            \
  const choir_op_kernel_t choir__cuda_##name = {                               \
      {#name "/cuda", name##_run, NULL, NULL, NULL}, CHOIR_OP_##OP, supports};
#define CHOIR__BINARY(OP, name, formula) CHOIR__UNARY(OP, name, formula)
#include "tensor/kernels/cuda/cuda_elementwise.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY
