// SPDX-License-Identifier: Apache-2.0
// How ranks find each other: rank r listens on an abstract Unix socket,
// connects to all lower ranks and is called by all higher ones. Abstract names
// go with their sockets; nothing is left in any folder. The listening socket
// stays open, so that a second use of an id is noticed.
//
// /proc/net/unix shows a name to every user of the machine as soon as its rank
// listens. So the name is a keyed one-way function of the id and the rank: who
// sees one cannot tell the others', and cannot wait there for a rank that is
// late. Both ends of a connection then ask the kernel for the other's user, and
// both prove that they know the id (comm_proof_internal.h), before anything is
// taken from them:
//   caller    nonce
//   listener  nonce, who it is, proof over both
//   caller    who it is, proof over both
// What the listener tells before the caller's proof (its rank, host, pid and
// cores) goes to a process of the same user only, which can see it anyway. Then
// rank 0 hands the control segment to all. A rank that gives up says why
// on all its sockets, so that the others do not wait for their own deadline.
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/backends/shm/shm_internal.h"
#include "dist/comm_proof_internal.h"

#define HELLO_MAGIC 0x43484f4952534832ull  // changes with the layout
#define TEXT_BYTES 320
#define NONCE_BYTES 16
// Connections of other users to be turned away in one look.
#define MAX_REFUSED 256
// A caller that has not proven itself for so long gives its place to another.
#define UNPROVEN_SECONDS 1

enum { HELLO_CALLS = 1, HELLO_GREETS = 2, HELLO_GIVES_UP = 3 };

// The first three stay where they are in every version, so that ranks of two
// versions can tell each other.
typedef struct hello_s {
  uint64_t magic;
  unsigned char nonce[NONCE_BYTES];
  choir__comm_proof_t proof;
  int32_t kind;
  int32_t code;  // choir_status_code_t of HELLO_GIVES_UP
  choir_comm_identity_t identity;
  uint64_t segment_bytes;
  char text[TEXT_BYTES];
} hello_t;
#define HELLO_HEAD_BYTES offsetof(hello_t, kind)

// As it came; of another version it may be longer or shorter.
typedef struct heard_s {
  union {
    hello_t hello;
    unsigned char bytes[4096];
  };
  size_t byte_count;
} heard_t;

// A connection whose hello has not come yet.
typedef struct caller_s {
  int socket;  // -1: none
  double since;
  bool has_nonces;
  unsigned char nonce[NONCE_BYTES];  // this rank's
} caller_t;

typedef struct meeting_s {
  choir_shm_comm_t* shm;
  const choir_comm_config_t* config;
  choir_comm_identity_t own;
  caller_t* called;   // [size] to lower ranks
  caller_t* callers;  // [size] accepted, of unknown rank
  double deadline;
} meeting_t;

// The name is not NUL-terminated for the kernel: its length counts.
static choir_status_t make_address(const choir_comm_id_t* id, int32_t rank,
                                   struct sockaddr_un* address,
                                   socklen_t* out_bytes) {
  choir__comm_proof_t proof;
  CHOIR_TRY(choir__comm_prove(id, "shm name", (const unsigned char*)&rank,
                              sizeof(rank), &proof));
  memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  char* name = address->sun_path + 1;
  memcpy(name, "choir-", 6);
  sodium_bin2hex(name + 6, 32 + 1, proof.bytes, 16);
  *out_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 6 + 32);
  return NULL;
}

static int open_socket(void) {
  return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static choir_status_t socket_error(const char* what) {
  if (errno == EMFILE || errno == ENFILE)
    return CHOIR_ERROR(UNAVAILABLE,
                       "too few file descriptors: each rank needs one per "
                       "peer; raise the limit (ulimit -n)");
  return CHOIR_ERROR(UNAVAILABLE, "%s: %s", what, strerror(errno));
}

static void close_socket(int* socket) {
  if (*socket >= 0) close(*socket);
  *socket = -1;
}

static void drop(caller_t* caller) {
  close_socket(&caller->socket);
  caller->has_nonces = false;
}

// ---- Whose process is at the other end ----

// As the kernel noted it when the other end called connect or listen.
static bool get_peer(int socket, struct ucred* out_peer) {
  socklen_t bytes = sizeof(*out_peer);
  return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, out_peer, &bytes);
}

