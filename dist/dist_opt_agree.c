// SPDX-License-Identifier: Apache-2.0
// What all ranks must have the same of, compared over them: the same failure on
// every rank, which names the one that differs.
#include <string.h>

#include "core/random.h"
#include "core/status_backend.h"
#include "dist/comm_shared_def.h"
#include "dist/dist_opt_internal.h"

static uint64_t param_hash(const choir_param_t* param) {
  const choir_view_t* view = choir_tensor_view(param->value);
  uint64_t hash =
      choir_hash_bytes(CHOIR_HASH_START, param->name, strlen(param->name) + 1);
  const int64_t header[] = {view->dtype, view->ndim, param->trainable};
  hash = choir_hash_bytes(hash, header, sizeof header);
  const size_t bytes = sizeof(int64_t) * (size_t)view->ndim;
  hash = choir_hash_bytes(hash, view->shape, bytes);
  return choir_hash_bytes(hash, view->strides, bytes);
}

// All ranks learn of a difference: the same values are compared everywhere.
static choir_status_t compare_with_rank_0(const choir__common_t* mine,
                                          const uint64_t* own, size_t count,
                                          uint64_t* all) {
  const int32_t size = choir_comm_size(mine->comm);
  CHOIR_TRY(choir_comm_all_gather(mine->comm, own, all, (int64_t)count,
                                  CHOIR_DTYPE_I64, "model layout"));
  for (int32_t rank = 1; rank < size; ++rank) {
    for (size_t i = 0; i < count; ++i) {
      if (all[(size_t)rank * count + i] == all[i]) continue;
      const choir_param_t* param = mine->params->params[i];
      char text[160];
      choir_status_t status = CHOIR_ERROR(
          FAILED_PRECONDITION,
          "dist_opt: the models differ: parameter %zu of %s is not that of "
          "rank 0 (here it is %s, %s); every rank must define the same model",
          i, choir_comm_peer(mine->comm, rank), param->name,
          choir_view_print(choir_tensor_view(param->value), text, sizeof text));
      return choir__status_mark_shared(status, mine->comm);
    }
  }
  return NULL;
}

// What ranks must agree on before their parameters are compared one by one.
typedef struct settings_s {
  int64_t params;
  uint64_t optimizer;
  uint64_t own;
  uint64_t strategy;
} settings_t;

static choir_status_t compare_settings(const choir__common_t* mine,
                                       const settings_t* all, int32_t rank) {
  const char* peer = choir_comm_peer(mine->comm, rank);
  char text[256];
  if (all[rank].params != all[0].params)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "dist_opt: the models differ: rank 0 has %lld "
                       "parameters, %s has %lld; every rank must define "
                       "the same model",
                       (long long)all[0].params, peer,
                       (long long)all[rank].params);
  if (all[rank].optimizer != all[0].optimizer)
    return CHOIR_ERROR(
        FAILED_PRECONDITION,
        "dist_opt: the optimizers differ: that of %s is not that of rank 0 "
        "(here it is %s); every rank must make the same one",
        peer, choir_optimizer_print(mine->optimizer, text, sizeof text));
  if (all[rank].own != all[0].own)
    return CHOIR_ERROR(
        FAILED_PRECONDITION,
        "dist_opt: the settings of %s are not those of rank 0 (here %s); "
        "every rank must have the same ones",
        peer,
        choir_struct_print(mine->config_def, mine->config, text, sizeof text));
  if (all[rank].strategy != all[0].strategy)
    return CHOIR_ERROR(
        FAILED_PRECONDITION,
        "dist_opt: the dist_option of %s is not that of rank 0 (here it is "
        "%s); every rank must have the same one, with the same settings",
        peer, choir__strategy_print(mine->strategy, text, sizeof text));
  return NULL;
}

static settings_t settings_of(const choir__common_t* mine) {
  return (settings_t){.params = (int64_t)mine->params->count,
                      .optimizer = choir_optimizer_hash(mine->optimizer),
                      .own = choir_struct_hash(mine->config_def, mine->config),
                      .strategy = choir__strategy_hash(mine->strategy)};
}

uint64_t choir__agree_hash(const choir__common_t* mine) {
  const settings_t settings = settings_of(mine);
  uint64_t hash =
      choir_hash_bytes(CHOIR_HASH_START, &settings, sizeof settings);
  for (size_t i = 0; i < mine->params->count; ++i) {
    const uint64_t own = param_hash(mine->params->params[i]);
    hash = choir_hash_bytes(hash, &own, sizeof own);
  }
  return hash;
}

choir_status_t choir__agree_on_settings(const choir__common_t* mine) {
  const int32_t size = choir_comm_size(mine->comm);
  const settings_t settings = settings_of(mine);
  const size_t bytes = sizeof settings * (size_t)size;
  void* all = NULL;
  CHOIR_TRY(choir_allocate(mine->allocator, bytes, "settings of ranks", &all));
  choir_status_t status = choir_comm_all_gather(
      mine->comm, &settings, all, sizeof settings / sizeof(int64_t),
      CHOIR_DTYPE_I64, "settings");
  for (int32_t rank = 1; !status && rank < size; ++rank)
    status = choir__status_mark_shared(compare_settings(mine, all, rank),
                                       mine->comm);
  choir_deallocate(mine->allocator, all, bytes);
  return status;
}

choir_status_t choir__agree_on_model(const choir__common_t* mine) {
  CHOIR_TRY(choir__agree_on_settings(mine));
  // The optimizer says what is wrong with none.
  if (mine->params->count == 0) return NULL;
  const size_t row = sizeof(uint64_t) * mine->params->count;
  const size_t table = row * (size_t)choir_comm_size(mine->comm);
  void* own = NULL;
  void* all = NULL;
  CHOIR_TRY(choir_allocate(mine->allocator, row, "parameter hashes", &own));
  choir_status_t status =
      choir_allocate(mine->allocator, table, "parameter hashes", &all);
  for (size_t i = 0; i < mine->params->count; ++i)
    ((uint64_t*)own)[i] = param_hash(mine->params->params[i]);
  if (!status)
    status = compare_with_rank_0(mine, own, mine->params->count, all);
  choir_deallocate(mine->allocator, own, row);
  choir_deallocate(mine->allocator, all, table);
  return status;
}

choir_status_t choir__agree_on_outcome(choir_comm_t* comm, const char* call,
                                       choir_status_t status) {
  if (!status) return choir_comm_barrier(comm, call);
  if (choir__status_is_shared(status, comm)) return status;
  return choir__comm_refuse(comm, CHOIR_COLLECTIVE_BARRIER,
                            &(choir_collective_t){.name = call}, status);
}

choir_status_t choir__agree_on_leaves(choir_comm_t* comm,
                                      const choir__leaves_t* leaves) {
  const choir__leaves_t own = leaves[choir_comm_rank(comm)];
  int64_t next = 0;
  for (int32_t r = 0; r < choir_comm_size(comm); next = leaves[r++].end)
    if (leaves[r].all != own.all || leaves[r].first != next)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "dist_opt: %s has micro-shards %lld to %lld "
                         "of %lld; needs those from "
                         "%lld on, of %lld",
                         choir_comm_peer(comm, r), (long long)leaves[r].first,
                         (long long)leaves[r].end - 1, (long long)leaves[r].all,
                         (long long)next, (long long)own.all);
  if (next == own.all) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "dist_opt: all ranks have %lld micro-shards; the step "
                     "has %lld",
                     (long long)next, (long long)own.all);
}
