// SPDX-License-Identifier: Apache-2.0
// Where the optimizer's states are: shards, while the strategy exchanges
// gradients and so leaves the same ones on all ranks, or whole.
#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"
#include "tensor/op_def.h"
#include "tensor/ops.h"

static size_t list_states(const choir_dist_opt_t* dist,
                          choir_named_tensor_t* out_states) {
  return dist->has_states ? choir_optimizer_states(dist->optimizer, out_states)
                          : 0;
}

// The whole of each state that there is.
static choir_status_t gather_all(choir_dist_opt_t* dist, size_t count,
                                 choir_named_tensor_t* states,
                                 choir_tensor_t** wholes) {
  list_states(dist, states);
  for (size_t i = 0; i < count; ++i)
    CHOIR_TRY(
        states[i].shard
            ? choir__shards_gather(dist->shards, &states[i], -1, &wholes[i])
            : choir_named_tensor_make_whole(&states[i], &wholes[i]));
  return choir_comm_barrier(dist->comm, "states");
}

static choir_status_t set_all(const choir_dist_opt_t* dist, size_t count,
                              choir_named_tensor_t* states,
                              choir_tensor_t** wholes) {
  list_states(dist, states);
  for (size_t i = 0; i < count; ++i) {
    choir_tensor_t* tensor = states[i].tensor;
    CHOIR_TRY(states[i].shard ? choir_named_tensor_take(&states[i], wholes[i])
                              : choir_op_run(choir_device_stream(dist->device),
                                             CHOIR_OP_COPY, &wholes[i], 1, NULL,
                                             false, &tensor));
  }
  return choir_stream_synchronize(choir_device_stream(dist->device));
}

// The optimizer begins anew, and has the states again that it had.
static choir_status_t attach_optimizer(choir_dist_opt_t* dist, size_t count,
                                       choir_named_tensor_t* states,
                                       choir_tensor_t** wholes) {
  if (dist->has_states) CHOIR_TRY(gather_all(dist, count, states, wholes));
  if (dist->shards) choir__shards_drop_plan(dist->shards);
  dist->uses_shards = dist->shards && dist->strategy->def->exchange;
  if (dist->uses_shards)
    choir__shards_use(dist->shards);
  else
    choir__optimizer_set_sharding(dist->optimizer, NULL);
  dist->has_lost_states = dist->has_states;
  CHOIR_TRY(choir__updater_attach(choir_optimizer_updater(dist->optimizer),
                                  dist->device, dist->params,
                                  dist->updater.model));
  if (dist->has_states) CHOIR_TRY(set_all(dist, count, states, wholes));
  dist->has_lost_states = false;
  dist->has_states = true;
  return NULL;
}

choir_status_t choir__dist_opt_place_states(choir_dist_opt_t* dist) {
  const bool exchanges = dist->strategy->def->exchange;
  if (dist->config.shard && !exchanges && choir_comm_size(dist->comm) > 1)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "dist_opt: shard is set, and with %s each rank makes "
                       "steps of its own, which need whole states",
                       choir_strategy_def_option(dist->strategy->def));
  if (dist->has_lost_states)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "dist_opt: this rank lost the optimizer's states in a "
                       "change of strategy that failed; "
                       "choir_model_set_updater begins anew, then restore a "
                       "checkpoint");
  if (dist->has_states && dist->uses_shards == (dist->shards && exchanges))
    return NULL;
  const size_t count = list_states(dist, NULL);
  const size_t bytes =
      count * (sizeof(choir_named_tensor_t) + sizeof(choir_tensor_t*));
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(dist->allocator, bytes, "states of parameters", &memory));
  choir_named_tensor_t* states = memory;
  choir_tensor_t** wholes = (choir_tensor_t**)(void*)(states + count);
  choir_status_t status = attach_optimizer(dist, count, states, wholes);
  for (size_t i = 0; i < count; ++i) choir_tensor_release(wholes[i]);
  choir_deallocate(dist->allocator, memory, bytes);
  return status;
}
