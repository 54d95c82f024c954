// SPDX-License-Identifier: Apache-2.0
// What the environment of a rank says: by Choir's own names, Open MPI's,
// torchrun's or Slurm's.
#include <errno.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "dist/board_internal.h"
#include "dist/comm_internal.h"
#include "dist/comm_mac_internal.h"

choir_status_t choir_comm_id_make(choir_comm_id_t* out_id) {
  if (!out_id) return CHOIR_ERROR(INVALID_ARGUMENT, "comm_id_make: NULL");
  memset(out_id, 0, sizeof(*out_id));
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
    return CHOIR_ERROR(UNAVAILABLE, "comm_id_make: no random numbers: %s",
                       strerror(errno));
  sodium_bin2hex(out_id->text, sizeof(out_id->text), bytes, sizeof(bytes));
  return NULL;
}

bool choir__comm_id_is_valid(const choir_comm_id_t* id) {
  return strnlen(id->text, sizeof(id->text)) == sizeof(id->text) - 1 &&
         strspn(id->text, "0123456789abcdefABCDEF") == sizeof(id->text) - 1;
}

static bool is_set(const char* text) { return text && text[0]; }

static choir_status_t read_integer(const char* name, bool* out_set,
                                   int32_t* out_value) {
  const char* text = getenv(name);
  *out_set = is_set(text);
  *out_value = 0;
  if (!*out_set) return NULL;
  char* end = NULL;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || *end || value < 0 || value > INT32_MAX)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "environment: %s is '%s'; it must be a whole number",
                       name, text);
  *out_value = (int32_t)value;
  return NULL;
}

// Reads a pair of variables; fails when one of them is missing or they do not
// fit together.
static choir_status_t read_world(const char* rank_name, const char* size_name,
                                 bool* out_set, int32_t* out_rank,
                                 int32_t* out_size) {
  bool has_size = false;
  CHOIR_TRY(read_integer(rank_name, out_set, out_rank));
  CHOIR_TRY(read_integer(size_name, &has_size, out_size));
  if (*out_set != has_size)
    return CHOIR_ERROR(
        INVALID_ARGUMENT, "environment: %s is set but %s is not; both or none",
        *out_set ? rank_name : size_name, *out_set ? size_name : rank_name);
  if (*out_set && *out_rank >= *out_size)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "environment: %s is %d and %s is %d; ranks are 0 .. "
                       "size-1",
                       rank_name, *out_rank, size_name, *out_size);
  return NULL;
}

// The first host of a list as Slurm writes it: "a1,b2" or "a[1-3,7],b2".
static void first_host(const char* list, char* host, size_t room) {
  size_t length = 0;
  while (*list && *list != ',' && length + 1 < room) {
    if (*list != '[') {
      host[length++] = *list++;
      continue;
    }
    const size_t first = strcspn(list + 1, "-,]");
    for (size_t i = 1; i <= first && length + 1 < room; ++i)
      host[length++] = list[i];
    list += strcspn(list, "]");
    if (*list) ++list;
  }
  host[length] = 0;
}

// Ranks of a step of Slurm's meet on its first node, where rank 0 is.
static choir_status_t slurm_rendezvous(char* text, size_t room,
                                       int* out_length) {
  // $SLURM_STEP_NODELIST: the nodes of srun's step; rank 0 is on the first one.
  // $SLURM_STEP_RESV_PORTS: ports that `srun --resv-ports` keeps free; ranks
  // meet at the first. Not set: at one of 20000 to 31999 that follows from
  // SLURM_JOB_ID and SLURM_STEP_ID.
  // $SLURM_JOB_ID: the number of Slurm's job.
  // $SLURM_STEP_ID: that of srun's step in it.
  char host[256];
  bool is_given;
  int32_t job, step;
  const char* nodes = getenv("SLURM_STEP_NODELIST");
  if (!is_set(nodes)) return NULL;
  first_host(nodes, host, sizeof(host));
  CHOIR_TRY(read_integer("SLURM_JOB_ID", &is_given, &job));
  CHOIR_TRY(read_integer("SLURM_STEP_ID", &is_given, &step));
  long port = 20000 + (long)((31 * (uint64_t)job + (uint64_t)step) % 12000);
  const char* ports = getenv("SLURM_STEP_RESV_PORTS");
  if (is_set(ports)) port = strtol(ports, NULL, 10);  // "13001-13002"
  if (port < 1 || port > 65535)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "environment: SLURM_STEP_RESV_PORTS is '%s'; it must "
                       "begin with a port",
                       ports);
  *out_length = snprintf(text, room, "%s:%ld", host, port);
  return NULL;
}

