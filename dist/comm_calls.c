// SPDX-License-Identifier: Apache-2.0
// The collectives' own functions, which block: each fills a choir_collective_t.
#include "dist/comm.h"

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
