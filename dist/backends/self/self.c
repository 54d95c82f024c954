// SPDX-License-Identifier: Apache-2.0
// One rank: an exchange shows a rank its own message.
#include "dist/comm_internal.h"

enum { EXCHANGE_BYTES = 16256 };

typedef struct self_comm_s {
  choir_comm_t base;
  _Alignas(
      64) unsigned char message[sizeof(choir_comm_message_t) + EXCHANGE_BYTES];
} self_comm_t;

static void self_destroy(choir_comm_t* comm) { choir__comm_deallocate(comm); }

static choir_comm_message_t* self_stage(choir_comm_t* comm) {
  return (choir_comm_message_t*)(void*)((self_comm_t*)comm)->message;
}

static choir_status_t self_exchange(choir_comm_t* comm, size_t bytes) {
  (void)bytes;
  comm->messages[0] = self_stage(comm);
  return NULL;
}

static const choir_comm_vtable_t self_vtable = {
    .name = "self",
    .destroy = self_destroy,
    .stage = self_stage,
    .exchange = self_exchange,
};

choir_status_t choir_self_comm_join(const choir_comm_config_t* config,
                                    choir_comm_t** out_comm) {
  *out_comm = NULL;
  if (config->size != 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm self: size is %d; it takes one rank, use shm or "
                       "mpi for more",
                       config->size);
  CHOIR_TRY(choir__comm_allocate(&self_vtable, sizeof(self_comm_t), config,
                                 out_comm));
  choir_comm_t* comm = *out_comm;
  comm->sizes.exchange = EXCHANGE_BYTES;
  choir__comm_identify(config, &comm->peers[0].identity);
  choir__comm_map_hosts(comm);
  return NULL;
}