static choir_status_t read_rendezvous(choir_comm_config_t* config,
                                      bool is_slurm) {
  // $CHOIR_RENDEZVOUS: HOST:PORT at which ranks meet over tcp: rank 0 listens
  // there, and the others come. Not set: MASTER_ADDR and MASTER_PORT, else
  // what Slurm tells.
  // $MASTER_ADDR: the host of rank 0, as torchrun tells it. Not set: tcp cannot
  // be used.
  // $MASTER_PORT: a port there; set with MASTER_ADDR. Ranks meet at the next
  // one, as torchrun itself may listen at this.
  const size_t room = sizeof(config->rendezvous);
  int length = 0;
  if (is_set(getenv("CHOIR_RENDEZVOUS"))) {
    length =
        snprintf(config->rendezvous, room, "%s", getenv("CHOIR_RENDEZVOUS"));
  } else if (is_set(getenv("MASTER_ADDR")) && is_set(getenv("MASTER_PORT"))) {
    bool is_given;
    int32_t port;
    CHOIR_TRY(read_integer("MASTER_PORT", &is_given, &port));
    length = snprintf(config->rendezvous, room, "%s:%d", getenv("MASTER_ADDR"),
                      port + 1);
  } else if (is_slurm) {
    CHOIR_TRY(slurm_rendezvous(config->rendezvous, room, &length));
  }
  // $CHOIR_RENDEZVOUS_FD: the number of a socket that listens at the rendezvous
  // address, which rank 0 got from the launcher that opened it. Not set: rank 0
  // opens it.
  bool is_inherited;
  CHOIR_TRY(read_integer("CHOIR_RENDEZVOUS_FD", &is_inherited,
                         &config->rendezvous_fd));
  if (length >= 0 && (size_t)length < room) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "environment: the rendezvous has %d characters; "
                     "HOST:PORT of up to %zu is needed",
                     length, room - 1);
}

// Ranks of different starts of a run do not know each other's id.
static choir_status_t renew_id(choir_comm_id_t* id) {
  bool is_told;
  int32_t generation;
  // $CHOIR_GENERATION: which start of a run this is, from 0 on, where all have
  // one CHOIR_COMM_ID: what is left of another start is not let in. Not set:
  // TORCHELASTIC_RESTART_COUNT, else 0.
  CHOIR_TRY(read_integer("CHOIR_GENERATION", &is_told, &generation));
  // $TORCHELASTIC_RESTART_COUNT: how often torchrun has started the ranks anew.
  if (!is_told)
    CHOIR_TRY(
        read_integer("TORCHELASTIC_RESTART_COUNT", &is_told, &generation));
  if (generation == 0 || !id->text[0]) return NULL;
  choir__comm_mac_t mac;
  CHOIR_TRY(choir__comm_mac_make(id, "generation", &generation,
                                 sizeof(generation), &mac));
  for (size_t i = 0; i < sizeof(id->text) / 2; ++i)
    snprintf(id->text + 2 * i, 3, "%02x", mac.bytes[i]);
  return NULL;
}

