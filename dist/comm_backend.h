// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMM_BACKEND_H_
#define CHOIR_DIST_COMM_BACKEND_H_

#include <pthread.h>
#include <stdatomic.h>

#include "core/profile.h"
#include "dist/activity_internal.h"
#include "dist/comm.h"

// For writers of a communicator backend: the vtable, the common head of a
// communicator and what a backend may call. dist/backends/self is the
// smallest example.
//
// A backend has to move one message per rank to every other rank: `stage`
// gives the place for this rank's, `exchange` delivers them. The common code
// builds the check of each operation and every collective from these two; a
// backend that can move large data better fills in a collective's slot.
//
// Threads: stage, exchange and the collectives are called by one thread at a
// time; `heartbeat` runs on the communicator's watch thread beside them.

// Beyond the public kinds: operations that the common code itself runs.
enum {
  CHOIR_COMM_KIND_BUFFER = CHOIR_COLLECTIVE_COUNT,
  CHOIR_COMM_KIND_GROUP,
  CHOIR_COMM_KIND_JOIN,
  CHOIR_COMM_KIND_FINALIZE,
  CHOIR_COMM_KIND_UNKNOWN,  // refused: this rank asked for what there is not
  CHOIR_COMM_KIND_COUNT,
};

enum {
  CHOIR_COMM_WORDS_FACTORS = 1,  // prescale, postscale
  CHOIR_COMM_WORDS_TENSORS = 2,  // then the number of tensors, their counts
  // None, but the same on all ranks: the data plane has the data.
  CHOIR_COMM_WORDS_PLANE = 4,
};

// What a rank wants: ahead of the data of each operation. While ranks agree
// they read no more of each other's than the first cache line.
typedef struct choir_comm_header_s {
  _Atomic uint32_t
      arrived;  // the backend's own; kept when the rest is filled in
  // Must be equal on all ranks (up to, not including, `refused`).
  int32_t root;        // 0 where it means nothing
  uint64_t sequence;   // 1 for the first operation
  uint64_t name_hash;  // of the whole name, of step and batch if it is in one
  int64_t count;       // 0 where ranks' counts may differ
  uint8_t kind;
  uint8_t op;     // 0 where it means nothing
  uint8_t dtype;  // likewise
  uint8_t words;  // CHOIR_COMM_WORDS_*: what stands ahead of the data
  // Each rank's own.
  uint8_t refused;    // choir_status_code_t, not 0: it cannot take part; why:
                      // in the data
  uint8_t is_inline;  // 1: the data of this operation are in the message
  // The backend's `describe` says 1 where it serves even small data better from
  // where they lie.
  uint8_t is_direct;
  uint8_t zeros_;
  double weight;
  uint64_t src_place;  // for the backend: where src and dst lie
  uint64_t dst_place;
  // Told where ranks differ; from the second cache line on. What is not there
  // is zero, so that a backend may leave it out.
  int64_t step;                      // of training, from 1 on; 0: in none
  int64_t batch;                     // 0: not told
  char name[CHOIR_COMM_NAME_BYTES];  // see choir__comm_name_copy
} choir_comm_header_t;
#define CHOIR_COMM_HEADER_START offsetof(choir_comm_header_t, root)
#define CHOIR_COMM_HEADER_COMPARED \
  (offsetof(choir_comm_header_t, refused) - CHOIR_COMM_HEADER_START)
_Static_assert(offsetof(choir_comm_header_t, step) == 64,
               "one cache line while ranks agree");

// The data of an operation's first message begin with its words (factors and
// tensors, or counts of comm_moves.c), then come those that travel with the
// header.
typedef struct choir_comm_message_s {
  choir_comm_header_t header;
  _Alignas(64) unsigned char data[];
} choir_comm_message_t;
_Static_assert(sizeof(choir_comm_message_t) == 192,
               "docs/algorithms.md tells how long a header is");

