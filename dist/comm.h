// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMM_H_
#define CHOIR_DIST_COMM_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A communicator joins `size` processes; each has a rank 0 .. size-1. All
// ranks call the same collectives in the same order; what each one wants
// travels ahead of the data, so that a difference is an error on every rank
// that says which rank wanted what.
//
//   choir_comm_config_t config;
//   choir_comm_config_init(&config);           // reads the launcher's choice
//   choir_comm_t* comm;
//   CHOIR_TRY(choir_comm_create(&config, &comm));
//   CHOIR_TRY(choir_comm_all_reduce(comm, data, data, n, CHOIR_DTYPE_F32,
//                                   CHOIR_REDUCE_SUM, "loss"));
//
// Every wait has a deadline. When it passes, or a peer dies, the call returns
// TIMEOUT or ABORTED with a sentence that names who waits, for whom (rank,
// host, pid) and in which operation; the communicator is then broken and
// every later call returns the same.
//
// Order of sums: on every CPU backend ((r0 + r1) + r2) + ..., by our own code,
// so `shm` and `mpi` give the same bits; on GPUs it is NCCL's. F16 and BF16 are
// summed in f32 and rounded once; integers wrap; BOOL sums as "or". Over
// several hosts with several ranks, large data are summed within each host,
// then over hosts (docs/algorithms.md).
//
// Ownership: shared. Threads: calls on one communicator come from one thread
// at a time, or through records on streams; asynchronous operations run in
// the order in which they were started.

typedef struct choir_comm_s choir_comm_t;
typedef struct choir_work_s choir_work_t;

// X(ENUM, name)
#define CHOIR_REDUCE_LIST(X) \
  X(SUM, sum)                \
  X(AVERAGE, average)        \
  X(MIN, min)                \
  X(MAX, max)                \
  X(PRODUCT, product)
typedef enum choir_reduce_e {
#define CHOIR_REDUCE_ENUM_(ENUM, name) CHOIR_REDUCE_##ENUM,
  CHOIR_REDUCE_LIST(CHOIR_REDUCE_ENUM_)
#undef CHOIR_REDUCE_ENUM_
      CHOIR_REDUCE_COUNT
} choir_reduce_t;

// X(ENUM, name)
#define CHOIR_COLLECTIVE_LIST(X)        \
  X(ALL_REDUCE, all_reduce)             \
  X(BROADCAST, broadcast)               \
  X(ALL_GATHER, all_gather)             \
  X(REDUCE_SCATTER, reduce_scatter)     \
  X(ALL_GATHER_V, all_gather_v)         \
  X(REDUCE_SCATTER_V, reduce_scatter_v) \
  X(REDUCE, reduce)                     \
  X(GATHER, gather)                     \
  X(GATHER_V, gather_v)                 \
  X(SCATTER, scatter)                   \
  X(SCATTER_V, scatter_v)               \
  X(ALL_TO_ALL, all_to_all)             \
  X(ALL_TO_ALL_V, all_to_all_v)         \
  X(SEND, send)                         \
  X(RECEIVE, receive)                   \
  X(BARRIER, barrier)
typedef enum choir_collective_kind_e {
#define CHOIR_COLLECTIVE_ENUM_(ENUM, name) CHOIR_COLLECTIVE_##ENUM,
  CHOIR_COLLECTIVE_LIST(CHOIR_COLLECTIVE_ENUM_)
#undef CHOIR_COLLECTIVE_ENUM_
      CHOIR_COLLECTIVE_COUNT
} choir_collective_kind_t;

// 32 hexadecimal digits and a NUL: what the ranks of one communicator share,
// as NCCL's unique id. Made by one process and handed to the others, and a
// secret: who of the same user knows it can join (docs/trust.md).
#define CHOIR_COMM_ID_BYTES 33
#define CHOIR_COMM_ADDRESS_BYTES 272
typedef struct choir_comm_id_s {
  char text[CHOIR_COMM_ID_BYTES];
} choir_comm_id_t;
CHOIR_API choir_status_t choir_comm_id_make(choir_comm_id_t* out_id)
    CHOIR_NODISCARD;