static bool is_same_user(const struct ucred* peer) {
  return peer->uid == geteuid();
}

static choir_status_t stranger_error(int32_t rank, const struct ucred* peer) {
  return CHOIR_ERROR(UNAVAILABLE,
                     "the place of rank %d is held by a process of another "
                     "user (uid %u, pid %d): the id can be guessed, or was in "
                     "use before; a new one from a launcher or "
                     "choir_comm_id_make keeps others out",
                     rank, (unsigned)peer->uid, (int)peer->pid);
}

// The name of this rank is taken.
static choir_status_t taken_error(int32_t rank,
                                  const struct sockaddr_un* address,
                                  socklen_t address_bytes) {
  int probe = open_socket();
  struct ucred peer;
  const bool is_known =
      probe >= 0 &&
      !connect(probe, (const struct sockaddr*)address, address_bytes) &&
      get_peer(probe, &peer);
  close_socket(&probe);
  if (is_known && !is_same_user(&peer)) return stranger_error(rank, &peer);
  return CHOIR_ERROR(ALREADY_EXISTS,
                     "rank %d of this id is there already; an id serves one "
                     "communicator",
                     rank);
}

static choir_status_t open_listener(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  const choir_comm_config_t* config = meeting->config;
  shm->listener = open_socket();
  if (shm->listener < 0) return socket_error("socket");
  struct sockaddr_un address;
  socklen_t bytes;
  CHOIR_TRY(make_address(&config->id, config->rank, &address, &bytes));
  if (bind(shm->listener, (struct sockaddr*)&address, bytes))
    return errno == EADDRINUSE ? taken_error(config->rank, &address, bytes)
                               : socket_error("bind");
  // Other users can call too: the queue is as long as the kernel allows.
  if (listen(shm->listener, SOMAXCONN)) return socket_error("listen");
  return NULL;
}

// ---- Hellos ----

static choir_status_t make_nonce(unsigned char nonce[NONCE_BYTES]) {
  if (getrandom(nonce, NONCE_BYTES, 0) == NONCE_BYTES) return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "no random numbers: %s", strerror(errno));
}

// A peer that went away is noticed when it is waited for.
static void send_message(int socket, const hello_t* hello) {
  ssize_t sent = send(socket, hello, sizeof(*hello), MSG_NOSIGNAL);
  (void)sent;
}

// What is heard is proven together with the nonce that it answers and with who
// says it: nothing that was said elsewhere or before fits.
static choir_status_t prove(const meeting_t* meeting, const char* side,
                            const unsigned char nonce[NONCE_BYTES],
                            const void* message, size_t bytes,
                            choir__comm_proof_t* out_proof) {
  unsigned char text[NONCE_BYTES + sizeof(heard_t)];
  memcpy(text, nonce, NONCE_BYTES);
  memcpy(text + NONCE_BYTES, message, bytes);
  memset(text + NONCE_BYTES + offsetof(hello_t, proof), 0,
         sizeof(choir__comm_proof_t));
  return choir__comm_prove(&meeting->config->id, side, text,
                           NONCE_BYTES + bytes, out_proof);
}

static const char of_listener[] = "shm listener";
static const char of_caller[] = "shm caller";

static void fill_hello(const meeting_t* meeting, hello_t* hello) {
  memset(hello, 0, sizeof(*hello));
  hello->magic = HELLO_MAGIC;
  hello->kind = HELLO_GREETS;
  hello->identity = meeting->own;
  hello->segment_bytes = meeting->config->segment_bytes;
}

// On a connection whose other end is proven.
static void give_up_on(const meeting_t* meeting, int socket,
                       choir_status_t why) {
  hello_t hello;
  fill_hello(meeting, &hello);
  hello.kind = HELLO_GIVES_UP;
  hello.code = (int32_t)choir_status_code(why);
  snprintf(hello.text, sizeof(hello.text), "%s", choir_status_message(why));
  send_message(socket, &hello);
}

static choir_status_t greet(const meeting_t* meeting, caller_t* caller,
                            const char* side,
                            const unsigned char their_nonce[NONCE_BYTES]) {
  hello_t hello;
  fill_hello(meeting, &hello);
  memcpy(hello.nonce, caller->nonce, NONCE_BYTES);
  CHOIR_TRY(
      prove(meeting, side, their_nonce, &hello, sizeof(hello), &hello.proof));
  send_message(caller->socket, &hello);
  return NULL;
}

