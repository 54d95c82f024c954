// SPDX-License-Identifier: Apache-2.0
// What layers exchange in forward and backward (batch norm over ranks). Buckets
// are on their way meanwhile, in an order of their own, so it needs another
// communicator.
#include "core/trace_backend.h"
#include "dist/dist_opt_parts_internal.h"

static choir_status_t make_comm(choir_dist_opt_t* dist) {
  const int32_t size = choir_comm_size(dist->comm);
  const size_t bytes = (size_t)size * sizeof(int32_t);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(dist->allocator, bytes, "list of all ranks", &memory));
  int32_t* ranks = memory;
  for (int32_t r = 0; r < size; ++r) ranks[r] = r;
  choir_status_t status =
      choir_comm_group(dist->comm, ranks, size, &dist->layers_comm);
  choir_deallocate(dist->allocator, memory, bytes);
  return status;
}

static choir_status_t open(choir_dist_opt_t* dist, size_t most_bytes) {
  if (!dist->layers_comm) CHOIR_TRY(make_comm(dist));
  const size_t size = (size_t)choir_comm_size(dist->comm);
  // Steps that were recorded before have the addresses of before.
  ++dist->variant;
  choir_buffer_release(dist->gathered);
  dist->gathered = NULL;
  dist->gathered_start = (most_bytes + 63) / 64 * 64;
  return choir_comm_buffer_create(dist->layers_comm, dist->device,
                                  dist->gathered_start + size * most_bytes,
                                  &dist->gathered);
}

choir_status_t choir__layers_open_all_gather(choir_updater_t* updater,
                                             size_t most_bytes) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  return choir__agree_on_outcome(dist->comm, "layers over all ranks",
                                 open(dist, most_bytes));
}

// Of `gathered`, from byte `start` on.
static choir_status_t make_view(const choir_dist_opt_t* dist, size_t start,
                                choir_dtype_t dtype, int64_t rows,
                                int64_t columns, choir_tensor_t** out_tensor) {
  const int64_t shape[] = {rows, columns};
  choir_view_t view;
  CHOIR_TRY(choir_view_make(dtype, 2, shape, &view));
  view.buffer = dist->gathered;
  view.offset = (int64_t)(start / choir_dtype_bytes(dtype));
  return choir_tensor_from_view(&view, out_tensor);
}

static choir_status_t copy_own(const choir_dist_opt_t* dist,
                               choir_tensor_t* own, choir_stream_t* stream) {
  choir_tensor_t* sent = NULL;
  CHOIR_TRY(make_view(dist, 0, choir_tensor_dtype(own),
                      choir_tensor_shape(own)[0], choir_tensor_shape(own)[1],
                      &sent));
  choir_status_t status =
      choir_op_run(stream, CHOIR_OP_COPY, &own, 1, NULL, false, &sent);
  choir_tensor_release(sent);
  return status;
}

choir_status_t choir__layers_all_gather(choir_updater_t* updater,
                                        const choir_step_values_t* values,
                                        choir_tensor_t* own, int64_t rows,
                                        int64_t total, const char* name,
                                        choir_tensor_t** out_all) {
  choir_dist_opt_t* dist = choir__dist_opt_of(updater);
  choir_stream_t* stream = choir_device_stream(dist->device);
  *out_all = NULL;
  CHOIR_TRY(choir__dist_opt_need_model(dist, "all_gather"));
  const choir_dtype_t dtype = choir_tensor_dtype(own);
  const int64_t columns = choir_tensor_shape(own)[1];
  const int64_t all = total > 0 ? total : rows * choir_comm_size(dist->comm);
  if ((size_t)choir_tensor_count(own) * choir_dtype_bytes(dtype) >
      dist->gathered_start)
    return CHOIR_ERROR(INTERNAL,
                       "dist_opt: all_gather of %s: %lld elements of %s; there "
                       "is room for %zu bytes",
                       name, (long long)choir_tensor_count(own),
                       choir_dtype_name(dtype), dist->gathered_start);
  CHOIR_TRY(copy_own(dist, own, stream));
  CHOIR_TRY(
      make_view(dist, dist->gathered_start, dtype, all, columns, out_all));
  char* data = choir_buffer_data(dist->gathered);
  const choir_collective_t collective = {
      .kind = total > 0 ? CHOIR_COLLECTIVE_ALL_GATHER_V
                        : CHOIR_COLLECTIVE_ALL_GATHER,
      .dtype = dtype,
      .count = rows * columns,
      .capacity = all * columns,
      .src = data,
      .dst = data + dist->gathered_start,
      .weight = 1,
      .in_host_memory = choir_device_is_host(dist->device),
      .in_step = true,
      .step = values->step,
      .batch = values->batch_number,
      .name = name};
  const choir_trace_value_t traced = {"of all ranks",
                                      *choir_tensor_view(*out_all)};
  choir__trace_set_results(stream, &traced, 1);
  choir_status_t status =
      choir_comm_submit(dist->layers_comm, stream, &collective);
  choir__dist_opt_trace_nothing(stream);
  if (!status) return NULL;
  choir_tensor_release(*out_all);
  *out_all = NULL;
  return status;
}
