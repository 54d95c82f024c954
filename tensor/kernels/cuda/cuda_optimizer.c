// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_optimizer.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/cuda/cuda_nest_host.h"
#include "tensor/ops/optimizer_factors.h"

// The record's operands; how many. What is not used may be empty.
static int32_t operands(const choir_record_t* record,
                        const choir_view_t** out_views) {
  int32_t count = 0;
  for (; count < record->src_count; ++count)
    out_views[count] = choir_record_src(record, count);
  if (count == 3 && choir_view_count(out_views[2]) == 0 &&
      choir_view_count(out_views[0]) > 0)
    --count;
  return count;
}

static bool supports(const choir_record_t* record) {
  if (!choir__cuda_optimizer_module.image || record->accumulate) return false;
  const choir_view_t* views[CHOIR__CUDA_NEST_OPERANDS];
  const int32_t count = operands(record, views);
  for (int32_t i = 1; i < count; ++i)
    if (!choir_view_same_shape(views[i], views[0])) return false;
  return choir__cuda_nest_fits(views, count);
}

// Fills the nest; whether it is dense.
static bool start(const choir_record_t* record, choir__cuda_nest_t* out_nest) {
  const choir_view_t* views[CHOIR__CUDA_NEST_OPERANDS];
  const int32_t count = operands(record, views);
  const bool is_dense = choir__cuda_nest_make(views, count, out_nest);
  out_nest->read = (1u << count) - 1;
  out_nest->written = out_nest->read & ~2u;  // all but the gradient
  return is_dense;
}

#define CHOIR__UPDATE(OP, name, kept)                                          \
  static choir_status_t name##_run(const choir_record_t* record,               \
                                   choir_stream_t* stream) {                   \
    static const choir_cuda_kernel_t dense = {&choir__cuda_optimizer_module,   \
                                              "choir_" #name "_update_dense"}; \
    static const choir_cuda_kernel_t strided = {                               \
        &choir__cuda_optimizer_module, "choir_" #name "_update_strided"};      \
    choir__cuda_##name##_t params = {                                          \
        .factors = choir__##name##_make_f32(record->attrs)};                   \
    const bool is_dense = start(record, &params.nest);                         \
    return choir__cuda_nest_launch(stream, is_dense ? &dense : &strided,       \
                                   &params.nest, is_dense, &params);           \
  }                                                                            \
  CHOIR__CUDA_OP_KERNEL(OP, name##_update, "cuda", name##_run, supports)
#include "tensor/kernels/cuda/cuda_optimizer.def"
#undef CHOIR__UPDATE