// Why a communicator is broken. Handed from rank to rank unchanged, so that
// all ranks tell the cause and not each other's failure.
typedef struct choir_comm_fault_s {
  int32_t code;    // choir_status_code_t
  int32_t origin;  // the rank that found it
  int32_t slow;    // 1 + index of a host behind a slow link; 0: none
  char text[500];  // a sentence about the cause
} choir_comm_fault_t;

// What a missing heartbeat may mean: the end of a sentence about a silent peer.
#define CHOIR_COMM_SILENCE_TEXT "stopped, or its host or the link to it is down"

enum {
  CHOIR_COMM_PEER_HERE = 0,
  CHOIR_COMM_PEER_LEFT = 1,  // released its communicator
  CHOIR_COMM_PEER_GONE = 2,  // its process ended
};

#define CHOIR_COMM_HOST_BYTES 72
#define CHOIR_COMM_BOOT_BYTES 40
#define CHOIR_COMM_MAX_CORES 1024

// Who a rank is; travels when ranks join.
typedef struct choir_comm_identity_s {
  int32_t rank;
  int32_t size;
  int32_t pid;
  int32_t context;  // id, of the backend's own
  char host[CHOIR_COMM_HOST_BYTES];
  char boot[CHOIR_COMM_BOOT_BYTES];  // tells hosts of one name apart
  // A bit for each core that the process may run on.
  uint64_t cores[CHOIR_COMM_MAX_CORES / 64];
} choir_comm_identity_t;

typedef struct choir_comm_peer_s {
  choir_comm_identity_t identity;
  int32_t host_index;
  int32_t local_rank;
  char text[CHOIR_COMM_HOST_BYTES + 64];  // "rank 2 (host node1, pid 4711)"
  _Atomic uint64_t beat;                  // written by `heartbeat`
  _Atomic uint32_t silent_ms;             // written by the watch thread
  atomic_int presence;                    // CHOIR_COMM_PEER_*
  uint64_t last_beat;                     // the watch thread's
  double silent;
  double slow;  // likewise: seconds in which its host held up an operation
} choir_comm_peer_t;

// One collective while it runs.
typedef struct choir_comm_operation_s {
  choir_collective_t collective;
  int32_t kind;
  uint64_t sequence;
  size_t element_bytes;
  size_t meta_bytes;  // of the words ahead of the first message's data
  // NULL: src and dst are host memory. Else they are memory of this stream's
  // device, as the stream's work leaves it and finds it.
  choir_stream_t* stream;
  bool on_plane;  // the data plane moves them
  // Not NULL: takes the result from host memory to where the caller wants it.
  choir_status_t (*land)(choir_comm_t* comm,
                         const struct choir_comm_operation_s* operation);
  void* device_dst;  // of a staged operation, whose dst is host memory
  bool is_blocking;  // on the caller's thread, which has nothing else to do
  bool may_spin;     // likewise, and every rank here has a core of its own
} choir_comm_operation_t;

// Collectives that hand elements on as they are: who gets what from whom, known
// when headers agreed. In elements, [size] each.
typedef struct choir_comm_moves_s {
  int64_t* send_count;  // to each rank
  int64_t* send_at;     // in src
  int64_t* recv_count;  // from each rank
  int64_t* recv_at;     // in dst
  int64_t* their_at;    // in the src of each rank: this rank's part
  int64_t* total;       // of each rank's src
  bool* open;           // rank's parts are still to be moved
} choir_comm_moves_t;

// What is posted to one peer beside each other.
enum {
  CHOIR_COMM_CHANNEL_EXCHANGE = 0,
  CHOIR_COMM_CHANNEL_PIECE = 1,   // of a rank's part
  CHOIR_COMM_CHANNEL_RESULT = 2,  // a finished part
  CHOIR_COMM_CHANNEL_PAIR = 3,    // of an operation of two ranks
  CHOIR_COMM_CHANNEL_COUNT,
};
// Most data to one peer, or together in one round of all, so that they stay in
// cache; unless the backend chose other rounds (sizes.round).
#define CHOIR_COMM_ROUND_BYTES ((size_t)1 << 20)
// Pieces of all ranks while they are summed: a round's, and 128 bytes for each
// rank, as a part is rounded up to cache lines.
#define CHOIR_COMM_WORK_BYTES(round_bytes, size) \
  ((round_bytes) + (size_t)(size)*128)

