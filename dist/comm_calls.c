// SPDX-License-Identifier: Apache-2.0
// A collective as a call that blocks, and the collectives' own functions, each
// of which fills a choir_collective_t. As a record on a stream and as
// asynchronous work: comm_async.c. All end in choir__comm_execute.
#include "core/profile.h"
#include "core/status_backend.h"
#include "dist/comm_internal.h"

void choir__comm_drain(choir_comm_t* comm) {
  // Failures are kept by the work handles, so the stream has none.
  if (atomic_load(&comm->async.started) && comm->async.stream)
    choir_status_free(choir_stream_synchronize(comm->async.stream));
}

choir_status_t choir__comm_refuse(choir_comm_t* comm, int32_t kind,
                                  const choir_collective_t* wanted,
                                  choir_status_t why) {
  choir_collective_t refused = {.refusal = choir_status_message(why),
                                .refusal_code = choir_status_code(why)};
  if (wanted) {
    refused.name = wanted->name;
    refused.root = wanted->root;
  }
  choir__comm_drain(comm);
  choir_status_t heard = choir__comm_execute(comm, kind, &refused, NULL, true);
  if (choir__status_is_shared(heard, comm)) {
    why = choir__status_mark_shared(why, comm);
    // What stands for a lack of memory cannot be marked.
    if (!choir__status_is_shared(why, comm)) return heard;
  }
  choir_status_free(heard);
  return why;
}

choir_status_t choir__comm_check_collective(
    const choir_comm_t* comm, const choir_collective_t* collective,
    const char* where) {
  if (!comm || !collective)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %s is NULL", where,
                       comm ? "collective" : "comm");
  if (collective->kind < 0 || collective->kind >= CHOIR_COLLECTIVE_COUNT)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %d is no kind of collective",
                       where, (int)collective->kind);
  return NULL;
}

choir_status_t choir__comm_refuse_call(choir_comm_t* comm,
                                       const choir_collective_t* collective,
                                       choir_status_t why) {
  const bool is_known = collective && collective->kind >= 0 &&
                        collective->kind < CHOIR_COLLECTIVE_COUNT;
  if (!comm) return why;
  return choir__comm_refuse(
      comm, is_known ? (int32_t)collective->kind : CHOIR_COMM_KIND_UNKNOWN,
      collective, why);
}