static choir_status_t check_hello(const meeting_t* meeting,
                                  const hello_t* hello) {
  const choir_comm_config_t* config = meeting->config;
  if (hello->kind == HELLO_GIVES_UP) {
    choir_status_code_t code = (choir_status_code_t)hello->code;
    return choir_status_make(code ? code : CHOIR_STATUS_ABORTED, __FILE__,
                             __LINE__, __func__, "%.*s", TEXT_BYTES - 1,
                             hello->text);
  }
  const choir_comm_identity_t* peer = &hello->identity;
  const choir_comm_identity_t* own = &meeting->own;
  bool is_lower = peer->rank < own->rank;
  const choir_comm_identity_t* a = is_lower ? peer : own;
  const choir_comm_identity_t* b = is_lower ? own : peer;
  if (peer->size != own->size)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "rank %d (pid %d) has size %d, rank %d (pid %d) has "
                       "size %d; all ranks need the same",
                       a->rank, a->pid, a->size, b->rank, b->pid, b->size);
  if (hello->segment_bytes != config->segment_bytes) {
    uint64_t theirs = hello->segment_bytes;
    uint64_t ours = config->segment_bytes;
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "rank %d has segment_bytes %llu, rank %d has %llu; all ranks need the "
        "same",
        a->rank, (unsigned long long)(is_lower ? theirs : ours), b->rank,
        (unsigned long long)(is_lower ? ours : theirs));
  }
  return NULL;
}

typedef enum answer_e { ANSWER_NONE, ANSWER_CLOSED, ANSWER_CAME } answer_t;

// Never waits.
static answer_t hear(int socket, heard_t* out_heard) {
  memset(out_heard, 0, sizeof(*out_heard));
  ssize_t bytes =
      recv(socket, out_heard->bytes, sizeof(out_heard->bytes), MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return ANSWER_NONE;
  if (bytes <= 0) return ANSWER_CLOSED;
  out_heard->byte_count = (size_t)bytes;
  return ANSWER_CAME;
}

// Whether it comes from a process that knows the id, now, and is of `side`.
static choir_status_t is_proven(const meeting_t* meeting, const heard_t* heard,
                                const char* side,
                                const unsigned char own_nonce[NONCE_BYTES],
                                bool* out_proven) {
  *out_proven = false;
  if (heard->byte_count < HELLO_HEAD_BYTES) return NULL;
  choir__comm_proof_t proof;
  CHOIR_TRY(
      prove(meeting, side, own_nonce, heard->bytes, heard->byte_count, &proof));
  *out_proven = choir__comm_proof_equal(&proof, &heard->hello.proof);
  return NULL;
}

// What a proven hello says; text and numbers of it may be used after this.
static choir_status_t read_hello(const meeting_t* meeting, heard_t* heard) {
  if (heard->byte_count != sizeof(hello_t) || heard->hello.magic != HELLO_MAGIC)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "another rank runs another version of Choir");
  heard->hello.text[TEXT_BYTES - 1] = 0;
  return check_hello(meeting, &heard->hello);
}

static void adopt(meeting_t* meeting, const hello_t* hello, caller_t* caller) {
  choir_shm_comm_t* shm = meeting->shm;
  int32_t rank = hello->identity.rank;
  shm->sockets[rank] = caller->socket;
  shm->base.peers[rank].identity = hello->identity;
  *caller = (caller_t){.socket = -1};
}

// ---- Calling lower ranks ----

static choir_status_t call(meeting_t* meeting, int32_t rank, caller_t* called) {
  struct sockaddr_un address;
  socklen_t bytes;
  CHOIR_TRY(make_address(&meeting->config->id, rank, &address, &bytes));
  called->socket = open_socket();
  if (called->socket < 0) return socket_error("socket");
  if (connect(called->socket, (struct sockaddr*)&address, bytes)) {
    drop(called);  // not there yet, or busy with other callers
    return NULL;
  }
  struct ucred peer;
  if (!get_peer(called->socket, &peer)) return socket_error("SO_PEERCRED");
  if (!is_same_user(&peer)) return stranger_error(rank, &peer);
  CHOIR_TRY(make_nonce(called->nonce));
  hello_t hello = {.magic = HELLO_MAGIC, .kind = HELLO_CALLS};
  memcpy(hello.nonce, called->nonce, NONCE_BYTES);
  send_message(called->socket, &hello);
  return NULL;
}

