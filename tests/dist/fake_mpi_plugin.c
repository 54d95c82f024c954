// SPDX-License-Identifier: Apache-2.0
#include "tests/dist/fake_mpi_plugin.h"

#include <stdio.h>
#include <string.h>

#include "dist/backends/mpi/mpi_shim.h"

#define EXPORT __attribute__((visibility("default")))

extern EXPORT fake_mpi_t fake_mpi;
fake_mpi_t fake_mpi;

static int is_initialised;
static int is_over;

// What a request's word points to: `ending`, a receive of a word about the end
// of the program.
static char sent, received, cancelled, ending;

static int is_running(void) { return is_initialised && !is_over; }
static int is_finalized(void) { return is_over; }
static int init(void) {
  is_initialised = 1;
  return 0;
}
static int thread_level(void) { return CHOIR_MPI_THREAD_SERIALIZED; }
static int open_world(int* out_done) {
  *out_done = 1;
  return 0;
}
static int rank(void) { return 0; }
static int size(void) { return 2; }

static int isend(const void* data, int bytes, int peer, int tag,
                 choir_mpi_request_t* out_request) {
  (void)data, (void)bytes, (void)peer, (void)tag;
  out_request->word = &sent;
  return fake_mpi.send_code;
}

static int irecv(void* data, int bytes, int peer, int tag,
                 choir_mpi_request_t* out_request) {
  (void)peer, (void)tag;
  memset(data, 0, (size_t)bytes);
  out_request->word = bytes > 4 ? &received : &ending;
  fake_mpi.open_receives += bytes > 4;
  return 0;
}

static int test(choir_mpi_request_t* request, int* out_done) {
  *out_done = request->word != &ending &&
              !(request->word == &received && fake_mpi.never_receives);
  if (!*out_done || request->word == &sent) return 0;
  --fake_mpi.open_receives;
  return request->word == &received ? fake_mpi.receive_code : 0;
}

static int cancel(choir_mpi_request_t* request) {
  if (request->word == &received) request->word = &cancelled;
  return 0;
}

static int finalize(void) {
  is_over = 1;
  return 0;
}

static void error_text(int code, char* text, int text_bytes) {
  snprintf(text, (size_t)text_bytes, "code %d", code);
}

static const choir_mpi_shim_t shim = {
    .version = CHOIR_MPI_SHIM_VERSION,
    .is_running = is_running,
    .is_finalized = is_finalized,
    .init = init,
    .thread_level = thread_level,
    .open_world = open_world,
    .rank = rank,
    .size = size,
    .isend = isend,
    .irecv = irecv,
    .test = test,
    .cancel = cancel,
    .finalize = finalize,
    .error_text = error_text,
};

EXPORT const choir_mpi_shim_t* choir_mpi_shim(void);
const choir_mpi_shim_t* choir_mpi_shim(void) { return &shim; }