choir_status_t choir_comm_config_init(choir_comm_config_t* out_config) {
  if (!out_config)
    return CHOIR_ERROR(INVALID_ARGUMENT, "comm_config_init: NULL");
  memset(out_config, 0, sizeof(*out_config));
  out_config->backend = "auto";
  out_config->size = 1;
  out_config->deadline = 60;
  out_config->segment_bytes = 4u << 20;
  bool is_told, is_mpi;  // by a launcher's names; by Open MPI's
  int32_t rank, size, mpi_rank, mpi_size;
  // $CHOIR_RANK: this rank, 0 to size - 1; launchers set it. Not set: Open
  // MPI's rank, else RANK, else SLURM_PROCID, else 0.
  // $CHOIR_SIZE: how many ranks there are; set with CHOIR_RANK or not at all.
  // Not set: Open MPI's, else WORLD_SIZE, else SLURM_STEP_NUM_TASKS, else 1.
  // $OMPI_COMM_WORLD_RANK: Open MPI's rank; a CHOIR_RANK beside it has to be
  // the same.
  // $OMPI_COMM_WORLD_SIZE: Open MPI's number of ranks. Set: mpiexec started the
  // program.
  CHOIR_TRY(read_world("CHOIR_RANK", "CHOIR_SIZE", &is_told, &rank, &size));
  CHOIR_TRY(read_world("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &is_mpi,
                       &mpi_rank, &mpi_size));
  if (is_told && is_mpi && (rank != mpi_rank || size != mpi_size))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "environment: CHOIR_RANK and CHOIR_SIZE say rank %d of "
                       "%d, Open MPI's variables say rank %d of %d; start "
                       "under one launcher only",
                       rank, size, mpi_rank, mpi_size);
  // $RANK: where MASTER_ADDR is set too, this rank, as torchrun tells it.
  // $WORLD_SIZE: how many ranks there are; set with RANK.
  if (!is_told && !is_mpi && is_set(getenv("MASTER_ADDR")) &&
      (is_set(getenv("RANK")) || is_set(getenv("WORLD_SIZE"))))
    CHOIR_TRY(read_world("RANK", "WORLD_SIZE", &is_told, &rank, &size));
  // $SLURM_STEP_NUM_TASKS: how many ranks srun has started. Set: this is one,
  // unless another launcher's names are set.
  // $SLURM_PROCID: which one of them this is.
  const bool is_slurm =
      !is_told && !is_mpi && is_set(getenv("SLURM_STEP_NUM_TASKS"));
  if (is_slurm)
    CHOIR_TRY(read_world("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &is_told,
                         &rank, &size));
  if (is_told || is_mpi) {
    out_config->rank = is_told ? rank : mpi_rank;
    out_config->size = is_told ? size : mpi_size;
  }
  CHOIR_TRY(read_rendezvous(out_config, is_slurm));
  // $CHOIR_COMM: the communicator: auto, self, shm, tcp, mpi or nccl. Not set:
  // auto, which is self for one rank, shm where all ranks are on one host, tcp
  // where there is a rendezvous, else mpi.
  // $CHOIR_COMM_ID: 32 hexadecimal digits, the same on all ranks, which are the
  // secret of the run (docs/trust.md). Not set: shm with several ranks
  // fails, unless Open MPI started them.
  const char* backend = getenv("CHOIR_COMM");
  if (is_set(backend)) out_config->backend = backend;
  // $CHOIR_TCP_ENCRYPT: 1: ranks encrypt what they send each other over tcp, by
  // keys of each connection (docs/trust.md). 0 or not set: they do not.
  const char* encrypt = getenv("CHOIR_TCP_ENCRYPT");
  if (is_set(encrypt) && strcmp(encrypt, "0") != 0 && strcmp(encrypt, "1") != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "environment: CHOIR_TCP_ENCRYPT is '%s'; it must be 0 "
                       "or 1",
                       encrypt);
  out_config->encrypt = is_set(encrypt) && encrypt[0] == '1';
  const char* id = getenv("CHOIR_COMM_ID");
  if (is_set(id)) {
    if (strlen(id) < sizeof(out_config->id.text))
      memcpy(out_config->id.text, id, strlen(id) + 1);
    if (!choir__comm_id_is_valid(&out_config->id))
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "environment: CHOIR_COMM_ID has %zu characters (it is "
                         "a secret, and not shown); it must be 32 hexadecimal "
                         "digits",
                         strlen(id));
  }
  // $CHOIR_NEWCOMER: 1: this worker comes to an elastic run that is under way;
  // launchers set it. Not set: Choir's own launcher says it on its board.
  bool is_given;
  int32_t is_newcomer;
  CHOIR_TRY(read_integer("CHOIR_NEWCOMER", &is_given, &is_newcomer));
  const choir_board_slot_t* slot = choir__board_slot();
  out_config->is_newcomer =
      is_newcomer == 1 || (slot && atomic_load(&slot->restarts) > 0);
  return renew_id(&out_config->id);
}