choir_status_t choir_comm_run(choir_comm_t* comm,
                              const choir_collective_t* collective) {
  static const char* const names[CHOIR_COLLECTIVE_COUNT] = {
#define CHOIR_COLLECTIVE_NAME_(ENUM, name) \
  [CHOIR_COLLECTIVE_##ENUM] = #name "/comm",
      CHOIR_COLLECTIVE_LIST(CHOIR_COLLECTIVE_NAME_)
#undef CHOIR_COLLECTIVE_NAME_
  };
  choir_status_t status =
      choir__comm_check_collective(comm, collective, "comm_run");
  if (status) return choir__comm_refuse_call(comm, collective, status);
  choir__comm_drain(comm);
  const choir_span_t span = choir_span_begin(CHOIR_SPAN_COMM);
  status = choir__comm_execute(comm, (int32_t)collective->kind, collective,
                               NULL, true);
  choir_span_end(&span, names[collective->kind], collective->name, NULL);
  return status;
}

// ---- A function for each kind ----

choir_status_t choir_comm_all_reduce(choir_comm_t* comm, const void* src,
                                     void* dst, int64_t count,
                                     choir_dtype_t dtype, choir_reduce_t op,
                                     const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_ALL_REDUCE,
                                   .op = op,
                                   .dtype = dtype,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_all_reduce_group(choir_comm_t* comm,
                                           const choir_comm_tensor_t* tensors,
                                           int32_t tensor_count,
                                           choir_dtype_t dtype,
                                           choir_reduce_t op,
                                           const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_ALL_REDUCE,
                                   .op = op,
                                   .dtype = dtype,
                                   .weight = 1,
                                   .tensors = tensors,
                                   .tensor_count = tensor_count,
                                   .name = name};
  if (!tensors) collective.refusal = "tensors is NULL";
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_broadcast(choir_comm_t* comm, void* data,
                                    int64_t count, choir_dtype_t dtype,
                                    int32_t root, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_BROADCAST,
                                   .dtype = dtype,
                                   .root = root,
                                   .count = count,
                                   .src = data,
                                   .dst = data,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_all_gather(choir_comm_t* comm, const void* src,
                                     void* dst, int64_t count,
                                     choir_dtype_t dtype, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_ALL_GATHER,
                                   .dtype = dtype,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_all_gather_v(choir_comm_t* comm, const void* src,
                                       int64_t count, void* dst,
                                       int64_t capacity, int64_t* out_counts,
                                       choir_dtype_t dtype, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_ALL_GATHER_V,
                                   .dtype = dtype,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .capacity = capacity,
                                   .counts = out_counts,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_reduce_scatter(choir_comm_t* comm, const void* src,
                                         void* dst, int64_t count,
                                         choir_dtype_t dtype, choir_reduce_t op,
                                         const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_REDUCE_SCATTER,
                                   .op = op,
                                   .dtype = dtype,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_reduce_scatter_v(choir_comm_t* comm, const void* src,
                                           void* dst, int64_t count,
                                           choir_dtype_t dtype,
                                           choir_reduce_t op,
                                           const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_REDUCE_SCATTER_V,
                                   .op = op,
                                   .dtype = dtype,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_reduce(choir_comm_t* comm, const void* src, void* dst,
                                 int64_t count, choir_dtype_t dtype,
                                 choir_reduce_t op, int32_t root,
                                 const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_REDUCE,
                                   .op = op,
                                   .dtype = dtype,
                                   .root = root,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_gather(choir_comm_t* comm, const void* src, void* dst,
                                 int64_t count, choir_dtype_t dtype,
                                 int32_t root, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_GATHER,
                                   .dtype = dtype,
                                   .root = root,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_gather_v(choir_comm_t* comm, const void* src,
                                   int64_t count, void* dst, int64_t capacity,
                                   int64_t* out_counts, choir_dtype_t dtype,
                                   int32_t root, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_GATHER_V,
                                   .dtype = dtype,
                                   .root = root,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .capacity = capacity,
                                   .counts = out_counts,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_scatter(choir_comm_t* comm, const void* src,
                                  void* dst, int64_t count, choir_dtype_t dtype,
                                  int32_t root, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_SCATTER,
                                   .dtype = dtype,
                                   .root = root,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_scatter_v(choir_comm_t* comm, const void* src,
                                    int64_t count, const int64_t* splits,
                                    void* dst, int64_t capacity,
                                    int64_t* out_count, choir_dtype_t dtype,
                                    int32_t root, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_SCATTER_V,
                                   .dtype = dtype,
                                   .root = root,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .capacity = capacity,
                                   .splits = splits,
                                   .counts = out_count,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_all_to_all(choir_comm_t* comm, const void* src,
                                     void* dst, int64_t count,
                                     choir_dtype_t dtype, const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_ALL_TO_ALL,
                                   .dtype = dtype,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_all_to_all_v(choir_comm_t* comm, const void* src,
                                       int64_t count, const int64_t* splits,
                                       void* dst, int64_t capacity,
                                       int64_t* out_counts, choir_dtype_t dtype,
                                       const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_ALL_TO_ALL_V,
                                   .dtype = dtype,
                                   .count = count,
                                   .src = src,
                                   .dst = dst,
                                   .weight = 1,
                                   .capacity = capacity,
                                   .splits = splits,
                                   .counts = out_counts,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_send(choir_comm_t* comm, const void* data,
                               int64_t count, choir_dtype_t dtype, int32_t peer,
                               const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_SEND,
                                   .dtype = dtype,
                                   .root = peer,
                                   .count = count,
                                   .src = data,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_receive(choir_comm_t* comm, void* data, int64_t count,
                                  choir_dtype_t dtype, int32_t peer,
                                  const char* name) {
  choir_collective_t collective = {.kind = CHOIR_COLLECTIVE_RECEIVE,
                                   .dtype = dtype,
                                   .root = peer,
                                   .count = count,
                                   .dst = data,
                                   .name = name};
  return choir_comm_run(comm, &collective);
}

choir_status_t choir_comm_barrier(choir_comm_t* comm, const char* name) {
  choir_collective_t collective = {
      .kind = CHOIR_COLLECTIVE_BARRIER, .weight = 1, .name = name};
  return choir_comm_run(comm, &collective);
}
