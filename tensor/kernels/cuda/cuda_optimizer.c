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

// ---- Many parameters ----

// Whether the parameter can be one of many: its operands lie densely, in one
// order.
static bool supports_call(const choir_record_t* record) {
  choir__cuda_nest_t nest;
  if (!supports(record)) return false;
  (void)start(record, &nest);
  bool is_dense = nest.ndim == 2 && nest.shape[0] == 1;
  for (int32_t i = 0; is_dense && i < nest.operand_count; ++i)
    is_dense = nest.strides[i][1] == 1;
  return is_dense;
}

// Fills the updates of a record with so many sources for each parameter;
// returns the blocks that they need.
static uint32_t list(const choir_record_t* record, int32_t sources,
                     choir__cuda_update_t* out_updates, uint32_t* out_count) {
  uint32_t blocks = 0;
  *out_count = (uint32_t)(record->src_count / sources);
  for (uint32_t i = 0; i < *out_count; ++i) {
    const choir_view_t* views = record->operands + i * (uint32_t)sources;
    choir__cuda_update_t* update = &out_updates[i];
    update->count = (uint32_t)choir_view_count(&views[0]);
    update->first_block = blocks;
    for (int32_t k = 0; k < CHOIR__CUDA_NEST_OPERANDS; ++k)
      update->data[k] = k < sources && choir_view_count(&views[k]) > 0
                            ? choir__cuda_data(&views[k])
                            : NULL;
    blocks += (update->count + CHOIR__CUDA_UPDATE_SHARE - 1) /
              CHOIR__CUDA_UPDATE_SHARE;
  }
  return blocks;
}

// ---- Kernels ----

// Of a parameter, and of many: choir__cuda_sgd_update, choir__cuda_sgd_updates.
#define CHOIR__UPDATE(T, NAME, name, states, doc)                              \
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
  CHOIR__CUDA_OP_KERNEL(NAME##_UPDATE, name##_update, "cuda", name##_run,      \
                        supports)                                              \
                                                                               \
  static choir_status_t name##_many_run(const choir_record_t* record,          \
                                        choir_stream_t* stream) {              \
    static const choir_cuda_kernel_t many = {&choir__cuda_optimizer_module,    \
                                             "choir_" #name "_update_many"};   \
    choir__cuda_##name##_many_t params = {                                     \
        .factors = choir__##name##_make_f32(record->attrs)};                   \
    const uint32_t blocks =                                                    \
        list(record, 2 + states, params.updates, &params.count);               \
    return choir__cuda_launch(stream, &many, blocks, CHOIR__CUDA_THREADS,      \
                              &params);                                        \
  }                                                                            \
  _Static_assert(sizeof(choir__cuda_##name##_many_t) <= 4096,                  \
                 "a launch has room for it");                                  \
  _Static_assert(                                                              \
      CHOIR__CUDA_UPDATES * (3 + 2 * states) <= CHOIR_RECORD_MAX_OPERANDS,     \
      "a record has room for them");                                           \
  const choir_calls_kernel_t choir__cuda_##name##_updates = {                  \
      {#name "_update_many/cuda", name##_many_run, choir__cost_bytes, NULL,    \
       NULL, false},                                                           \
      CHOIR_OP_##NAME##_UPDATE,                                                \
      CHOIR__CUDA_UPDATES,                                                     \
      supports_call};
CHOIR_OPTIMIZER_LIST(CHOIR__UPDATE, )
#undef CHOIR__UPDATE
