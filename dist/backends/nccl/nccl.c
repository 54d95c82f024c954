// SPDX-License-Identifier: Apache-2.0
// Communicators between GPUs, one process for each. Ranks meet, agree on each
// operation and watch each other as on any communicator: by `self`, `shm` or
// `mpi`, which this one has inside and which moves host memory. A GPU's memory
// is moved by NCCL, on the stream that the operation was submitted to, and the
// host waits for none of it.
//
// So nobody is lost on the GPU without a sentence: NCCL never blocks the host
// (its communicator is non-blocking), and the watch thread looks at what the
// GPU was given. When that takes too long, NCCL tells of an error, a peer dies
// or tells a fault, it breaks the communicator, which makes NCCL let go of the
// GPU.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/cuda_backend.h"
#include "core/log.h"
#include "dist/backends/nccl/nccl_internal.h"

// ---- The watch thread ----

static void nccl_poll_faults(choir_comm_t* comm) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  char text[CHOIR_ACTIVITY_TEXT_BYTES];
  const double seconds = choir__nccl_stuck_seconds(plane, text);
  if (seconds == 0 || atomic_load(&comm->faults.broken)) return;
  choir_status_t status = choir__comm_check_peers(comm);
  const choir__nccl_result_t state = choir__nccl_state(plane);
  if (!status && state != CHOIR__NCCL_SUCCESS &&
      state != CHOIR__NCCL_IN_PROGRESS)
    status = choir__nccl_break(comm, state, text);
  if (!status && seconds > comm->deadline)
    status = choir__comm_break(
        comm, CHOIR_STATUS_TIMEOUT,
        "the GPU of %s waited %.1f s in %s for those of the other ranks",
        comm->peers[comm->rank].text, seconds, text);
  choir_status_free(status);
}

// Any thread, when the communicator broke.
static void nccl_abort(choir_comm_t* comm) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  pthread_mutex_lock(&plane->lock);
  if (plane->handle) {
    choir_status_t status = choir__cuda_begin(plane->device);
    if (!status) {
      (void)plane->nccl->ncclCommAbort(plane->handle);
      choir__cuda_end(plane->device);
    }
    choir_status_free(status);
  }
  plane->handle = NULL;
  pthread_mutex_unlock(&plane->lock);
}

// ---- Start ----

// What each rank tells the others before NCCL starts.
typedef struct report_s {
  int32_t code;  // of why it cannot
  int32_t version;
  char text[240];
  choir__nccl_id_t id;  // rank 0's counts
} report_t;

static choir_status_t open_device(choir_comm_t* comm) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  if (plane->device) return NULL;
  const choir_device_options_t options = {.threads = 1,
                                          .index = choir_comm_local_rank(comm)};
  return choir_device_create("cuda", &options, &plane->device);
}

static choir_status_t check_start(const choir__nccl_library_t* nccl,
                                  choir__nccl_result_t result) {
  if (result == CHOIR__NCCL_SUCCESS) return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "comm nccl: NCCL does not start: %s",
                     nccl->ncclGetErrorString(result));
}

choir_status_t choir_comm_nccl_version(int32_t* out_version) {
  *out_version = 0;
  const choir__nccl_library_t* nccl = NULL;
  CHOIR_TRY(choir__nccl_library(&nccl));
  return check_start(nccl, nccl->ncclGetVersion(out_version));
}

// All that this rank can do alone.
static choir_status_t prepare(choir_comm_t* comm, report_t* report) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  CHOIR_TRY(choir__nccl_library(&plane->nccl));
  CHOIR_TRY(open_device(comm));
  CHOIR_TRY(choir_comm_nccl_version(&report->version));
  if (comm->rank != 0) return NULL;
  return check_start(plane->nccl, plane->nccl->ncclGetUniqueId(&report->id));
}

static choir_status_t compare(const choir_comm_t* comm,
                              const report_t* reports) {
  for (int32_t r = 0; r < comm->size; ++r)
    if (reports[r].code)
      return choir_status_make((choir_status_code_t)reports[r].code, __FILE__,
                               __LINE__, __func__, "%s: %s",
                               comm->peers[r].text, reports[r].text);
  for (int32_t r = 1; r < comm->size; ++r)
    if (reports[r].version != reports[0].version)
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "comm nccl: rank 0 has NCCL %d, %s has %d; all ranks "
                         "need the same",
                         reports[0].version, comm->peers[r].text,
                         reports[r].version);
  return NULL;
}

// With the device's context current.
static choir_status_t start(choir_comm_t* comm, const choir__nccl_id_t* id) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  choir__nccl_config_t config = {.size = sizeof(config),
                                 .magic = CHOIR__NCCL_CONFIG_MAGIC,
                                 .version = CHOIR__NCCL_CONFIG_VERSION,
                                 .blocking = 0};
  choir_threads_started();
  pthread_mutex_lock(&plane->lock);
  const choir__nccl_result_t result = plane->nccl->ncclCommInitRankConfig(
      &plane->handle, comm->size, *id, comm->rank, &config);
  pthread_mutex_unlock(&plane->lock);
  if (result != CHOIR__NCCL_SUCCESS && result != CHOIR__NCCL_IN_PROGRESS)
    return choir__nccl_break(comm, result, "its start");
  return choir__nccl_await(comm, "to start");
}

static choir_status_t start_on_device(choir_comm_t* comm,
                                      const choir__nccl_id_t* id) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  CHOIR_TRY(choir__cuda_begin(plane->device));
  choir_status_t status = start(comm, id);
  choir__cuda_end(plane->device);
  return status;
}

