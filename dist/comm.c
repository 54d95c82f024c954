// SPDX-License-Identifier: Apache-2.0
// How a communicator begins: the choice of its backend, joining, its layers;
// groups of its ranks.
#include "dist/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "dist/comm_internal.h"

// ---- Configuration ----

typedef struct backend_s {
  const char* name;
  choir_comm_join_t join;
  choir_comm_attach_t attach;  // of a layer beside another backend
} backend_t;

static const backend_t backends[] = {
#define CHOIR_COMM_BACKEND(name) {#name, choir_##name##_comm_join, NULL},
#define CHOIR_COMM_PLANE(name) {#name, NULL, choir_##name##_comm_attach},
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
};

static const char* const known_backends = "auto"
#define CHOIR_COMM_BACKEND(name) ", " #name
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
    ;

static const backend_t* find_backend(const char* name) {
  for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); ++i)
    if (!strcmp(backends[i].name, name)) return &backends[i];
  return NULL;
}

static choir_status_t check_config(const choir_comm_config_t* config) {
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm: rank is %d and size is %d; ranks are 0 .. size-1",
                       config->rank, config->size);
  if (!(config->deadline > 0) || isinf(config->deadline))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm: deadline is %g s; it must be above 0",
                       config->deadline);
  if (!(config->silence >= 0))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm: silence is %g s; it must be 0 or more",
                       config->silence);
  if (choir_process_is_forked_child())
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "comm: this process was forked after Choir had started "
                       "threads; start it by exec");
  return NULL;
}

static choir_status_t need_id(const choir_comm_config_t* config) {
  if (choir__comm_id_is_valid(&config->id)) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "comm %s: the id has %zu characters (it is a secret, "
                     "and not shown); %d ranks need the same 32 hexadecimal "
                     "digits (choir_comm_id_make in one of them), or a "
                     "launcher that sets it",
                     config->backend,
                     strnlen(config->id.text, sizeof(config->id.text)),
                     config->size);
}

static choir_status_t choose_tcp(choir_comm_config_t* config) {
  config->backend = "tcp";
  if (config->size == 1) return NULL;
  if (!config->rendezvous[0])
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm tcp: there is no rendezvous; %d ranks need the "
                       "same HOST:PORT (CHOIR_RENDEZVOUS), where rank 0 "
                       "listens while they join",
                       config->size);
  return need_id(config);
}

// Replaces "auto", and finds the id that shm needs where only MPI can.
static choir_status_t choose_backend(choir_comm_config_t* config) {
  bool is_auto = !strcmp(config->backend, "auto");
  bool is_mpi = getenv("OMPI_COMM_WORLD_SIZE") && !config->id.text[0];
  bool is_tcp = !strcmp(config->backend, "tcp");
  bool wants_shm = is_auto || !strcmp(config->backend, "shm");
  if (is_auto && config->size == 1) {
    config->backend = "self";
    return NULL;
  }
  if (is_tcp || (is_auto && config->rendezvous[0])) return choose_tcp(config);
  if (!wants_shm) return NULL;
  if (!config->id.text[0] && config->size == 1)
    return choir_comm_id_make(&config->id);
  if (is_mpi) {
    bool one_host = false;
    CHOIR_TRY(choir_mpi_comm_rendezvous(config, &config->id, &one_host));
    if (!one_host && !is_auto)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "comm shm: the ranks are on several hosts; use mpi");
    config->backend = one_host ? "shm" : "mpi";
    return NULL;
  }
  config->backend = "shm";
  return need_id(config);
}

// ---- Joining ----

static choir_status_t refuse_encryption(const char* backend) {
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "comm %s: it cannot encrypt what goes between hosts "
                     "(CHOIR_TCP_ENCRYPT=1); use tcp",
                     backend);
}

static choir_status_t join_backend(choir_comm_config_t* config,
                                   choir_comm_t** out_comm) {
  const bool is_auto = !strcmp(config->backend, "auto");
  CHOIR_TRY(choose_backend(config));
  CHOIR_TRY(find_backend(config->backend)->join(config, out_comm));
  const bool is_tcp = !strcmp(config->backend, "tcp");
  if (config->encrypt && !is_tcp && (*out_comm)->hosts.count > 1)
    return refuse_encryption(config->backend);
  if (!is_auto || !is_tcp || (*out_comm)->hosts.count > 1) return NULL;
  // Who meet at an address know only then that they are on one host.
  choir_comm_t* met = *out_comm;
  config->backend = "shm";
  choir_status_t status = find_backend("shm")->join(config, out_comm);
  choir_comm_release(met);
  return status;
}

static choir_status_t join(choir_comm_config_t* config,
                           choir_comm_t** out_comm) {
  const backend_t* wanted = find_backend(config->backend);
  if (!wanted || !wanted->attach) return join_backend(config, out_comm);
  config->backend = "auto";
  CHOIR_TRY(join_backend(config, out_comm));
  if (config->encrypt && (*out_comm)->hosts.count > 1)
    return refuse_encryption(wanted->name);
  return wanted->attach(*out_comm, config->device);
}

// After ranks joined: their layers and their watch. Ends the communicator when
// that fails.
static choir_status_t start_up(choir_comm_t** comm, choir_status_t status) {
  // First: the watch looks at the layers.
  if (!status) status = choir__comm_hosts_open(*comm);
  if (!status) status = choir__comm_watch_start(*comm);
  if (!status && (*comm)->layers[CHOIR_COMM_LAYER_PLANE])
    status = (*comm)->layers[CHOIR_COMM_LAYER_PLANE]->vtable->open(*comm);
  if (!status) return NULL;
  choir_comm_release(*comm);
  *comm = NULL;
  return status;
}

choir_status_t choir_comm_create(const choir_comm_config_t* config,
                                 choir_comm_t** out_comm) {
  if (!out_comm) return CHOIR_ERROR(INVALID_ARGUMENT, "comm: out_comm is NULL");
  *out_comm = NULL;
  if (!config) return CHOIR_ERROR(INVALID_ARGUMENT, "comm: config is NULL");
  choir_comm_config_t chosen = *config;
  if (!chosen.backend) chosen.backend = "auto";
  if (chosen.is_newcomer) {
    chosen.backend = "self";
    chosen.rank = 0;
    chosen.size = 1;
  }
  CHOIR_TRY(check_config(&chosen));
  bool is_known =
      !strcmp(chosen.backend, "auto") || find_backend(chosen.backend);
  if (!is_known)
    return CHOIR_ERROR(NOT_FOUND, "comm '%s' is unknown; known are: %s",
                       chosen.backend, known_backends);
  choir_status_t status = join(&chosen, out_comm);
  if (!status) {
    (*out_comm)->id = chosen.id;
    (*out_comm)->is_newcomer = chosen.is_newcomer;
    (*out_comm)->encrypt = chosen.encrypt;
    memcpy((*out_comm)->rendezvous, chosen.rendezvous,
           sizeof(chosen.rendezvous));
  }
  return start_up(out_comm, status);
}

choir_status_t choir_comm_group(choir_comm_t* comm, const int32_t* ranks,
                                int32_t count, choir_comm_t** out_group) {
  choir_status_t status = choir__comm_make_group(comm, ranks, count, out_group);
  if (status || !*out_group) return status;
  const choir_comm_layer_t* plane = comm->layers[CHOIR_COMM_LAYER_PLANE];
  if (plane) status = plane->vtable->group(comm, *out_group);
  return start_up(out_group, status);
}

choir_status_t choir_comm_shutdown(void) { return choir_mpi_world_close(); }