typedef struct choir_comm_config_s {
  // "self", "shm", "tcp", "mpi", or "auto": `self` for one rank, `shm` when all
  // ranks share a host, else `tcp`, or `mpi` where ranks meet by MPI and not at
  // a rendezvous. "nccl": what auto chooses, and NCCL beside it for memory of
  // GPUs, of which each rank has one.
  const char* backend;
  int32_t rank;
  int32_t size;
  // shm, tcp: the same on all ranks. Empty under MPI, where ids travel by MPI.
  choir_comm_id_t id;
  // tcp: "HOST:PORT" ("[ADDRESS]:PORT" of IPv6), where rank 0 listens while
  // ranks join.
  char rendezvous[CHOIR_COMM_ADDRESS_BYTES];
  // Longest wait in seconds for a peer in one operation, and for all ranks to
  // arrive at the start; above 0.
  double deadline;
  // Longest silence of a peer (no heartbeat) in seconds; 0: like deadline.
  double silence;
  // Memory for all_reduce buffers etc. that the communicator allocates at the
  // start (shm: the shared segment), grown when more is asked.
  size_t segment_bytes;
  // What buffers come from that name no device. NULL: each names one. nccl: the
  // rank's GPU; NULL: the one whose number is the local rank.
  choir_device_t* device;
  // What ranks on several hosts send each other is encrypted, the same on all
  // ranks: tcp only, all else between hosts refuses.
  bool encrypt;
  // This process comes to a run that is under way, in the place of a worker
  // that was lost (docs/elastic.md): it is by itself, as `self` is, until an
  // elastic DistOpt is a model's updater. A launcher says so.
  bool is_newcomer;
  // tcp, rank 0: a socket that listens at the rendezvous already, of which the
  // communicator uses a copy; 0: it opens one.
  int32_t rendezvous_fd;
} choir_comm_config_t;

// Defaults (auto, 1 rank, deadline 60 s), then what the launcher set: Choir's
// own environment (CHOIR_RANK, CHOIR_SIZE, CHOIR_COMM_ID, CHOIR_COMM, ...) or
// Open MPI's (OMPI_COMM_WORLD_*). Fails when the environment contradicts
// itself.
CHOIR_API choir_status_t choir_comm_config_init(choir_comm_config_t* out_config)
    CHOIR_NODISCARD;

// Joins. Returns when all ranks are there, else TIMEOUT naming the missing
// ones. CHOIR_HOST in the environment names this host where the system's name
// does not tell hosts apart (containers).
CHOIR_API choir_status_t choir_comm_create(const choir_comm_config_t* config,
                                           choir_comm_t** out_comm)
    CHOIR_NODISCARD;
CHOIR_API void choir_comm_retain(choir_comm_t* comm);
// Local; never waits for peers (call choir_comm_finalize first).
CHOIR_API void choir_comm_release(choir_comm_t* comm);
// Collective: waits (with the deadline) until all ranks came here, so that
// nobody takes a clean end for a death.
CHOIR_API choir_status_t choir_comm_finalize(choir_comm_t* comm)
    CHOIR_NODISCARD;
// Once, at the end of a program, when its communicators are released: ends what
// backends keep for the process, which is MPI where Choir initialised it. A
// communicator over MPI that is there still leaves, and can only be released.
// Collective there: waits until all ranks came here, with the deadline and the
// heartbeat timeout of the last communicator, and fails with TIMEOUT and a
// sentence that names a rank that did not come; mpiexec then ends all. OK at
// once where there is nothing to end, or a communicator broke. A program that
// does not call it waits as long when it exits, without a word.
CHOIR_API choir_status_t choir_comm_shutdown(void) CHOIR_NODISCARD;
// Local and at once: breaks the communicator; peers get ABORTED with `why`
// instead of waiting. Thread-safe.
CHOIR_API void choir_comm_abort(choir_comm_t* comm, const char* why);