typedef struct choir_comm_vtable_s {
  const char* name;
  // Required. Leaves (peers see "left", not a death) and frees the struct by
  // choir__comm_deallocate. Never waits for peers.
  void (*destroy)(choir_comm_t* comm);

  // Required. Where this rank's next message goes: header and room for
  // comm->sizes.exchange of data.
  choir_comm_message_t* (*stage)(choir_comm_t* comm);
  // Required. Delivers the staged message, of which `bytes` of data count, to
  // all ranks and waits for theirs; ranks may differ in `bytes`, and know what
  // they read. comm->messages[r] are valid until the next
  // exchange returns; messages[rank] is the own one.
  choir_status_t (*exchange)(choir_comm_t* comm, size_t bytes);

  // Optional. Called before a header is sent: src_place and dst_place.
  void (*describe)(choir_comm_t* comm, const choir_comm_operation_t* operation,
                   choir_comm_header_t* header);

  // Optional, by kind. Run after headers agreed, for data beyond
  // comm->sizes.with_header and at least 2 ranks. Headers of all ranks are in
  // comm->headers. NULL: rounds of `exchange`. Kinds that move elements find
  // the plan in comm->moves, and do what is `open` there.
  choir_status_t (*large[CHOIR_COLLECTIVE_COUNT])(
      choir_comm_t* comm, const choir_comm_operation_t* operation);

  // Optional. Memory that collectives use without copying: `has_room` tells
  // whether buffer_alloc can serve it now; if one rank cannot, all call
  // `grow` (collective). NULL: ordinary memory.
  bool (*buffer_has_room)(choir_comm_t* comm, size_t bytes);
  choir_status_t (*buffer_grow)(choir_comm_t* comm, size_t bytes);
  void* (*buffer_alloc)(choir_comm_t* comm, size_t bytes);
  void (*buffer_free)(choir_comm_t* comm, void* data);
  // Optional, both or none: memory from buffer_alloc that peers see. Where this
  // rank's is, as a number (0: it is not such memory), and what has a rank's
  // number, in this process.
  uint64_t (*buffer_place)(choir_comm_t* comm, const void* data, size_t bytes);
  void* (*buffer_at)(choir_comm_t* comm, int32_t rank, uint64_t place);

  // Required for more than one rank. Joins those of ranks[config->size] of
  // `comm`, at least 2, as a communicator of their own; `context` is the
  // largest src_place that `describe` gave for CHOIR_COMM_KIND_GROUP on any
  // rank.
  choir_status_t (*group)(choir_comm_t* comm, const choir_comm_config_t* config,
                          const int32_t* ranks, uint64_t context,
                          choir_comm_t** out_group);

  // Required for more than one rank. Sends to `peer` and receives from it, at
  // the same time; either may be 0 bytes. Both sides agree on the sizes.
  choir_status_t (*pair)(choir_comm_t* comm, int32_t peer, const void* out,
                         size_t out_bytes, void* in, size_t in_bytes);

  // Optional, both or none, for dist/algorithms. Sends `data` to the peer, or
  // receives it from there, until `wait` has returned; both sides cut what they
  // post on a channel (CHOIR_COMM_CHANNEL_*) alike, into at most
  // comm->sizes.round, and it comes in their order. comm->work is there.
  choir_status_t (*post)(choir_comm_t* comm, int32_t peer, int32_t channel,
                         void* data, size_t bytes, bool is_receive);
  choir_status_t (*wait)(choir_comm_t* comm);

  // Optional, for backends with peers. One turn of the watch thread: beats,
  // then sleeps up to `seconds` or until comm->watch.wake_fd is readable or a
  // peer goes, notes beats in peers[].beat, presence and faults.
  void (*heartbeat)(choir_comm_t* comm, double seconds);
  // Optional. Notes faults that peers broadcast; in each slice of a wait.
  void (*poll_faults)(choir_comm_t* comm);
  // Optional. Sends peers the fault by which this rank is broken, and wakes
  // them. Any thread.
  void (*broadcast_fault)(choir_comm_t* comm, const choir_comm_fault_t* fault);
  // Optional. What peer `rank` does, as far as is known.
  void (*peer_activity)(choir_comm_t* comm, int32_t rank,
                        choir_activity_t* out_activity);
  // Optional. After all ranks came to finalize.
  void (*finalize)(choir_comm_t* comm);
  // Optional. This rank's address, as ranks of other hosts reach it; IPv4's is
  // mapped into IPv6's. False: there are none.
  bool (*address)(const choir_comm_t* comm, unsigned char out_address[16]);
} choir_comm_vtable_t;

