// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMM_INTERNAL_H_
#define CHOIR_DIST_COMM_INTERNAL_H_

#include "core/record.h"
#include "dist/comm_backend.h"
#include "dist/comm_shared_def.h"

// What the sources of dist:comm share beyond what backends may call.

#define CHOIR_COMM_REASON_BYTES 200

// collective_kinds.c
// Elements, by the collective's count.
typedef enum choir__amount_e {
  CHOIR__NONE = 0,
  CHOIR__COUNT,
  CHOIR__COUNT_OF_EACH,  // as many for each rank
  CHOIR__SHARE,          // choir_comm_share of the count
  CHOIR__CAPACITY,       // as many as there is room for
} choir__amount_t;
// A kind of collective.
typedef struct choir__collective_s {
  choir__amount_t gives;  // of src
  choir__amount_t takes;  // of dst
  bool is_pair;           // an operation of two ranks
  bool reduces;
  bool has_root;
  bool root_gives;       // nobody else does
  bool root_takes;       // likewise
  bool is_in_place;      // src is dst
  bool is_shared_out;    // each rank needs a share of the data only
  bool moves;            // elements go to other ranks as they are
  bool gives_all_alike;  // likewise, and the same ones to each
  bool has_own_counts;   // which may differ between ranks
  bool has_splits;       // and between the ranks they go to
  bool takes_tensors;    // groups of them
} choir__collective_t;
// One that has nothing, for the common code's own operations.
const choir__collective_t* choir__collective(int32_t kind);
// All ranks take part in it with data.
bool choir__collective_has_data(int32_t kind);
// Elements that this rank gives, and has room for.
int64_t choir__collective_given(const choir_comm_t* comm,
                                const choir_comm_operation_t* operation);
int64_t choir__collective_room(const choir_comm_t* comm,
                               const choir_comm_operation_t* operation);
// What `count` elements cost this rank.
void choir__collective_cost(const choir_comm_t* comm,
                            const choir_collective_t* collective, double count,
                            choir_cost_t* out_cost);
// comm_config.c
// 32 hexadecimal digits.
bool choir__comm_id_is_valid(const choir_comm_id_t* id);

// comm_check.c
// Empties `reason` or says what is wrong with this rank's arguments.
void choir__comm_check_arguments(const choir_comm_t* comm,
                                 const choir_comm_operation_t* operation,
                                 char reason[CHOIR_COMM_REASON_BYTES]);
// Compares all ranks' headers; the same result on every rank.
choir_status_t choir__comm_check_headers(
    choir_comm_t* comm, const choir_comm_operation_t* operation);
// The caller's refusal as a failure; NULL: none.
choir_status_t choir__comm_refusal(const choir_collective_t* collective);
uint64_t choir__comm_name_hash(const char* name);
// The name for messages. Of a longer one the beginning, "..." and digits of its
// hash, so that two that differ further on do not look alike.
void choir__comm_name_copy(const char* name, char text[CHOIR_COMM_NAME_BYTES]);

// comm_words.c
// Of the words ahead of the first message's data.
size_t choir__comm_meta_bytes(const choir_comm_t* comm,
                              const choir_comm_operation_t* operation);
void choir__comm_meta_fill(const choir_comm_t* comm,
                           const choir_comm_operation_t* operation,
                           unsigned char* data);
// The words of a message of an operation with those of `words`.
const double* choir__comm_words_factors(const choir_comm_message_t* message);
const int64_t* choir__comm_words_tensors(const choir_comm_message_t* message,
                                         uint8_t words);
// Of a kind with own counts: room in dst, and what is given, to each rank where
// there are splits.
int64_t choir__comm_words_capacity(const choir_comm_message_t* message);
const int64_t* choir__comm_words_given(const choir_comm_message_t* message);
// What ranks agree on to make a group.
typedef struct choir__comm_group_terms_s {
  choir_comm_id_t id;  // of the first rank's message
  uint64_t context;    // see choir_comm_vtable_t.group
} choir__comm_group_terms_t;
// The list in a rank's message.
const int32_t* choir__comm_group_ranks(const choir_comm_message_t* message);
void choir__comm_group_agree(const choir_comm_t* comm,
                             const choir_comm_operation_t* operation);

// comm_moves.c
// A rank that has too little room; rank -1: all have enough.
typedef struct choir__comm_lack_s {
  int32_t rank;
  int64_t needed;
  int64_t capacity;
} choir__comm_lack_t;
// Fills in comm->moves from all ranks' words, or the rank that lacks most, with
// what each gives it as the headers' counts; the same on all ranks.
choir_status_t choir__comm_plan_moves(choir_comm_t* comm,
                                      const choir_comm_operation_t* operation,
                                      choir__comm_lack_t* out_lack);
// Takes what came with the headers; whether parts are still to be moved.
bool choir__comm_begin_moves(choir_comm_t* comm,
                             const choir_comm_operation_t* operation);
// Tells the caller what came.
void choir__comm_tell_counts(const choir_comm_t* comm,
                             const choir_comm_operation_t* operation);

// comm_tensors.c
// Elements of all tensors; -1 when the sum overflows.
int64_t choir__comm_tensors_count(const choir_collective_t* collective);
void choir__comm_tensors_check(const choir_comm_t* comm,
                               const choir_comm_operation_t* operation,
                               char reason[CHOIR_COMM_REASON_BYTES]);
// Sets src and dst of the operation, whose arguments are right, to memory that
// has the tensors, and `land`.
choir_status_t choir__comm_tensors_pack(choir_comm_t* comm,
                                        choir_comm_operation_t* operation);

// comm_staged.c
// Host memory from memory of the stream's device and back, in the stream's
// order; blocks. A stream that is NULL: both are host memory.
choir_status_t choir__comm_fetch(choir_stream_t* stream, const void* src,
                                 void* host, size_t bytes);