CHOIR_API int32_t choir_comm_rank(const choir_comm_t* comm);
CHOIR_API int32_t choir_comm_size(const choir_comm_t* comm);
// config.is_newcomer.
CHOIR_API bool choir_comm_is_newcomer(const choir_comm_t* comm);
// The host map: this rank's index among those of its host, how many they
// are, this host's index (in order of lowest rank) and the number of hosts.
CHOIR_API int32_t choir_comm_local_rank(const choir_comm_t* comm);
CHOIR_API int32_t choir_comm_local_size(const choir_comm_t* comm);
CHOIR_API int32_t choir_comm_host_index(const choir_comm_t* comm);
CHOIR_API int32_t choir_comm_host_count(const choir_comm_t* comm);
// Cores that the ranks of this host may run on, all together, also when each is
// bound to one of them. Where ranks outnumber cores, waits do not spin.
CHOIR_API int32_t choir_comm_local_cores(const choir_comm_t* comm);
CHOIR_API const char* choir_comm_backend(const choir_comm_t* comm);
// "rank 2 (host node1, pid 4711)"; lent.
CHOIR_API const char* choir_comm_peer(const choir_comm_t* comm, int32_t rank);
// "node1", or what CHOIR_HOST named it there; lent.
CHOIR_API const char* choir_comm_host(const choir_comm_t* comm, int32_t rank);
// What this rank does now, for a signal handler: "all_reduce 'grad bucket 0'
// (operation 52), waiting for rank 1 (host h, pid 123)", or "". Lent, a text
// that changes; async-signal-safe to read.
CHOIR_API const char* choir_comm_activity(const choir_comm_t* comm);
// OK, or why the communicator is broken; the caller frees it. Never waits.
CHOIR_API choir_status_t choir_comm_poll_error(choir_comm_t* comm)
    CHOIR_NODISCARD;

// ---- Groups of ranks ----

// A communicator of the ranks ranks[count] of `comm`, which become its ranks
// 0 .. count-1 in that order. Collective on `comm`: all its ranks give the same
// list; *out_group is NULL on those that are not in it. The group has the
// limits of `comm`, ends by itself (choir_comm_finalize), and outlives it. Its
// backend is `self` for one rank, `shm` for ranks of one host, else that of
// `comm`; with NCCL beside it where `comm` has that.
CHOIR_API choir_status_t choir_comm_group(choir_comm_t* comm,
                                          const int32_t* ranks, int32_t count,
                                          choir_comm_t** out_group)
    CHOIR_NODISCARD;

// ---- Memory ----

// Memory that collectives use without copying (shm: in the shared segment).
// Collective for shm: all ranks ask for the same sizes in the same order.
// `bytes` > 0; 64-byte aligned; cleared. A buffer of `device`; NULL: of
// config.device. One whose memory the host cannot see gives its own.
CHOIR_API choir_status_t choir_comm_buffer_create(choir_comm_t* comm,
                                                  choir_device_t* device,
                                                  size_t bytes,
                                                  choir_buffer_t** out_buffer)
    CHOIR_NODISCARD;

// One tensor of a group; `count` as in the call of its kind.
typedef struct choir_comm_tensor_s {
  const void* src;
  void* dst;
  int64_t count;
} choir_comm_tensor_t;

// ---- Collectives: blocking, on host memory ----
// `name` (may be NULL) is compared over ranks and shown in errors. Counts are
// elements. A blocking call first waits for asynchronous work started before.

// dst[i] = reduction over ranks of src[i]; src == dst is allowed, any other
// overlap is not. AVERAGE divides by the number of ranks.
CHOIR_API choir_status_t choir_comm_all_reduce(
    choir_comm_t* comm, const void* src, void* dst, int64_t count,
    choir_dtype_t dtype, choir_reduce_t op, const char* name) CHOIR_NODISCARD;