// A layer over the backend: another way for the data of the operations that it
// takes. Ranks agree on them and watch each other by the backend all the same.
// Between GPUs: backends/nccl. Over hosts of several ranks: comm_hosts.c.
// Functions with a status are called by all ranks alike, but for `group`.
typedef struct choir_comm_layer_vtable_s {
  const char* name;  // of a communicator that has it; NULL: the backend's
  // Optional. Ranks have met and are watched: their layers find each other.
  choir_status_t (*open)(choir_comm_t* comm);
  // Whether the operation is this layer's, which is the same on all ranks or
  // compared; if it would be, but for what `reason` (CHOIR_COMM_REASON_BYTES)
  // then says, that too.
  bool (*takes)(const choir_comm_t* comm,
                const choir_comm_operation_t* operation, char* reason);
  // Headers agreed, and the data are not in them. comm->moves and
  // comm->sums.shares are there.
  choir_status_t (*run)(choir_comm_t* comm,
                        const choir_comm_operation_t* operation);
  // Optional. A turn of the watch thread.
  void (*poll_faults)(choir_comm_t* comm);
  // Optional. A peer told a fault. Any thread.
  void (*note_fault)(choir_comm_t* comm, const choir_comm_fault_t* fault);
  // The communicator broke, by comm->faults.own: whoever waits lets go. Any
  // thread, also again.
  void (*abort)(choir_comm_t* comm);
  // Before the backend's.
  choir_status_t (*finalize)(choir_comm_t* comm);
  // Gives a group of the communicator's ranks such a layer, not open yet.
  // NULL: groups have none.
  choir_status_t (*group)(const choir_comm_t* comm, choir_comm_t* group);
  // Never waits for peers.
  void (*destroy)(choir_comm_t* comm);
} choir_comm_layer_vtable_t;
typedef struct choir_comm_layer_s {
  const choir_comm_layer_vtable_t* vtable;
} choir_comm_layer_t;
enum {
  CHOIR_COMM_LAYER_HOSTS,  // large data, after headers agreed
  CHOIR_COMM_LAYER_PLANE,  // a device's memory, which never comes to the host
  CHOIR_COMM_LAYER_COUNT,
};

// Memory that grows.
typedef struct choir_comm_scratch_s {
  void* data;
  size_t bytes;
} choir_comm_scratch_t;

// Bytes of what a backend carries; it sets them when it joins.
typedef struct choir_comm_sizes_s {
  size_t exchange;     // most data of one exchange
  size_t with_header;  // data up to this size travels with the header
  // Likewise for kinds of which each rank needs a share only.
  size_t share_with_header;
  size_t round;  // see CHOIR_COMM_ROUND_BYTES; the same on all ranks
} choir_comm_sizes_t;

// Where ranks are.
typedef struct choir_comm_place_s {
  int32_t count;        // of hosts
  int32_t local_cores;  // of all ranks here, together
  bool oversubscribed;  // more ranks here than cores: never spin
} choir_comm_place_t;

// While ranks' data are summed.
typedef struct choir_comm_sums_s {
  float* shares;         // [size], weighted averages
  double* shares_f64;    // [size]
  const void** sources;  // [size]
  void** destinations;   // [size]
} choir_comm_sums_t;