choir_status_t choir__comm_store(choir_stream_t* stream, const void* host,
                                 void* dst, size_t bytes);
// For an operation on memory of a device, whose arguments are right: sets src
// and dst to host memory that has the data, and `land`.
choir_status_t choir__comm_staged_read(choir_comm_t* comm,
                                       choir_comm_operation_t* operation);
// Counts bytes that go the way over the host.
void choir__comm_staged_note(choir_comm_t* comm, size_t bytes);

// comm_group.c
// choir_comm_group without layers and without a watch.
choir_status_t choir__comm_make_group(choir_comm_t* comm, const int32_t* ranks,
                                      int32_t count, choir_comm_t** out_group);

// comm_hosts.c
// Collective, after ranks joined: the layer over hosts, unless no host has
// several ranks or there is one.
choir_status_t choir__comm_hosts_open(choir_comm_t* comm);

// comm_pair.c
choir_status_t choir__comm_run_pair(choir_comm_t* comm,
                                    choir_comm_operation_t* operation);

// comm_join.c
// After headers came: how many ranks have joined. Their headers become that of
// the first other rank.
int32_t choir__comm_note_joined(choir_comm_t* comm);
// After headers agreed: their data are zeros.
choir_status_t choir__comm_zero_joined(choir_comm_t* comm);
// The others' operation, whose header is in `message` and whose data are large,
// as this rank takes part in it.
choir_status_t choir__comm_joined_operation(choir_comm_t* comm,
                                            const choir_comm_operation_t* own,
                                            const choir_comm_message_t* message,
                                            choir_comm_operation_t* out_others);

// comm_run.c
// Runs one operation of any kind under the run mutex. `stream` as in
// choir_comm_operation_t.
choir_status_t choir__comm_execute(choir_comm_t* comm, int32_t kind,
                                   const choir_collective_t* collective,
                                   choir_stream_t* stream, bool is_blocking);

// comm_base.c
// At least so many bytes of scratch, zeros where it is new; OUT_OF_MEMORY tells
// of `what`.
choir_status_t choir__comm_reserve(choir_comm_t* comm,
                                   choir_comm_scratch_t* scratch, size_t bytes,
                                   const char* what);
// Of the device's own memory, cleared.
choir_status_t choir__comm_buffer_cleared(choir_device_t* device, size_t bytes,
                                          choir_buffer_t** out_buffer);

// comm_fault.c
choir_status_t choir__comm_fault_status(choir_comm_t* comm);
// Breaks the communicator by a fault that is told.
void choir__comm_break_by(choir_comm_t* comm, const choir_comm_fault_t* fault);
// By a message that no rank sends.
choir_status_t choir__comm_break_by_message(choir_comm_t* comm, int32_t rank);
// Of this process: whether a communicator broke, and by what happened to
// another rank. If it then ends with a failure while an MPI runtime runs it, it
// first waits some seconds for that runtime, which ends all ranks and tells how
// the first one ended.
bool choir__comm_any_broke(void);
bool choir__comm_is_follower(void);
void choir__comm_note_follower(void);
// Breaks the communicator if a peer told a fault or is gone. Never waits.
choir_status_t choir__comm_check_peers(choir_comm_t* comm);
// A wait that is over: whether by nothing but its deadline.
bool choir__comm_wait_is_late(const choir_comm_t* comm,
                              const choir_comm_wait_t* wait);
// What a peer does, by its own words; its kind is -1 where nobody knows.
void choir__comm_peer_activity(choir_comm_t* comm, int32_t rank,
                               choir_activity_t* out_activity);
choir_status_t choir__comm_watch_start(choir_comm_t* comm);
// comm_slow.c: `elapsed` seconds after the last call, whether a host holds up
// all others.
bool choir__comm_watch_slow(choir_comm_t* comm, double elapsed,
                            choir_comm_fault_t* out_fault);
// Breaks the communicator by `status`, the failure of an operation of `group`,
// which it frees; if the group broke, by the group's cause.
choir_status_t choir__comm_break_by_group(choir_comm_t* comm,
                                          choir_comm_t* group,
                                          choir_status_t status);
void choir__comm_watch_stop(choir_comm_t* comm);

// comm_calls.c
// Waits for what choir_comm_start started.
void choir__comm_drain(choir_comm_t* comm);
choir_status_t choir__comm_check_collective(
    const choir_comm_t* comm, const choir_collective_t* collective,
    const char* where);
// A failure of a call that the other ranks make too: they hear of it
// (choir__comm_refuse).
choir_status_t choir__comm_refuse_call(choir_comm_t* comm,
                                       const choir_collective_t* collective,
                                       choir_status_t why);

// rank_reduce.c
// Fills in shares and shares_f64 from the headers' weights.
void choir__comm_set_shares(choir_comm_t* comm);

// backends/mpi/mpi.c
// Joins by MPI only to tell the ranks of one host a common id.
// *out_one_host is false, and the id empty, when there are several hosts.
choir_status_t choir_mpi_comm_rendezvous(const choir_comm_config_t* config,
                                         choir_comm_id_t* out_id,
                                         bool* out_one_host);
// choir_comm_shutdown.
choir_status_t choir_mpi_world_close(void);

// backends/*
#define CHOIR_COMM_BACKEND(name)                                             \
  choir_status_t choir_##name##_comm_join(const choir_comm_config_t* config, \
                                          choir_comm_t** out_comm);
#define CHOIR_COMM_PLANE(name)                                  \
  choir_status_t choir_##name##_comm_attach(choir_comm_t* comm, \
                                            choir_device_t* device);
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND

#endif  // CHOIR_DIST_COMM_INTERNAL_H_
