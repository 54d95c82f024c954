// SPDX-License-Identifier: Apache-2.0
// libchoir_mpi.so: the table of mpi_shim.h over MPI's own calls.
#include <dirent.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "dist/backends/mpi/mpi_shim.h"

_Static_assert(sizeof(MPI_Request) <= sizeof(choir_mpi_request_t),
               "an MPI_Request must fit into a word");

// The two views of a request.
typedef union request_u {
  MPI_Request mpi;
  choir_mpi_request_t shim;
} request_t;

static MPI_Comm world = MPI_COMM_NULL;
static MPI_Comm new_world = MPI_COMM_NULL;
static MPI_Request world_request = MPI_REQUEST_NULL;
static int world_asked;

static int shim_is_running(void) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

static int shim_is_finalized(void) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized;
}

// ---- What differs between versions of Open MPI ----

// 4, 5, ...; 0: another MPI. Of the library that runs: both are libmpi.so.40.
static int open_mpi_major(void) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
  int length = 0, major = 0;
  MPI_Get_library_version(text, &length);
  return sscanf(text, "Open MPI v%d.", &major) == 1 ? major : 0;
}

// Whether this host has an address of IPv4 that others may reach.
static int has_ipv4(void) {
  struct ifaddrs* all = NULL;
  int found = 0;
  if (getifaddrs(&all)) return 0;
  for (const struct ifaddrs* one = all; one && !found; one = one->ifa_next)
    found = one->ifa_addr && one->ifa_addr->sa_family == AF_INET &&
            (one->ifa_flags & IFF_UP) && !(one->ifa_flags & IFF_LOOPBACK);
  freeifaddrs(all);
  return found;
}

// Whether this host has hardware for RDMA, over which Open MPI goes by itself.
static int has_rdma(void) {
  DIR* folder = opendir("/sys/class/infiniband");
  int found = 0;
  if (!folder) return 0;
  for (const struct dirent* one; !found && (one = readdir(folder));)
    found = one->d_name[0] != '.';
  closedir(folder);
  return found;
}

// Settings that the user made stay.
static void set_transports(void) {
  // Open MPI's TCP would send large messages in one piece each, behind which
  // the other direction's go-ahead waits: two ranks that send to each other
  // take turns. In pieces both directions are busy: 1.90 s instead of 2.70 s
  // for an all-reduce of 2 MiB at 10 Mbit/s.
  // $OMPI_MCA_btl_tcp_flags: how Open MPI uses TCP. Not set: send.
  setenv("OMPI_MCA_btl_tcp_flags", "send", 0);
  if (open_mpi_major() < 5) return;
  // Version 5 pairs no interfaces that have addresses of both families ("Unable
  // to find reachable pairing"): it gets IPv4 alone, where there is one.
  // $OMPI_MCA_btl_tcp_disable_family: which addresses Open MPI 5 leaves out.
  // Not set: IPv6 where there is IPv4.
  if (has_ipv4()) setenv("OMPI_MCA_btl_tcp_disable_family", "6", 0);
  // It also ends a rank whose connection to a peer breaks, before the rank can
  // say why; with fault tolerance the call returns an error, as version 4's
  // does. That keeps it from what drives RDMA.
  // $OMPI_MCA_mpi_ft_enable: whether Open MPI 5 detects failures. Not set: 1
  // where there is no RDMA.
  if (!has_rdma()) setenv("OMPI_MCA_mpi_ft_enable", "1", 0);
}

static int shim_init(void) {
  int given = 0;
  set_transports();
  return MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
}

static int shim_thread_level(void) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level >= MPI_THREAD_MULTIPLE) return CHOIR_MPI_THREAD_MULTIPLE;
  if (level >= MPI_THREAD_SERIALIZED) return CHOIR_MPI_THREAD_SERIALIZED;
  return CHOIR_MPI_THREAD_LESS;
}

static int shim_open_world(int* out_done) {
  *out_done = world != MPI_COMM_NULL;
  if (*out_done) return 0;
  if (!world_asked) {
    world_asked = 1;
    int code = MPI_Comm_idup(MPI_COMM_WORLD, &new_world, &world_request);
    if (code) return code;
  }
  int code = MPI_Test(&world_request, out_done, MPI_STATUS_IGNORE);
  if (code || !*out_done) return code;
  world = new_world;
  return MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
}

static int shim_rank(void) {
  int rank = 0;
  MPI_Comm_rank(world, &rank);
  return rank;
}

static int shim_size(void) {
  int size = 0;
  MPI_Comm_size(world, &size);
  return size;
}

// Requests are tested by the caller, which no checker here can see.
// NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)

static int shim_isend(const void* data, int bytes, int peer, int tag,
                      choir_mpi_request_t* out_request) {
  request_t request = {.mpi = MPI_REQUEST_NULL};
  int code = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, world, &request.mpi);
  *out_request = request.shim;
  return code;
}

static int shim_irecv(void* data, int bytes, int peer, int tag,
                      choir_mpi_request_t* out_request) {
  request_t request = {.mpi = MPI_REQUEST_NULL};
  int code = MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, world, &request.mpi);
  *out_request = request.shim;
  return code;
}

// NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)

static int shim_test(choir_mpi_request_t* request, int* out_done) {
  request_t own = {.shim = *request};
  int code = MPI_Test(&own.mpi, out_done, MPI_STATUS_IGNORE);
  *request = own.shim;
  return code;
}

static int shim_cancel(choir_mpi_request_t* request) {
  request_t own = {.shim = *request};
  return own.mpi == MPI_REQUEST_NULL ? 0 : MPI_Cancel(&own.mpi);
}

static int shim_finalize(void) {
  if (world != MPI_COMM_NULL) MPI_Comm_free(&world);
  return MPI_Finalize();
}

static void shim_error_text(int code, char* text, int text_bytes) {
  char own[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, own, &length);
  snprintf(text, (size_t)text_bytes, "%s", own);
}

__attribute__((visibility("default"))) const choir_mpi_shim_t* choir_mpi_shim(
    void);

const choir_mpi_shim_t* choir_mpi_shim(void) {
  static const choir_mpi_shim_t shim = {
      .version = CHOIR_MPI_SHIM_VERSION,
      .is_running = shim_is_running,
      .is_finalized = shim_is_finalized,
      .init = shim_init,
      .thread_level = shim_thread_level,
      .open_world = shim_open_world,
      .rank = shim_rank,
      .size = shim_size,
      .isend = shim_isend,
      .irecv = shim_irecv,
      .test = shim_test,
      .cancel = shim_cancel,
      .finalize = shim_finalize,
      .error_text = shim_error_text,
  };
  return &shim;
}