// The same for several tensors as one (choir_collective_t.tensors).
CHOIR_API choir_status_t choir_comm_all_reduce_group(
    choir_comm_t* comm, const choir_comm_tensor_t* tensors,
    int32_t tensor_count, choir_dtype_t dtype, choir_reduce_t op,
    const char* name) CHOIR_NODISCARD;
// `data` of rank `root` to all, in place.
CHOIR_API choir_status_t choir_comm_broadcast(choir_comm_t* comm, void* data,
                                              int64_t count,
                                              choir_dtype_t dtype, int32_t root,
                                              const char* name) CHOIR_NODISCARD;
// `count` elements of each rank, in rank order, to dst[size * count]. src may
// be dst + rank * count.
CHOIR_API choir_status_t choir_comm_all_gather(
    choir_comm_t* comm, const void* src, void* dst, int64_t count,
    choir_dtype_t dtype, const char* name) CHOIR_NODISCARD;
// Each rank's own `count` elements, 0 or more, one part after the other in rank
// order, to dst[capacity]. out_counts[size], which may be NULL, is how many
// came from each rank. More in all than the smallest capacity is an error on
// all ranks. src and dst must not overlap.
CHOIR_API choir_status_t
choir_comm_all_gather_v(choir_comm_t* comm, const void* src, int64_t count,
                        void* dst, int64_t capacity, int64_t* out_counts,
                        choir_dtype_t dtype, const char* name) CHOIR_NODISCARD;
// Part `rank` of the reduction of src[size * count] to dst[count]. dst may be
// src + rank * count.
CHOIR_API choir_status_t choir_comm_reduce_scatter(
    choir_comm_t* comm, const void* src, void* dst, int64_t count,
    choir_dtype_t dtype, choir_reduce_t op, const char* name) CHOIR_NODISCARD;
// The same of src[count] for any count: of count elements rank r gets
// count / size, the first count % size ranks one more, in rank order
// (choir_comm_share). dst may be src + the start of the own share.
CHOIR_API choir_status_t choir_comm_reduce_scatter_v(
    choir_comm_t* comm, const void* src, void* dst, int64_t count,
    choir_dtype_t dtype, choir_reduce_t op, const char* name) CHOIR_NODISCARD;
CHOIR_API void choir_comm_share(int64_t count, int32_t rank, int32_t size,
                                int64_t* out_start, int64_t* out_count);
// As all_reduce, to `root` only; others' dst is not looked at.
CHOIR_API choir_status_t choir_comm_reduce(choir_comm_t* comm, const void* src,
                                           void* dst, int64_t count,
                                           choir_dtype_t dtype,
                                           choir_reduce_t op, int32_t root,
                                           const char* name) CHOIR_NODISCARD;
// As all_gather and all_gather_v, to `root` only; others' dst, capacity and
// out_counts are not looked at (out_counts are set to 0).
CHOIR_API choir_status_t choir_comm_gather(choir_comm_t* comm, const void* src,
                                           void* dst, int64_t count,
                                           choir_dtype_t dtype, int32_t root,
                                           const char* name) CHOIR_NODISCARD;
CHOIR_API choir_status_t choir_comm_gather_v(choir_comm_t* comm,
                                             const void* src, int64_t count,
                                             void* dst, int64_t capacity,
                                             int64_t* out_counts,
                                             choir_dtype_t dtype, int32_t root,
                                             const char* name) CHOIR_NODISCARD;
// Part r of the root's src[size * count] to dst[count] of rank r; others' src
// is not looked at.
CHOIR_API choir_status_t choir_comm_scatter(choir_comm_t* comm, const void* src,
                                            void* dst, int64_t count,
                                            choir_dtype_t dtype, int32_t root,
                                            const char* name) CHOIR_NODISCARD;
