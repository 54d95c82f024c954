// SPDX-License-Identifier: Apache-2.0
// Settings that all ranks must share.
#include <stdio.h>
#include <string.h>

#include "core/random.h"
#include "core/status_backend.h"
#include "dist/comm_internal.h"

// What a rank has: all of it as a hash, and what a message can show of it.
typedef struct setting_s {
  uint64_t hash;
  char text[120];
} setting_t;

static choir_status_t compare(const choir_comm_t* comm, const char* what,
                              const setting_t* settings) {
  for (int32_t rank = 1; rank < comm->size; ++rank)
    if (settings[rank].hash != settings[0].hash)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: rank 0 has '%s', rank %d has '%s'; all ranks "
                         "need the same",
                         what, settings[0].text, rank, settings[rank].text);
  return NULL;
}

choir_status_t choir_comm_check_same(choir_comm_t* comm, const char* what,
                                     const char* text) {
  setting_t own = {choir_hash_bytes(CHOIR_HASH_START, text, strlen(text)), ""};
  snprintf(own.text, sizeof(own.text), "%s", text);
  const size_t bytes = sizeof(own) * (size_t)comm->size;
  void* all = NULL;
  choir_status_t status =
      choir_allocate(comm->allocator, bytes, "settings of ranks", &all);
  if (status)
    return choir__comm_refuse(comm, CHOIR_COLLECTIVE_ALL_GATHER,
                              &(choir_collective_t){.name = what}, status);
  status =
      choir_comm_all_gather(comm, &own, all, sizeof(own), CHOIR_DTYPE_U8, what);
  if (!status)
    status = choir__status_mark_shared(compare(comm, what, all), comm);
  choir_deallocate(comm->allocator, all, bytes);
  return status;
}