// Ranks that ran out of data: comm_join.c.
typedef struct choir_comm_joins_s {
  bool* joined;      // [size], at this operation
  bool* was_joined;  // [size], at the one before
  int32_t last;
  choir_comm_scratch_t zero_message;  // what a joined rank has for the others
  choir_comm_scratch_t zeros;         // that this rank gives, when it joined
} choir_comm_joins_t;

// What this rank does.
typedef struct choir_comm_activity_s {
  choir_shared_activity_t own;
  // Where it is noted: the backend's or own, then the launcher's board if there
  // is one.
  choir_shared_activity_t* places[2];
  char text[CHOIR_ACTIVITY_TEXT_BYTES];
} choir_comm_activity_t;

// Why a communicator broke: comm_fault.c.
typedef struct choir_comm_faults_s {
  pthread_mutex_t mutex;
  atomic_bool broken;
  choir_comm_fault_t own;
  char operation[CHOIR_ACTIVITY_TEXT_BYTES];
  atomic_bool peer_broken;
  choir_comm_fault_t peer;
} choir_comm_faults_t;

// The watch thread: comm_fault.c.
typedef struct choir_comm_watch_s {
  bool has_heartbeat;   // the backend's: peers' silence means something
  double beat_seconds;  // likewise: longest time between two beats; 0: 0.25
  pthread_t thread;
  bool started;
  atomic_bool stops;
  double interval;
  int wake_fd;
  uint64_t slow_sequence;     // the operation that peers' `slow` is about
  _Atomic double slow_limit;  // seconds of it; 0: no host is left out
  atomic_int newcomers;       // ranks at the end, which are suspected first
} choir_comm_watch_t;

struct choir_comm_s {
  atomic_int ref_count;
  const choir_comm_vtable_t* vtable;
  choir_allocator_t allocator;
  size_t struct_bytes;
  int32_t rank;
  int32_t size;
  double deadline;  // of the config, as the next two
  double silence;
  size_t segment_bytes;
  choir_device_t* device;  // likewise
  choir_comm_id_t id;      // by which ranks met; empty: by none
  bool is_newcomer;        // of a run with that id
  bool warns;              // of a peer that is late, before it is too late
  bool encrypt;            // of the config, as the next
  char rendezvous[CHOIR_COMM_ADDRESS_BYTES];
  choir_comm_place_t hosts;
  choir_comm_sizes_t sizes;
  unsigned char* work;  // of backends with `post`: CHOIR_COMM_WORK_BYTES

  struct {
    pthread_mutex_t mutex;  // one operation at a time
    uint64_t sequence;
    const choir_comm_operation_t* operation;  // NULL between operations
    bool finalized;
  } run;
  choir_comm_layer_t* layers[CHOIR_COMM_LAYER_COUNT];  // NULL: none
  choir_comm_peer_t* peers;                            // [size]
  const choir_comm_message_t** messages;               // [size], see exchange
  choir_comm_header_t* headers;                        // [size], without names
  bool* flags;                                         // [2 * size], scratch
  choir_comm_sums_t sums;
  choir_comm_joins_t joins;
  choir_comm_moves_t moves;
  // On the host: a device's data, or tensors side by side.
  choir_comm_scratch_t packed;
  _Atomic uint64_t staged_bytes;  // of devices, that went there
  uint64_t buffers_made;          // calls of choir_comm_buffer_create

  choir_comm_activity_t activity;
  choir_comm_faults_t faults;
  choir_comm_watch_t watch;
  // Of a group that a layer has for itself.
  struct {
    choir_comm_t* comm;    // whose it is
    const int32_t* ranks;  // [size], its ranks there
  } outer;
  // choir_comm_start's.
  struct {
    choir_stream_t* stream;
    atomic_int started;  // operations not yet done
  } async;
};

// Each backend has one line in dist/backends/backends.def and one function
// that joins: it returns when all ranks are there.
typedef choir_status_t (*choir_comm_join_t)(const choir_comm_config_t* config,
                                            choir_comm_t** out_comm);