// The root gives splits[r] elements of its src[count] to rank r, one part after
// the other; the splits add to count. out_count, which may be NULL, is how many
// came to dst[capacity]. Others' src, count and splits are not looked at.
CHOIR_API choir_status_t choir_comm_scatter_v(
    choir_comm_t* comm, const void* src, int64_t count, const int64_t* splits,
    void* dst, int64_t capacity, int64_t* out_count, choir_dtype_t dtype,
    int32_t root, const char* name) CHOIR_NODISCARD;
// Part r of every rank's src[size * count] to rank r, whose dst[size * count]
// has them in rank order. src and dst must not overlap.
CHOIR_API choir_status_t choir_comm_all_to_all(
    choir_comm_t* comm, const void* src, void* dst, int64_t count,
    choir_dtype_t dtype, const char* name) CHOIR_NODISCARD;
// Every rank gives splits[r], 0 or more, elements of its src[count] to rank r;
// the splits add to count. What came stands in dst[capacity] in rank order;
// out_counts[size], which may be NULL, is how many came from each rank.
CHOIR_API choir_status_t choir_comm_all_to_all_v(
    choir_comm_t* comm, const void* src, int64_t count, const int64_t* splits,
    void* dst, int64_t capacity, int64_t* out_counts, choir_dtype_t dtype,
    const char* name) CHOIR_NODISCARD;
CHOIR_API choir_status_t choir_comm_barrier(choir_comm_t* comm,
                                            const char* name) CHOIR_NODISCARD;
// Collective: INVALID_ARGUMENT on every rank, naming what rank 0 has and what
// the first has that has something else ("shares: rank 0 has '96,32', rank 1
// has '64,64'; all ranks need the same"), unless all give the same `text`.
CHOIR_API choir_status_t choir_comm_check_same(choir_comm_t* comm,
                                               const char* what,
                                               const char* text)
    CHOIR_NODISCARD;

// For a rank that has run out of data while others have some: until all ranks
// have joined, it takes part in their sums and averages by all_reduce as zeros
// of weight 1 (so an average divides by the number of ranks); all else that
// they call fails on them and names it. Returns when all have joined; out_last
// is the rank that came last, the same on all (of several that came at once the
// highest).
CHOIR_API choir_status_t choir_comm_join(choir_comm_t* comm, int32_t* out_last)
    CHOIR_NODISCARD;

// From this rank to `peer`, which receives the same count, dtype and name, and
// the other way round: an operation of these two ranks alone, which other ranks
// do not take part in. Both wait for each other. A difference is an error on
// both; a wrong peer on the caller alone.
CHOIR_API choir_status_t choir_comm_send(choir_comm_t* comm, const void* data,
                                         int64_t count, choir_dtype_t dtype,
                                         int32_t peer, const char* name)
    CHOIR_NODISCARD;
CHOIR_API choir_status_t choir_comm_receive(choir_comm_t* comm, void* data,
                                            int64_t count, choir_dtype_t dtype,
                                            int32_t peer, const char* name)
    CHOIR_NODISCARD;

// ---- Collectives: the general form ----

