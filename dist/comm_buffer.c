// SPDX-License-Identifier: Apache-2.0
// Memory for collectives: the backend's own, or a device's.
#include <string.h>

#include "dist/comm_internal.h"

static void free_own_memory(void* context, void* data) {
  choir_comm_t* comm = context;
  comm->vtable->buffer_free(comm, data);
  choir_comm_release(comm);
}

static choir_status_t wrap_own_memory(choir_comm_t* comm,
                                      choir_device_t* device, size_t bytes,
                                      choir_buffer_t** out_buffer) {
  void* data = comm->vtable->buffer_alloc(comm, bytes);
  if (!data)
    return CHOIR_ERROR(INTERNAL, "buffer_create: no room for %zu bytes", bytes);
  memset(data, 0, bytes);
  choir_comm_retain(comm);
  choir_status_t status =
      choir_buffer_wrap(device, data, bytes, free_own_memory, comm, out_buffer);
  if (status) free_own_memory(comm, data);
  return status;
}

static choir_status_t check_buffer(const choir_device_t* device, size_t bytes,
                                   choir_buffer_t* const* out_buffer) {
  if (!out_buffer)
    return CHOIR_ERROR(INVALID_ARGUMENT, "buffer_create: out_buffer is NULL");
  if (!device)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "buffer_create: device is NULL, and the communicator was "
        "made without one");
  if (bytes == 0 || bytes > (size_t)INT64_MAX / 2)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "buffer_create: %zu bytes; it must be above 0", bytes);
  return NULL;
}

choir_status_t choir_comm_buffer_create(choir_comm_t* comm,
                                        choir_device_t* device, size_t bytes,
                                        choir_buffer_t** out_buffer) {
  if (out_buffer) *out_buffer = NULL;
  if (!comm)
    return CHOIR_ERROR(INVALID_ARGUMENT, "buffer_create: comm is NULL");
  if (!device) device = comm->device;
  const bool is_own_memory =
      comm->vtable->buffer_alloc && (!device || choir_device_is_host(device));
  choir_status_t wrong = check_buffer(device, bytes, out_buffer);
  if (wrong)
    return is_own_memory
               ? choir__comm_refuse(comm, CHOIR_COMM_KIND_BUFFER, NULL, wrong)
               : wrong;
  if (!is_own_memory)
    return choir__comm_buffer_cleared(device, bytes, out_buffer);
  choir__comm_drain(comm);
  ++comm->buffers_made;
  choir_collective_t request = {.count = (int64_t)bytes};
  CHOIR_TRY(
      choir__comm_execute(comm, CHOIR_COMM_KIND_BUFFER, &request, NULL, true));
  return wrap_own_memory(comm, device, bytes, out_buffer);
}
