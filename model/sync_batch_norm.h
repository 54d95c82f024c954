// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_SYNC_BATCH_NORM_H_
#define CHOIR_MODEL_SYNC_BATCH_NORM_H_

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

// Batch norm over the samples of all ranks, for programs that make layers of
// their own (the Python package). In C it is the setting `sync` of the layer
// batch_norm2d, which has the formula (model/layers.h).
//
// Threads: the one that trains.

typedef struct choir_sync_batch_norm_s {
  const char* name;  // as long-lived as the model; ranks compare it
  // (c), f32 or f64, parameters of the model that are not trained.
  choir_tensor_t* running_mean;
  choir_tensor_t* running_var;
  double momentum;  // weight of the new batch
  double epsilon;
  // It is over all ranks in steps with micro-shards alone (choir_step_t).
  bool only_micro_shards;
} choir_sync_batch_norm_t;

// Before choir_model_compile is done, for each use in forward, in that order:
// tells the model, so that a rank without samples can take part. Copies `norm`.
CHOIR_API choir_status_t choir_model_add_sync_batch_norm(
    choir_model_t* model, const choir_sync_batch_norm_t* norm) CHOIR_NODISCARD;

// A use in forward: its results, and what backward needs. Tensors of the step.
typedef struct choir_sync_batch_norm_use_s {
  choir_model_t* model;
  choir_scope_t* scope;
  const char* name;
  double epsilon;
  choir_tensor_t* x;         // (n, c, ...)
  choir_tensor_t* scale;     // (c), and so are the others but y
  choir_tensor_t* mean;      // over all ranks
  choir_tensor_t* var;       // biased
  choir_tensor_t* count;     // elements of a channel
  choir_tensor_t* unbiased;  // variance
  choir_tensor_t* y;
} choir_sync_batch_norm_use_t;

// In a training step of the model, in its scope, on every rank that has
// samples: normalises srcs[0], x, with scale and bias, srcs[1] and srcs[2].
// has_backward: a gradient can flow through it. The caller brings the running
// averages up to date, by mean and unbiased. srcs must live as long as
// *out_use; what it has beside them belongs to the scope.
CHOIR_API choir_status_t choir_sync_batch_norm_forward(
    choir_model_t* model, choir_scope_t* scope,
    const choir_sync_batch_norm_t* norm, choir_tensor_t* const srcs[3],
    bool has_backward, choir_sync_batch_norm_use_t* out_use) CHOIR_NODISCARD;
// Its gradients, for choir_custom_op_t: self is a choir_sync_batch_norm_use_t,
// sources are x, scale and bias; out_grads are new references, in a step with
// micro-shards as of an op that knows_micro_shards.
CHOIR_API choir_status_t choir_sync_batch_norm_backward(
    void* self, choir_tensor_t* dy, choir_tensor_t** out_grads) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_MODEL_SYNC_BATCH_NORM_H_