typedef struct choir_collective_s {
  choir_collective_kind_t kind;
  choir_reduce_t op;
  choir_dtype_t dtype;
  int32_t root;   // send, receive: the other rank
  int64_t count;  // as in the calls above
  const void* src;
  void* dst;
  // AVERAGE of floats: this rank's share is weight / (sum of weights), f32
  // rounded; the sum is f32 fmaf in rank order. All equal: 1 each. A rank
  // with weight 0 takes part and adds nothing.
  double weight;
  // The weight is the rank's samples of a step: a graph that runs the record
  // again sets it anew.
  bool weight_is_samples;
  // Reductions: dst = postscale * reduction of (prescale * src), the same on
  // all ranks, if `scales`. Floats: f32 (f64 for F64), rounded to 16 bits at
  // the end only. Integers: each product by another factor than 1 in f64,
  // truncated towards zero and clamped to the type. Not for BOOL.
  bool scales;
  double prescale;
  double postscale;
  // Kinds whose name ends in _v (but reduce_scatter_v). Room in dst, in
  // elements.
  int64_t capacity;
  // NULL, or where `count` is read when the operation runs: on a stream a
  // record before it may decide how much there is to give.
  const int64_t* count_at;
  // scatter_v (root only), all_to_all_v: [size], read when the operation runs.
  const int64_t* splits;
  // NULL, or [size]: set to what came from each rank; scatter_v: one number.
  int64_t* counts;
  // all_reduce, broadcast, all_gather, reduce_scatter: NULL, or tensors of one
  // dtype that are agreed on and moved as one, in which case src, dst and count
  // are not looked at. Atomic: what is wrong with one fails all, and every dst
  // stays as it was.
  const choir_comm_tensor_t* tensors;
  int32_t tensor_count;
  // On a stream of a GPU: src and dst are host memory nevertheless.
  bool in_host_memory;
  // Belongs to step `step` of training, on the batch that the program counts as
  // `batch` (0: it does not tell): where ranks are at different ones, all of
  // them get an error that names both, and no data move. A graph that runs the
  // record again sets both anew.
  bool in_step;
  int64_t step;
  int64_t batch;
  // NULL, or why this rank cannot take part (a text of up to 199 bytes). It
  // takes part in agreeing on the operation alone, so that all ranks get the
  // reason at once, with this code (none: INVALID_ARGUMENT), and none is out of
  // order after it; nothing but kind, name and root (of a pair) is looked at.
  const char* refusal;
  choir_status_code_t refusal_code;
  // What pointers here lead to is long-lived until the operation is done.
  const char* name;
} choir_collective_t;

// Runs one collective and waits for it.
CHOIR_API choir_status_t choir_comm_run(choir_comm_t* comm,
                                        const choir_collective_t* collective)
    CHOIR_NODISCARD;
// Submits it as a record to `stream` (a BACKGROUND stream overlaps with
// computing); memory must stay until the stream is past it. Blocking calls do
// not wait for it: all ranks need one order, so synchronise the stream first.
// A call that is wrong waits for the other ranks, who hear of it.
//
// src and dst (or those of tensors) are memory of the stream's device. Where
// the host cannot see that (a GPU), the data are read down, go over the host
// and are written up, in the stream's order and before this returns: told once
// in the log, and counted. `splits`, `counts` and `count_at` are host memory
// always.
//
// With the backend nccl a GPU's data are moved by the GPUs, in the order of the
// streams, and nobody waits on the host. What fails then breaks the
// communicator (choir_comm_poll_error): the streams get on, with data that mean
// nothing.
CHOIR_API choir_status_t choir_comm_submit(choir_comm_t* comm,
                                           choir_stream_t* stream,
                                           const choir_collective_t* collective)
    CHOIR_NODISCARD;
// Starts it on the communicator's own background thread. The handle is owned
// by the caller, who calls _wait (once) or _release. A call that is wrong, or
// for which there is no memory, waits for the other ranks, who hear of it.
CHOIR_API choir_status_t choir_comm_start(choir_comm_t* comm,
                                          const choir_collective_t* collective,
                                          choir_work_t** out_work)
    CHOIR_NODISCARD;
// The version of the machine's NCCL, such as 22809 for 2.28.9. UNAVAILABLE: it
// has none that serves, and why; opens it, and asks no GPU. Any thread.
CHOIR_API choir_status_t choir_comm_nccl_version(int32_t* out_version)
    CHOIR_NODISCARD;
// Bytes that went over the host so far, down and up.
CHOIR_API uint64_t choir_comm_staged_bytes(const choir_comm_t* comm);
CHOIR_API bool choir_work_is_done(choir_work_t* work);
// Blocks until it is done; returns its failure; releases the handle.
CHOIR_API choir_status_t choir_work_wait(choir_work_t* work) CHOIR_NODISCARD;
CHOIR_API void choir_work_release(choir_work_t* work);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_COMM_H_