static choir_status_t call_lower(meeting_t* meeting, int32_t rank) {
  caller_t* called = &meeting->called[rank];
  if (called->socket < 0) CHOIR_TRY(call(meeting, rank, called));
  if (called->socket < 0) return NULL;
  heard_t heard;
  answer_t answer = hear(called->socket, &heard);
  if (answer == ANSWER_CLOSED) drop(called);  // it is ending
  if (answer != ANSWER_CAME) return NULL;
  bool proven;
  CHOIR_TRY(is_proven(meeting, &heard, of_listener, called->nonce, &proven));
  if (!proven) {
    struct ucred peer = {0};
    get_peer(called->socket, &peer);
    return CHOIR_ERROR(UNAVAILABLE,
                       "the place of rank %d is held by a process that does "
                       "not know the id (uid %u, pid %d)",
                       rank, (unsigned)peer.uid, (int)peer.pid);
  }
  // Else somebody here hands on what another rank says.
  choir_status_t status = read_hello(meeting, &heard);
  if (!status && heard.hello.identity.rank != rank)
    return CHOIR_ERROR(INTERNAL, "rank %d says it is rank %d", rank,
                       heard.hello.identity.rank);
  // Also where they differ: the other rank is to find the same.
  status = choir_status_join(
      status, greet(meeting, called, of_caller, heard.hello.nonce));
  if (!status) adopt(meeting, &heard.hello, called);
  return status;
}

// ---- Called by higher ranks ----

// Free, or of the caller that has been silent for longest. NULL: none.
static caller_t* find_place(meeting_t* meeting, double now) {
  caller_t* oldest = NULL;
  for (int32_t i = 0; i < meeting->config->size; ++i) {
    caller_t* caller = &meeting->callers[i];
    if (caller->socket < 0) return caller;
    if (!oldest || caller->since < oldest->since) oldest = caller;
  }
  return now - oldest->since > UNPROVEN_SECONDS ? oldest : NULL;
}

static choir_status_t accept_callers(meeting_t* meeting, int* out_refused) {
  const double now = choir_clock_seconds();
  caller_t* place;
  *out_refused = 0;
  while (*out_refused < MAX_REFUSED && (place = find_place(meeting, now))) {
    int socket = accept4(meeting->shm->listener, NULL, NULL,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
      return errno == EMFILE || errno == ENFILE ? socket_error("accept") : NULL;
    struct ucred peer;
    if (get_peer(socket, &peer) && is_same_user(&peer)) {
      drop(place);
      *place = (caller_t){.socket = socket, .since = now};
      continue;
    }
    // Another user may see the name but has no business here.
    close(socket);
    ++*out_refused;
  }
  return NULL;
}

static choir_status_t hear_caller(meeting_t* meeting, caller_t* caller) {
  heard_t heard;
  answer_t answer = hear(caller->socket, &heard);
  if (answer == ANSWER_CLOSED) drop(caller);
  if (answer != ANSWER_CAME) return NULL;
  if (!caller->has_nonces) {
    if (heard.byte_count < HELLO_HEAD_BYTES) {
      drop(caller);
      return NULL;
    }
    CHOIR_TRY(make_nonce(caller->nonce));
    caller->has_nonces = true;
    return greet(meeting, caller, of_listener, heard.hello.nonce);
  }
  bool proven;
  CHOIR_TRY(is_proven(meeting, &heard, of_caller, caller->nonce, &proven));
  if (!proven) {
    drop(caller);
    return NULL;
  }
  choir_status_t status = read_hello(meeting, &heard);
  if (status) {
    give_up_on(meeting, caller->socket, status);
    return status;
  }
  int32_t rank = heard.hello.identity.rank;
  if (rank <= meeting->config->rank || rank >= meeting->config->size ||
      meeting->shm->sockets[rank] >= 0)
    drop(caller);
  else
    adopt(meeting, &heard.hello, caller);
  return NULL;
}

// Peers that were met say nothing unless they give up or die; rank 0 gives
// memory.
static choir_status_t check_met(meeting_t* meeting, int32_t rank) {
  int socket = meeting->shm->sockets[rank];
  // The control segment may already be on its way: only look.
  hello_t hello;
  ssize_t bytes = recv(socket, &hello, sizeof(hello), MSG_DONTWAIT | MSG_PEEK);
  if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR))
    return CHOIR_ERROR(ABORTED,
                       "rank %d (pid %d) ended while ranks were joining", rank,
                       meeting->shm->base.peers[rank].identity.pid);
  if (bytes == (ssize_t)sizeof(hello)) {
    hello.text[TEXT_BYTES - 1] = 0;
    return check_hello(meeting, &hello);
  }
  return NULL;
}

