// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_chain.h"

#include "tensor/kernels/chain_kernel.h"
#include "tensor/kernels/cuda/cuda_kernels.h"

static int64_t count_of(const choir_record_t* record) {
  return choir_view_count(choir_record_dst(record, 0));
}

static bool supports(const choir_record_t* record) {
  return choir__cuda_chain_module.image && count_of(record) <= INT32_MAX;
}

static choir_status_t run(const choir_record_t* record,
                          choir_stream_t* stream) {
  static const choir_cuda_kernel_t dense = {&choir__cuda_chain_module,
                                            "choir_chain_dense"};
  static const choir_cuda_kernel_t single = {&choir__cuda_chain_module,
                                             "choir_chain_single"};
  choir__cuda_chain_t params = {.count = (uint32_t)count_of(record),
                                .chain = *(const choir__chain_t*)record->attrs};
  uint64_t bits = 0;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i) {
    params.data[i] = choir__cuda_data(&record->operands[i]);
    if (!(params.chain.singles >> i & 1u)) bits |= (uintptr_t)params.data[i];
  }
  const uint32_t group = CHOIR__CUDA_GROUP * sizeof(float);
  const bool is_dense = choir__cuda_alignment(bits, group) == group;
  const uint32_t share =
      CHOIR__CUDA_THREADS * (is_dense ? CHOIR__CUDA_GROUP : 1);
  return choir__cuda_launch(stream, is_dense ? &dense : &single,
                            (params.count + share - 1) / share,
                            CHOIR__CUDA_THREADS, &params);
}

const choir__chain_kernel_t choir__cuda_chain = {
    {.name = "chain/cuda", .run = run, .cost = choir__cost_bytes}, supports};
