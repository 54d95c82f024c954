// SPDX-License-Identifier: Apache-2.0
// The link between ranks, measured.
#include "core/clock.h"
#include "dist/comm_shared_def.h"
#include "dist/plan.h"

// Messages grow until one exchange takes this long: then what a link holds back
// in its buffers does not matter any more.
#define LONG_ENOUGH 0.4
enum {
  SMALL = 64,  // bytes
  SMALL_ROUNDS = 20,
  FIRST = 65536,  // and four times the one before
  LARGEST = 16777216,
  // In messages of at most so much, as every rank has memory for those of all.
  PART = 1048576,
};

static choir_status_t time_gather(choir_comm_t* comm, const void* src,
                                  void* dst, int64_t bytes, int rounds,
                                  double* out_seconds) {
  CHOIR_TRY(choir_comm_barrier(comm, "link"));
  const double start = choir_clock_seconds();
  for (int i = 0; i < rounds; ++i)
    CHOIR_TRY(choir_comm_all_gather(comm, src, dst, bytes, CHOIR_DTYPE_U8,
                                    "measure the link"));
  *out_seconds = (choir_clock_seconds() - start) / rounds;
  return choir_comm_all_reduce(comm, out_seconds, out_seconds, 1,
                               CHOIR_DTYPE_F64, CHOIR_REDUCE_MAX, "link");
}

static choir_status_t measure(choir_comm_t* comm, const void* src, void* dst,
                              choir_link_t* link) {
  CHOIR_TRY(time_gather(comm, src, dst, SMALL, SMALL_ROUNDS, &link->latency));
  for (int64_t bytes = FIRST;; bytes *= 4) {
    const int64_t part = bytes < PART ? bytes : PART;
    const int rounds = (int)(bytes / part);
    double seconds = 0;
    CHOIR_TRY(time_gather(comm, src, dst, part, rounds, &seconds));
    if (rounds * seconds < LONG_ENOUGH && bytes < LARGEST) continue;
    const double moving = seconds - link->latency;
    link->bytes_per_second =
        (double)part * (link->ranks - 1) / (moving > 1e-9 ? moving : 1e-9);
    return NULL;
  }
}

choir_status_t choir_link_measure(choir_comm_t* comm, choir_link_t* out_link) {
  *out_link = (choir_link_t){.ranks = choir_comm_size(comm)};
  if (out_link->ranks == 1) return NULL;
  const choir_allocator_t allocator = choir_allocator_default();
  const size_t bytes = (size_t)PART * (size_t)(out_link->ranks + 1);
  void* memory = NULL;
  choir_status_t status = choir_allocate(allocator, bytes, "messages", &memory);
  // The others are at their first barrier.
  if (status)
    return choir__comm_refuse(comm, CHOIR_COLLECTIVE_BARRIER,
                              &(choir_collective_t){.name = "link"}, status);
  status = measure(comm, memory, (char*)memory + PART, out_link);
  choir_deallocate(allocator, memory, bytes);
  return status;
}