static choir_status_t tell_missing(meeting_t* meeting) {
  choir_comm_t* comm = &meeting->shm->base;
  char ranks[128];
  int32_t count = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    comm->flags[r] = r != comm->rank && meeting->shm->sockets[r] < 0;
    count += comm->flags[r];
  }
  choir__comm_rank_list(comm->flags, comm->size, ranks, sizeof(ranks));
  char silent[128] = "";
  for (int32_t r = 0; r < comm->size && !silent[0]; ++r) {
    struct ucred peer;
    const int socket = meeting->called[r].socket;
    if (socket >= 0 && get_peer(socket, &peer))
      snprintf(silent, sizeof(silent),
               "; the process at the place of rank %d does not answer (uid %u, "
               "pid %d)",
               r, (unsigned)peer.uid, (int)peer.pid);
  }
  return CHOIR_ERROR(TIMEOUT,
                     "rank %d (host %s, pid %d) waited %.1f s at the start; %s "
                     "of %d %s not come%s",
                     comm->rank, meeting->own.host, meeting->own.pid,
                     meeting->config->deadline, ranks, comm->size,
                     count == 1 ? "has" : "have", silent);
}

static choir_status_t connect_mesh(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  int32_t size = meeting->config->size;
  int32_t own = meeting->config->rank;
  for (useconds_t pause = 100;; pause = pause < 10000 ? pause * 2 : 10000) {
    int32_t missing = 0;
    int refused;
    for (int32_t i = 0; i < size; ++i)
      if (meeting->callers[i].socket >= 0)
        CHOIR_TRY(hear_caller(meeting, &meeting->callers[i]));
    CHOIR_TRY(accept_callers(meeting, &refused));
    for (int32_t r = 0; r < size; ++r) {
      if (r == own) continue;
      if (shm->sockets[r] < 0 && r < own) CHOIR_TRY(call_lower(meeting, r));
      if (shm->sockets[r] >= 0) CHOIR_TRY(check_met(meeting, r));
      missing += shm->sockets[r] < 0;
    }
    if (missing == 0) return NULL;
    if (choir_clock_seconds() > meeting->deadline) return tell_missing(meeting);
    // Those of others must not keep the queue full.
    if (refused < MAX_REFUSED) usleep(pause);
  }
}

static void plan_control(choir_shm_comm_t* shm) {
  choir_comm_t* comm = &shm->base;
  // Half a mebibyte per bank keeps a round in the second-level cache; many
  // ranks take less each.
  size_t exchange = ((size_t)32 << 20) / (size_t)comm->size;
  if (exchange > (512u << 10)) exchange = 512u << 10;
  exchange = exchange / 4096 * 4096;
  comm->exchange_bytes = exchange;
  comm->inline_bytes = 32u << 10;
  if (comm->inline_bytes > exchange) comm->inline_bytes = exchange;
  comm->inline_share_bytes = comm->inline_bytes;  // a peer reads its share only
  shm->bank_stride =
      (sizeof(choir_comm_message_t) + exchange + 4095) / 4096 * 4096;
  shm->slot_stride =
      (sizeof(choir_shm_slot_t) + 4095) / 4096 * 4096 + 2 * shm->bank_stride;
  shm->control_bytes = shm->slot_stride * (size_t)comm->size;
}

