// SPDX-License-Identifier: Apache-2.0
// Each rank's text goes to all by broadcast, in turn and in pieces, so that
// nobody holds more than one piece; rank 0 hands them to its writer.
#include "dist/timeline.h"

#include <stdio.h>
#include <string.h>

#include "core/allocator.h"
#include "core/clock.h"
#include "dist/comm_shared_def.h"

enum { PIECE_BYTES = 64 * 1024, CLOCK_ROUNDS = 9 };

typedef struct timeline_s {
  choir_comm_t* comm;
  const choir_profile_t* profile;
  choir_text_writer_t writer;
  void* self;
  int32_t rank;
  double zero;  // on this rank's clock
  char* piece;
  size_t filled;
  int64_t length;          // of this rank's text
  choir_status_t failure;  // of rank 0's writer
} timeline_t;

// ---- Clocks ----

static void sort(double* values, int count) {
  for (int i = 1; i < count; ++i) {
    const double value = values[i];
    int k = i;
    for (; k > 0 && values[k - 1] > value; --k) values[k] = values[k - 1];
    values[k] = value;
  }
}

// How far this rank's clock is ahead of rank 0's.
static choir_status_t measure_offset(choir_comm_t* comm, double* out_offset) {
  *out_offset = 0;
  if (choir_comm_host_count(comm) == 1) return NULL;
  double offsets[CLOCK_ROUNDS];
  for (int i = 0; i < CLOCK_ROUNDS; ++i) {
    CHOIR_TRY(choir_comm_barrier(comm, "clocks"));
    const double own = choir_clock_seconds();
    double first = own;
    CHOIR_TRY(choir_comm_broadcast(comm, &first, 1, CHOIR_DTYPE_F64, 0,
                                   "clock of rank 0"));
    offsets[i] = own - first;
  }
  // Hosts are numbered by their lowest rank: the first is rank 0's.
  if (choir_comm_host_index(comm) == 0) return NULL;
  sort(offsets, CLOCK_ROUNDS);
  *out_offset = offsets[CLOCK_ROUNDS / 2];
  return NULL;
}

// The first event of all ranks is at 0.
static choir_status_t find_zero(timeline_t* timeline) {
  const choir_profile_totals_t totals = choir_profile_totals(timeline->profile);
  timeline->zero = totals.first_seconds;
  if (!timeline->comm) return NULL;
  double offset;
  CHOIR_TRY(measure_offset(timeline->comm, &offset));
  // A rank without events has none to show.
  double first = totals.events ? totals.first_seconds - offset : 1e300;
  CHOIR_TRY(choir_comm_all_reduce(timeline->comm, &first, &first, 1,
                                  CHOIR_DTYPE_F64, CHOIR_REDUCE_MIN,
                                  "start of the timeline"));
  timeline->zero = first + offset;
  return NULL;
}

// ---- Texts ----

static void write_out(timeline_t* timeline, const char* text, size_t bytes) {
  if (timeline->rank == 0 && !timeline->failure)
    timeline->failure = timeline->writer(timeline->self, text, bytes);
}

static choir_status_t count_text(void* self, const char* text, size_t bytes) {
  (void)text;
  ((timeline_t*)self)->length += (int64_t)bytes;
  return NULL;
}

// Collective over the piece's bytes.
static choir_status_t share_piece(timeline_t* timeline, int32_t root,
                                  size_t bytes) {
  if (timeline->comm)
    CHOIR_TRY(choir_comm_broadcast(timeline->comm, timeline->piece,
                                   (int64_t)bytes, CHOIR_DTYPE_U8, root,
                                   "timeline"));
  write_out(timeline, timeline->piece, bytes);
  return NULL;
}

static choir_status_t send_text(void* self, const char* text, size_t bytes) {
  timeline_t* timeline = self;
  while (bytes > 0) {
    const size_t room = PIECE_BYTES - timeline->filled;
    const size_t part = bytes < room ? bytes : room;
    memcpy(timeline->piece + timeline->filled, text, part);
    timeline->filled += part;
    text += part;
    bytes -= part;
    if (timeline->filled < PIECE_BYTES) continue;
    timeline->filled = 0;
    CHOIR_TRY(share_piece(timeline, timeline->rank, PIECE_BYTES));
  }
  return NULL;
}

static choir_status_t write_events(timeline_t* timeline,
                                   choir_text_writer_t writer) {
  char name[128] = "rank 0";
  if (timeline->comm)
    snprintf(name, sizeof(name), "%s",
             choir_comm_peer(timeline->comm, timeline->rank));
  return choir_profile_write_events(timeline->profile, timeline->rank, name,
                                    timeline->zero, writer, timeline);
}

static choir_status_t share_text(timeline_t* timeline, int32_t root) {
  int64_t length = timeline->length;
  if (timeline->comm)
    CHOIR_TRY(choir_comm_broadcast(timeline->comm, &length, 1, CHOIR_DTYPE_I64,
                                   root, "length of a timeline"));
  const size_t rest = (size_t)(length % PIECE_BYTES);
  if (timeline->rank == root) {
    CHOIR_TRY(write_events(timeline, send_text));
  } else {
    for (int64_t i = 0; i < length / PIECE_BYTES; ++i)
      CHOIR_TRY(share_piece(timeline, root, PIECE_BYTES));
  }
  return rest ? share_piece(timeline, root, rest) : NULL;
}

static choir_status_t write_all(timeline_t* timeline) {
  static const char begin[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  static const char end[] = "\n]}\n";
  CHOIR_TRY(find_zero(timeline));
  CHOIR_TRY(write_events(timeline, count_text));
  write_out(timeline, begin, strlen(begin));
  const int32_t size = timeline->comm ? choir_comm_size(timeline->comm) : 1;
  for (int32_t root = 0; root < size; ++root) {
    if (root > 0) write_out(timeline, ",\n", 2);
    CHOIR_TRY(share_text(timeline, root));
  }
  write_out(timeline, end, strlen(end));
  return NULL;
}

choir_status_t choir_timeline_write(choir_comm_t* comm,
                                    const choir_profile_t* profile,
                                    choir_text_writer_t writer, void* self) {
  const int32_t rank = comm ? choir_comm_rank(comm) : 0;
  const choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  choir_status_t status =
      profile && (rank > 0 || writer)
          ? choir_allocate(allocator, PIECE_BYTES, "a timeline", &memory)
          : CHOIR_ERROR(INVALID_ARGUMENT, "timeline_write: %s is NULL",
                        profile ? "writer" : "profile");
  if (status)
    return comm ? choir__comm_refuse(comm, CHOIR_COLLECTIVE_ALL_REDUCE,
                                     &(choir_collective_t){.name = "timeline"},
                                     status)
                : status;
  timeline_t timeline = {.comm = comm,
                         .profile = profile,
                         .writer = writer,
                         .self = self,
                         .rank = rank,
                         .piece = memory};
  status = write_all(&timeline);
  choir_deallocate(allocator, memory, PIECE_BYTES);
  return choir_status_join(status, timeline.failure);
}