static choir_status_t nccl_open(choir_comm_t* comm) {
  report_t own = {0};
  choir_status_t failure = prepare(comm, &own);
  own.code = (int32_t)choir_status_code(failure);
  if (failure)
    snprintf(own.text, sizeof(own.text), "%s", choir_status_message(failure));
  void* all = NULL;
  const size_t bytes = sizeof(own) * (size_t)comm->size;
  choir_status_t status =
      choir_allocate(comm->allocator, bytes, "the start of NCCL", &all);
  if (!status)
    status = choir_comm_all_gather(comm, &own, all, sizeof(own), CHOIR_DTYPE_U8,
                                   "the start of NCCL");
  if (!status && !failure) status = compare(comm, all);
  if (!status && !failure)
    status = start_on_device(comm, &((const report_t*)all)->id);
  choir_deallocate(comm->allocator, all, bytes);
  // Operations count from 1 for the program.
  comm->run.sequence = 0;
  if (!failure) return status;
  choir_status_free(status);
  return failure;
}

// ---- Operations and the end ----

// A GPU's memory is NCCL's to move; of other devices it goes over the host.
static bool nccl_takes(const choir_comm_t* comm,
                       const choir_comm_operation_t* operation, char* reason) {
  choir_device_t* device = choir_stream_device(operation->stream);
  if (strcmp(choir_device_name(device), "cuda") != 0) return false;
  const char* own = choir__cuda_who(choir__nccl_plane(comm)->device);
  const char* given = choir__cuda_who(device);
  if (strcmp(own, given) != 0)
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "the stream is of %s; the communicator's GPU is %s", given, own);
  return true;
}

static choir_status_t end(choir_comm_t* comm) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  pthread_mutex_lock(&plane->lock);
  const choir__nccl_result_t result =
      plane->handle ? plane->nccl->ncclCommFinalize(plane->handle)
                    : CHOIR__NCCL_SUCCESS;
  pthread_mutex_unlock(&plane->lock);
  if (result != CHOIR__NCCL_SUCCESS && result != CHOIR__NCCL_IN_PROGRESS)
    return choir__nccl_break(comm, result, "its end");
  CHOIR_TRY(choir__nccl_await(comm, "to end"));
  pthread_mutex_lock(&plane->lock);
  const choir__nccl_result_t destroyed =
      plane->handle ? plane->nccl->ncclCommDestroy(plane->handle)
                    : CHOIR__NCCL_SUCCESS;
  plane->handle = NULL;
  pthread_mutex_unlock(&plane->lock);
  // All work is done: nothing is lost.
  if (destroyed != CHOIR__NCCL_SUCCESS && destroyed != CHOIR__NCCL_IN_PROGRESS)
    choir_log(CHOIR_LOG_WARNING, "dist",
              "comm nccl: NCCL's communicator was not released: %s",
              plane->nccl->ncclGetErrorString(destroyed));
  return NULL;
}

static choir_status_t nccl_finalize(choir_comm_t* comm) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  // Nobody ends it before all are here, or leaves before all have.
  const choir_collective_t nothing = {0};
  CHOIR_TRY(choir__comm_execute(comm, CHOIR_COMM_KIND_FINALIZE, &nothing, NULL,
                                true));
  CHOIR_TRY(choir__nccl_await_pending(comm, 0));
  CHOIR_TRY(choir__cuda_begin(plane->device));
  choir_status_t status = end(comm);
  choir__cuda_end(plane->device);
  return status;
}

static void nccl_destroy(choir_comm_t* comm) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  nccl_abort(comm);
  for (int32_t i = 0; i < NCCL_PENDING; ++i)
    choir__nccl_forget_events(&plane->pending[i]);
  choir_buffer_release(plane->zeros);
  choir_device_release(plane->device);
  pthread_mutex_destroy(&plane->lock);
  choir_deallocate(plane->allocator, plane, sizeof(*plane));
  comm->layers[CHOIR_COMM_LAYER_PLANE] = NULL;
}

static choir_status_t nccl_give(choir_comm_t* comm, choir_device_t* device);

static choir_status_t nccl_group(const choir_comm_t* comm,
                                 choir_comm_t* group) {
  return nccl_give(group, choir__nccl_plane(comm)->device);
}

static const choir_comm_layer_vtable_t nccl_vtable = {
    .name = "nccl",
    .open = nccl_open,
    .takes = nccl_takes,
    .run = choir__nccl_run,
    .poll_faults = nccl_poll_faults,
    .abort = nccl_abort,
    .finalize = nccl_finalize,
    .group = nccl_group,
    .destroy = nccl_destroy,
};

static choir_status_t nccl_give(choir_comm_t* comm, choir_device_t* device) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(comm->allocator, sizeof(nccl_plane_t),
                           "communicator nccl", &memory));
  nccl_plane_t* plane = memory;
  plane->base.vtable = &nccl_vtable;
  plane->allocator = comm->allocator;
  pthread_mutex_init(&plane->lock, NULL);
  choir_device_retain(device);
  plane->device = device;
  comm->layers[CHOIR_COMM_LAYER_PLANE] = &plane->base;
  return NULL;
}

choir_status_t choir_nccl_comm_attach(choir_comm_t* comm,
                                      choir_device_t* device) {
  if (device && strcmp(choir_device_name(device), "cuda") != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm nccl: device is %s; a GPU, cuda, is needed",
                       choir_device_name(device));
  return nccl_give(comm, device);
}