static choir_status_t hand_out_control(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  int fd;
  CHOIR_TRY(choir_shm_create_memory(shm->control_bytes, &fd));
  choir_status_t status = choir_shm_map(fd, shm->control_bytes, &shm->control);
  if (!status)
    for (int32_t r = 0; r < shm->base.size; ++r)
      choir__activity_clear(&choir_shm_slot(shm, r)->activity);
  for (int32_t r = 1; !status && r < shm->base.size; ++r)
    status = choir_shm_send_fd(shm->sockets[r], fd);
  close(fd);
  return status;
}

static choir_status_t take_control(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  for (;;) {
    for (int32_t r = 0; r < shm->base.size; ++r)
      if (r != shm->base.rank) CHOIR_TRY(check_met(meeting, r));
    struct pollfd from_root = {.fd = shm->sockets[0], .events = POLLIN};
    if (poll(&from_root, 1, 20) > 0 && (from_root.revents & POLLIN)) break;
    if (choir_clock_seconds() > meeting->deadline)
      return CHOIR_ERROR(TIMEOUT, "rank 0 gave no shared memory within %.1f s",
                         meeting->config->deadline);
  }
  CHOIR_TRY(check_met(meeting, 0));
  int fd = -1;
  if (!choir_shm_try_receive_fd(shm->sockets[0], &fd) || fd < 0)
    return CHOIR_ERROR(INTERNAL, "rank 0 gave no shared memory");
  choir_status_t status = choir_shm_map(fd, shm->control_bytes, &shm->control);
  close(fd);
  return status;
}

static choir_status_t allocate_tables(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  size_t size = (size_t)shm->base.size;
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(shm->base.allocator,
                     size * sizeof(int) + (size + 1) * sizeof(struct pollfd),
                     "sockets", &memory));
  shm->polls = memory;
  shm->sockets = (int*)(void*)(shm->polls + size + 1);
  for (size_t r = 0; r < size; ++r) shm->sockets[r] = -1;
  CHOIR_TRY(choir_allocate(shm->base.allocator, 2 * size * sizeof(caller_t),
                           "sockets", &memory));
  meeting->called = memory;
  meeting->callers = meeting->called + size;
  for (size_t r = 0; r < 2 * size; ++r)
    meeting->called[r] = (caller_t){.socket = -1};
  return NULL;
}

static choir_status_t meet(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  CHOIR_TRY(open_listener(meeting));
  CHOIR_TRY(connect_mesh(meeting));
  plan_control(shm);
  CHOIR_TRY(shm->base.rank == 0 ? hand_out_control(meeting)
                                : take_control(meeting));
  for (int32_t r = 0; r < shm->base.size; ++r)
    shm->polls[r] = (struct pollfd){.fd = shm->sockets[r], .events = POLLRDHUP};
  shm->polls[shm->base.size] =
      (struct pollfd){.fd = shm->base.wake_fd, .events = POLLIN};
  return NULL;
}

static void give_up(meeting_t* meeting, choir_status_t why) {
  for (int32_t r = 0; r < meeting->config->size; ++r)
    if (meeting->shm->sockets[r] >= 0)
      give_up_on(meeting, meeting->shm->sockets[r], why);
}

choir_status_t choir_shm_meet(choir_shm_comm_t* shm,
                              const choir_comm_config_t* config) {
  meeting_t meeting = {.shm = shm,
                       .config = config,
                       .deadline = choir_clock_seconds() + config->deadline};
  choir__comm_identify(config, &meeting.own);
  shm->base.peers[config->rank].identity = meeting.own;
  CHOIR_TRY(allocate_tables(&meeting));
  choir_status_t status = meet(&meeting);
  if (status) give_up(&meeting, status);
  for (int32_t r = 0; r < 2 * config->size; ++r) drop(&meeting.called[r]);
  choir_deallocate(shm->base.allocator, meeting.called,
                   2 * (size_t)config->size * sizeof(caller_t));
  return status;
}

void choir_shm_part(choir_shm_comm_t* shm) {
  if (shm->sockets)
    for (int32_t r = 0; r < shm->base.size; ++r) close_socket(&shm->sockets[r]);
  close_socket(&shm->listener);
  size_t size = (size_t)shm->base.size;
  if (shm->polls)
    choir_deallocate(shm->base.allocator, shm->polls,
                     size * sizeof(int) + (size + 1) * sizeof(struct pollfd));
}
