// SPDX-License-Identifier: Apache-2.0
// What makes ranks equal: tensors are broadcast by rank 0, or averaged, where a
// hash of their bytes says that they differ. Those of a run that begins do not:
// all ranks draw them from one seed, and a slow network is spared their bytes.
#include "core/random.h"
#include "dist/dist_opt_parts_internal.h"

// Where the elements of a dense tensor lie in its device's memory.
void* choir__tensor_bytes(choir_tensor_t* tensor, size_t* out_bytes) {
  const choir_view_t* view = choir_tensor_view(tensor);
  const size_t element = choir_dtype_bytes(view->dtype);
  *out_bytes = (size_t)choir_view_count(view) * element;
  return (char*)choir_buffer_data(view->buffer) +
         (size_t)view->offset * element;
}

// The bytes of a dense tensor for the host: themselves, or a copy that close
// writes up where they were changed.
typedef struct bytes_s {
  choir_buffer_t* buffer;
  size_t offset;
  size_t count;
  void* data;
  bool is_copy;
} bytes_t;

static choir_status_t open_bytes(choir_dist_opt_t* dist, choir_tensor_t* tensor,
                                 bytes_t* out_bytes) {
  const choir_view_t* view = choir_tensor_view(tensor);
  choir_device_t* device = choir_buffer_device(view->buffer);
  bytes_t* bytes = out_bytes;
  *bytes =
      (bytes_t){.buffer = view->buffer,
                .offset = (size_t)view->offset * choir_dtype_bytes(view->dtype),
                .is_copy = !choir_device_is_host(device)};
  bytes->data = choir__tensor_bytes(tensor, &bytes->count);
  if (!bytes->is_copy) return NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, bytes->count, "copy of a tensor",
                           &bytes->data));
  choir_status_t status =
      choir_buffer_read(bytes->buffer, choir_device_stream(device),
                        bytes->offset, bytes->data, bytes->count);
  if (status) choir_deallocate(dist->allocator, bytes->data, bytes->count);
  return status;
}

static choir_status_t close_bytes(choir_dist_opt_t* dist, const bytes_t* bytes,
                                  bool is_changed) {
  if (!bytes->is_copy) return NULL;
  choir_status_t status = NULL;
  if (is_changed)
    status = choir_buffer_write(
        bytes->buffer, choir_device_stream(choir_buffer_device(bytes->buffer)),
        bytes->offset, bytes->data, bytes->count);
  choir_deallocate(dist->allocator, bytes->data, bytes->count);
  return status;
}

// Whether any rank has another hash than rank 0.
static choir_status_t compare_hashes(choir_dist_opt_t* dist, const char* name,
                                     uint64_t hash, bool* out_differ) {
  *out_differ = false;
  CHOIR_TRY(choir_comm_all_gather(dist->comm, &hash, dist->hashes, 1,
                                  CHOIR_DTYPE_I64, name));
  for (int32_t rank = 1; rank < choir_comm_size(dist->comm); ++rank)
    *out_differ |= dist->hashes[rank] != dist->hashes[0];
  return NULL;
}

static choir_status_t broadcast_tensor(choir_dist_opt_t* dist, const char* name,
                                       choir_tensor_t* tensor) {
  bytes_t bytes;
  CHOIR_TRY(open_bytes(dist, tensor, &bytes));
  choir_status_t status = choir_comm_broadcast(
      dist->comm, bytes.data, (int64_t)bytes.count, CHOIR_DTYPE_U8, 0, name);
  return choir_status_join(status, close_bytes(dist, &bytes, !status));
}

// Averages a tensor of floats over ranks where they differ. Equal ones stay as
// they are: a mean of three times the same number is not always that number.
choir_status_t choir__dist_opt_average_tensor(choir_dist_opt_t* dist,
                                              const char* name,
                                              choir_tensor_t* tensor) {
  if (!choir_dtype_is_float(choir_tensor_dtype(tensor))) return NULL;
  bytes_t bytes;
  CHOIR_TRY(open_bytes(dist, tensor, &bytes));
  bool differ = false;
  choir_status_t status = compare_hashes(
      dist, name, choir_hash_bytes(CHOIR_HASH_START, bytes.data, bytes.count),
      &differ);
  if (!status && differ)
    status = choir_comm_all_reduce(
        dist->comm, bytes.data, bytes.data, choir_tensor_count(tensor),
        choir_tensor_dtype(tensor), CHOIR_REDUCE_AVERAGE, name);
  return choir_status_join(status,
                           close_bytes(dist, &bytes, !status && differ));
}

typedef choir_status_t (*visit_state_t)(choir_dist_opt_t* dist,
                                        const char* name,
                                        choir_tensor_t* tensor);
static choir_status_t visit_optimizer_states(choir_dist_opt_t* dist,
                                             visit_state_t visit) {
  const size_t count = choir_optimizer_states(dist->optimizer, NULL);
  if (count == 0) return NULL;
  const size_t bytes = count * sizeof(choir_named_tensor_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, bytes, "state list", &memory));
  choir_named_tensor_t* states = memory;
  choir_optimizer_states(dist->optimizer, states);
  choir_status_t status = NULL;
  for (size_t i = 0; !status && i < count; ++i)
    if (!states[i].shard)
      status = visit(dist, states[i].name, states[i].tensor);
  choir_deallocate(dist->allocator, memory, bytes);
  return status;
}

static choir_status_t hash_params(choir_dist_opt_t* dist, uint64_t* out_hash) {
  *out_hash = CHOIR_HASH_START;
  for (size_t i = 0; i < dist->params->count; ++i) {
    bytes_t bytes;
    CHOIR_TRY(open_bytes(dist, dist->params->params[i]->value, &bytes));
    *out_hash = choir_hash_bytes(*out_hash, bytes.data, bytes.count);
    CHOIR_TRY(close_bytes(dist, &bytes, false));
  }
  return NULL;
}

choir_status_t choir__dist_opt_broadcast_params(choir_dist_opt_t* dist) {
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(dist->device)));
  uint64_t hash = 0;
  bool differ = false;
  CHOIR_TRY(hash_params(dist, &hash));
  CHOIR_TRY(compare_hashes(dist, "parameters", hash, &differ));
  for (size_t i = 0; differ && i < dist->params->count; ++i)
    CHOIR_TRY(broadcast_tensor(dist, dist->params->params[i]->name,
                               dist->params->params[i]->value));
  return NULL;
}

choir_status_t choir__dist_opt_broadcast_states(choir_dist_opt_t* dist) {
  return visit_optimizer_states(dist, broadcast_tensor);
}

choir_status_t choir__dist_opt_average_states(choir_dist_opt_t* dist) {
  return visit_optimizer_states(dist, choir__dist_opt_average_tensor);
}
