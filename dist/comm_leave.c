// SPDX-License-Identifier: Apache-2.0
// How a rank leaves: it has no more data (comm_join.c has what that means for
// an operation), or the communicator ends on all ranks.
#include "dist/comm_internal.h"

choir_status_t choir_comm_join(choir_comm_t* comm, int32_t* out_last) {
  if (!comm) return CHOIR_ERROR(INVALID_ARGUMENT, "join: comm is NULL");
  if (!out_last)
    return choir__comm_refuse(
        comm, CHOIR_COMM_KIND_UNKNOWN, NULL,
        CHOIR_ERROR(INVALID_ARGUMENT, "join: out_last is NULL"));
  *out_last = -1;
  choir__comm_drain(comm);
  // Set by the operation to which all came joined.
  choir_collective_t request = {.dst = out_last};
  while (*out_last < 0)
    CHOIR_TRY(
        choir__comm_execute(comm, CHOIR_COMM_KIND_JOIN, &request, NULL, true));
  return NULL;
}

choir_status_t choir_comm_finalize(choir_comm_t* comm) {
  if (!comm) return CHOIR_ERROR(INVALID_ARGUMENT, "finalize: comm is NULL");
  if (comm->run.finalized) return NULL;
  choir__comm_drain(comm);
  choir_collective_t nothing = {0};
  for (int i = CHOIR_COMM_LAYER_COUNT - 1; i >= 0; --i)
    if (comm->layers[i]) CHOIR_TRY(comm->layers[i]->vtable->finalize(comm));
  CHOIR_TRY(choir__comm_execute(comm, CHOIR_COMM_KIND_FINALIZE, &nothing, NULL,
                                true));
  comm->run.finalized = true;
  choir__comm_watch_stop(comm);
  if (comm->vtable->finalize) comm->vtable->finalize(comm);
  return NULL;
}