// Gives a communicator whose ranks have met a plane, not open yet.
typedef choir_status_t (*choir_comm_attach_t)(choir_comm_t* comm,
                                              choir_device_t* device);

// ---- For backends ----

// A cleared struct of `struct_bytes` with the common head filled in.
choir_status_t choir__comm_allocate(const choir_comm_vtable_t* vtable,
                                    size_t struct_bytes,
                                    const choir_comm_config_t* config,
                                    choir_comm_t** out_comm);
void choir__comm_deallocate(choir_comm_t* comm);
// This process.
void choir__comm_identify(const choir_comm_config_t* config,
                          choir_comm_identity_t* out_identity);
// After peers[].identity are filled in: texts, host map.
void choir__comm_map_hosts(choir_comm_t* comm);
// "ranks 1, 3 and 4" for the ranks with a set flag.
const char* choir__comm_rank_list(const bool* flags, int32_t size, char* text,
                                  size_t text_bytes);

// A wait for peer `rank`. In a loop:
//   bool over = choir__comm_wait_is_over(comm, &wait);
//   if (<what is waited for has come>) break;
//   if (over) return choir__comm_wait_fail(comm, &wait);
//   <sleep a little>
// and choir__comm_wait_end after it. Seconds in which this process itself
// stood still do not count.
typedef struct choir_comm_wait_s {
  int32_t rank;
  double last;
  double waited;
  bool has_told;  // that it is long
  choir_span_t span;
} choir_comm_wait_t;
void choir__comm_wait_begin(choir_comm_t* comm, choir_comm_wait_t* wait,
                            int32_t rank);
bool choir__comm_wait_is_over(choir_comm_t* comm, choir_comm_wait_t* wait);
// Something came: the deadline starts anew, perhaps for another peer.
void choir__comm_wait_progress(choir_comm_t* comm, choir_comm_wait_t* wait,
                               int32_t rank);
choir_status_t choir__comm_wait_fail(choir_comm_t* comm,
                                     choir_comm_wait_t* wait);
void choir__comm_wait_end(choir_comm_t* comm, choir_comm_wait_t* wait);

// Breaks the communicator (the first cause stays), tells peers, and returns
// the failure with the running operation's text.
choir_status_t choir__comm_break(choir_comm_t* comm, choir_status_code_t code,
                                 const char* format, ...) CHOIR_PRINTF(3, 4);
// A fault that a peer told.
void choir__comm_note_fault(choir_comm_t* comm,
                            const choir_comm_fault_t* fault);

// The collective by rounds of `exchange`, for slots that serve some cases only.
// `first`: the first round's exchange was that of the headers.
choir_status_t choir__comm_run_rounds(choir_comm_t* comm,
                                      const choir_comm_operation_t* operation,
                                      bool first);
// The same for what is open in comm->moves.
choir_status_t choir__comm_move_rounds(choir_comm_t* comm,
                                       const choir_comm_operation_t* operation);
// Bytes of src (of dst, for a broadcast) that travel; 0 for kinds without data,
// -1 when the sizes overflow.
int64_t choir__comm_payload_bytes(const choir_comm_t* comm,
                                  const choir_comm_operation_t* operation);
// This rank's part of `count` elements that ranks share out; parts are
// multiples of 64 bytes, except the last.
void choir__comm_part(int64_t count, size_t element_bytes, int32_t rank,
                      int32_t size, int64_t* out_start, int64_t* out_count);
// Elements of src that reductions share out among ranks (reduce_scatter).
int64_t choir__comm_shared_count(const choir_comm_t* comm,
                                 const choir_comm_operation_t* operation);
// Of `part`, at most `most` elements from `done` on.
int64_t choir__comm_stretch(int64_t part, int64_t done, int64_t most);
// The operation's reduction of `count` elements: sources[r] is rank r's
// data; the result goes to all destinations, one of which may be a source.
void choir__comm_reduce(choir_comm_t* comm,
                        const choir_comm_operation_t* operation,
                        const void* const* sources, void* const* destinations,
                        int32_t destination_count, int64_t count);

#endif  // CHOIR_DIST_COMM_BACKEND_H_
