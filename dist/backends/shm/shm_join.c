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
// take nothing before a handshake in which each shows that it knows the id, by
// a message authentication code (comm_mac_internal.h):
//   caller    nonce
//   listener  nonce, identity, code of these and the caller's nonce
//   caller    identity, code of this and the listener's nonce
// The listener's identity (rank, host, pid and cores) goes to a process of the
// same user that has shown nothing yet, and can see it anyway. Then rank 0
// hands the control segment to all. A rank that gives up says why on all its
// sockets, so that the others do not wait for their own deadline.
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
#include "dist/comm_mac_internal.h"

#define HANDSHAKE_MAGIC 0x43484f4952534832ull  // changes with the layout
#define TEXT_BYTES 320
#define NONCE_BYTES 16
// Connections of other users to be turned away in one look.
#define MAX_REFUSED 256
// A caller whose handshake takes longer gives its place to another.
#define HANDSHAKE_SECONDS 1

enum { HANDSHAKE_CALL = 1, HANDSHAKE_IDENTITY = 2, HANDSHAKE_ABORT = 3 };

// The first three stay where they are in every version, so that ranks of two
// versions can tell each other.
typedef struct handshake_s {
  uint64_t magic;
  unsigned char nonce[NONCE_BYTES];
  choir__comm_mac_t mac;
  int32_t kind;
  int32_t code;  // choir_status_code_t of HANDSHAKE_ABORT
  choir_comm_identity_t identity;
  uint64_t segment_bytes;
  char text[TEXT_BYTES];
} handshake_t;
#define HANDSHAKE_HEAD_BYTES offsetof(handshake_t, kind)

// As it came; of another version it may be longer or shorter.
typedef struct received_s {
  union {
    handshake_t handshake;
    unsigned char bytes[4096];
  };
  size_t byte_count;
} received_t;

// A connection whose handshake is not over.
typedef struct caller_s {
  int socket;  // -1: none
  double since;
  bool has_nonces;
  unsigned char nonce[NONCE_BYTES];  // this rank's
} caller_t;

typedef struct join_s {
  choir_shm_comm_t* shm;
  const choir_comm_config_t* config;
  choir_comm_identity_t own;
  caller_t* called;   // [size] to lower ranks
  caller_t* callers;  // [size] accepted, of unknown rank
  double deadline;
} join_t;

// The name is not NUL-terminated for the kernel: its length counts.
static choir_status_t make_address(const choir_comm_id_t* id, int32_t rank,
                                   struct sockaddr_un* address,
                                   socklen_t* out_bytes) {
  choir__comm_mac_t mac;
  CHOIR_TRY(choir__comm_mac_make(id, "shm name", (const unsigned char*)&rank,
                                 sizeof(rank), &mac));
  memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  char* name = address->sun_path + 1;
  memcpy(name, "choir-", 6);
  sodium_bin2hex(name + 6, 32 + 1, mac.bytes, 16);
  *out_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 6 + 32);
  return NULL;
}

static int open_socket(void) {
  return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static choir_status_t socket_error(const char* what) {
  if (errno == EMFILE)
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

static choir_status_t open_listener(join_t* join) {
  choir_shm_comm_t* shm = join->shm;
  const choir_comm_config_t* config = join->config;
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

// ---- Handshakes ----

static choir_status_t make_nonce(unsigned char nonce[NONCE_BYTES]) {
  if (getrandom(nonce, NONCE_BYTES, 0) == NONCE_BYTES) return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "no random numbers: %s", strerror(errno));
}

// A peer that went away is noticed when it is waited for.
static void send_message(int socket, const handshake_t* handshake) {
  ssize_t sent = send(socket, handshake, sizeof(*handshake), MSG_NOSIGNAL);
  (void)sent;
}

// Of the message, the nonce that it answers and the side that sends it: no
// message of another connection or time fits.
static choir_status_t make_mac(const join_t* join, const char* side,
                               const unsigned char nonce[NONCE_BYTES],
                               const void* message, size_t bytes,
                               choir__comm_mac_t* out_mac) {
  unsigned char text[NONCE_BYTES + sizeof(received_t)];
  memcpy(text, nonce, NONCE_BYTES);
  memcpy(text + NONCE_BYTES, message, bytes);
  memset(text + NONCE_BYTES + offsetof(handshake_t, mac), 0,
         sizeof(choir__comm_mac_t));
  return choir__comm_mac_make(&join->config->id, side, text,
                              NONCE_BYTES + bytes, out_mac);
}

static const char of_listener[] = "shm listener";
static const char of_caller[] = "shm caller";

static void fill_handshake(const join_t* join, handshake_t* handshake) {
  memset(handshake, 0, sizeof(*handshake));
  handshake->magic = HANDSHAKE_MAGIC;
  handshake->kind = HANDSHAKE_IDENTITY;
  handshake->identity = join->own;
  handshake->segment_bytes = join->config->segment_bytes;
}

// After the handshake.
static void send_abort(const join_t* join, int socket, choir_status_t why) {
  handshake_t handshake;
  fill_handshake(join, &handshake);
  handshake.kind = HANDSHAKE_ABORT;
  handshake.code = (int32_t)choir_status_code(why);
  snprintf(handshake.text, sizeof(handshake.text), "%s",
           choir_status_message(why));
  send_message(socket, &handshake);
}

static choir_status_t send_handshake(
    const join_t* join, caller_t* caller, const char* side,
    const unsigned char their_nonce[NONCE_BYTES]) {
  handshake_t handshake;
  fill_handshake(join, &handshake);
  memcpy(handshake.nonce, caller->nonce, NONCE_BYTES);
  CHOIR_TRY(make_mac(join, side, their_nonce, &handshake, sizeof(handshake),
                     &handshake.mac));
  send_message(caller->socket, &handshake);
  return NULL;
}

static choir_status_t check_handshake(const join_t* join,
                                      const handshake_t* handshake) {
  const choir_comm_config_t* config = join->config;
  if (handshake->kind == HANDSHAKE_ABORT) {
    choir_status_code_t code = (choir_status_code_t)handshake->code;
    return choir_status_make(code ? code : CHOIR_STATUS_ABORTED, __FILE__,
                             __LINE__, __func__, "%.*s", TEXT_BYTES - 1,
                             handshake->text);
  }
  const choir_comm_identity_t* peer = &handshake->identity;
  const choir_comm_identity_t* own = &join->own;
  bool is_lower = peer->rank < own->rank;
  const choir_comm_identity_t* a = is_lower ? peer : own;
  const choir_comm_identity_t* b = is_lower ? own : peer;
  if (peer->size != own->size)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "rank %d (pid %d) has size %d, rank %d (pid %d) has "
                       "size %d; all ranks need the same",
                       a->rank, a->pid, a->size, b->rank, b->pid, b->size);
  if (handshake->segment_bytes != config->segment_bytes) {
    uint64_t theirs = handshake->segment_bytes;
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
static answer_t receive(int socket, received_t* out_received) {
  memset(out_received, 0, sizeof(*out_received));
  ssize_t bytes = recv(socket, out_received->bytes, sizeof(out_received->bytes),
                       MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return ANSWER_NONE;
  if (bytes <= 0) return ANSWER_CLOSED;
  out_received->byte_count = (size_t)bytes;
  return ANSWER_CAME;
}

// Whether it comes from a process that knows the id, now, and is of `side`.
static choir_status_t is_authentic(const join_t* join,
                                   const received_t* received, const char* side,
                                   const unsigned char own_nonce[NONCE_BYTES],
                                   bool* out_authentic) {
  *out_authentic = false;
  if (received->byte_count < HANDSHAKE_HEAD_BYTES) return NULL;
  choir__comm_mac_t mac;
  CHOIR_TRY(make_mac(join, side, own_nonce, received->bytes,
                     received->byte_count, &mac));
  *out_authentic = choir__comm_mac_equal(&mac, &received->handshake.mac);
  return NULL;
}

// What an authentic message says; its text and numbers may be used after this.
static choir_status_t read_handshake(const join_t* join, received_t* received) {
  if (received->byte_count != sizeof(handshake_t) ||
      received->handshake.magic != HANDSHAKE_MAGIC)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "another rank runs another version of Choir");
  received->handshake.text[TEXT_BYTES - 1] = 0;
  return check_handshake(join, &received->handshake);
}

static void register_peer(join_t* join, const handshake_t* handshake,
                          caller_t* caller) {
  choir_shm_comm_t* shm = join->shm;
  int32_t rank = handshake->identity.rank;
  shm->sockets[rank] = caller->socket;
  shm->base.peers[rank].identity = handshake->identity;
  *caller = (caller_t){.socket = -1};
}

// ---- Calling lower ranks ----

static choir_status_t start_call(join_t* join, int32_t rank, caller_t* called) {
  struct sockaddr_un address;
  socklen_t bytes;
  CHOIR_TRY(make_address(&join->config->id, rank, &address, &bytes));
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
  handshake_t handshake = {.magic = HANDSHAKE_MAGIC, .kind = HANDSHAKE_CALL};
  memcpy(handshake.nonce, called->nonce, NONCE_BYTES);
  send_message(called->socket, &handshake);
  return NULL;
}

static choir_status_t connect_to_lower(join_t* join, int32_t rank) {
  caller_t* called = &join->called[rank];
  if (called->socket < 0) CHOIR_TRY(start_call(join, rank, called));
  if (called->socket < 0) return NULL;
  received_t received;
  answer_t answer = receive(called->socket, &received);
  if (answer == ANSWER_CLOSED) drop(called);  // it is ending
  if (answer != ANSWER_CAME) return NULL;
  bool authentic;
  CHOIR_TRY(
      is_authentic(join, &received, of_listener, called->nonce, &authentic));
  if (!authentic) {
    struct ucred peer = {0};
    get_peer(called->socket, &peer);
    return CHOIR_ERROR(UNAVAILABLE,
                       "the place of rank %d is held by a process that does "
                       "not know the id (uid %u, pid %d)",
                       rank, (unsigned)peer.uid, (int)peer.pid);
  }
  // Else somebody here hands on what another rank says.
  choir_status_t status = read_handshake(join, &received);
  if (!status && received.handshake.identity.rank != rank)
    return CHOIR_ERROR(INTERNAL, "rank %d says it is rank %d", rank,
                       received.handshake.identity.rank);
  // Also where they differ: the other rank is to find the same.
  status = choir_status_join(status, send_handshake(join, called, of_caller,
                                                    received.handshake.nonce));
  if (!status) register_peer(join, &received.handshake, called);
  return status;
}

// ---- Called by higher ranks ----

// Free, or of the caller that has been silent for longest. NULL: none.
static caller_t* find_place(join_t* join, double now) {
  caller_t* oldest = &join->callers[0];
  for (int32_t i = 0; i < join->config->size; ++i) {
    caller_t* caller = &join->callers[i];
    if (caller->socket < 0) return caller;
    if (caller->since < oldest->since) oldest = caller;
  }
  return now - oldest->since > HANDSHAKE_SECONDS ? oldest : NULL;
}

static choir_status_t accept_callers(join_t* join, int* out_refused) {
  const double now = choir_clock_seconds();
  caller_t* place;
  *out_refused = 0;
  while (*out_refused < MAX_REFUSED && (place = find_place(join, now))) {
    int socket =
        accept4(join->shm->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return errno == EMFILE ? socket_error("accept") : NULL;
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

static choir_status_t serve_caller(join_t* join, caller_t* caller) {
  received_t received;
  answer_t answer = receive(caller->socket, &received);
  if (answer == ANSWER_CLOSED) drop(caller);
  if (answer != ANSWER_CAME) return NULL;
  if (!caller->has_nonces) {
    if (received.byte_count < HANDSHAKE_HEAD_BYTES) {
      drop(caller);
      return NULL;
    }
    CHOIR_TRY(make_nonce(caller->nonce));
    caller->has_nonces = true;
    return send_handshake(join, caller, of_listener, received.handshake.nonce);
  }
  bool authentic;
  CHOIR_TRY(
      is_authentic(join, &received, of_caller, caller->nonce, &authentic));
  if (!authentic) {
    drop(caller);
    return NULL;
  }
  choir_status_t status = read_handshake(join, &received);
  if (status) {
    send_abort(join, caller->socket, status);
    return status;
  }
  int32_t rank = received.handshake.identity.rank;
  if (rank <= join->config->rank || rank >= join->config->size ||
      join->shm->sockets[rank] >= 0)
    drop(caller);
  else
    register_peer(join, &received.handshake, caller);
  return NULL;
}

// Peers that were met say nothing unless they give up or die; rank 0 gives
// memory.
static choir_status_t check_connected(join_t* join, int32_t rank) {
  int socket = join->shm->sockets[rank];
  // The control segment may already be on its way: only look.
  handshake_t handshake;
  ssize_t bytes =
      recv(socket, &handshake, sizeof(handshake), MSG_DONTWAIT | MSG_PEEK);
  if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR))
    return CHOIR_ERROR(ABORTED,
                       "rank %d (pid %d) ended while ranks were joining", rank,
                       join->shm->base.peers[rank].identity.pid);
  if (bytes == (ssize_t)sizeof(handshake)) {
    handshake.text[TEXT_BYTES - 1] = 0;
    return check_handshake(join, &handshake);
  }
  return NULL;
}

static choir_status_t tell_missing(join_t* join) {
  choir_comm_t* comm = &join->shm->base;
  char ranks[128];
  int32_t count = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    comm->flags[r] = r != comm->rank && join->shm->sockets[r] < 0;
    count += comm->flags[r];
  }
  choir__comm_rank_list(comm->flags, comm->size, ranks, sizeof(ranks));
  char silent[128] = "";
  for (int32_t r = 0; r < comm->size && !silent[0]; ++r) {
    struct ucred peer;
    const int socket = join->called[r].socket;
    if (socket >= 0 && get_peer(socket, &peer))
      snprintf(silent, sizeof(silent),
               "; the process at the place of rank %d does not answer (uid %u, "
               "pid %d)",
               r, (unsigned)peer.uid, (int)peer.pid);
  }
  return CHOIR_ERROR(TIMEOUT,
                     "rank %d (host %s, pid %d) waited %.1f s at the start; %s "
                     "of %d %s not come%s",
                     comm->rank, join->own.host, join->own.pid,
                     join->config->deadline, ranks, comm->size,
                     count == 1 ? "has" : "have", silent);
}

static choir_status_t connect_mesh(join_t* join) {
  choir_shm_comm_t* shm = join->shm;
  int32_t size = join->config->size;
  int32_t own = join->config->rank;
  for (useconds_t pause = 100;; pause = pause < 10000 ? pause * 2 : 10000) {
    int32_t missing = 0;
    int refused;
    for (int32_t i = 0; i < size; ++i)
      if (join->callers[i].socket >= 0)
        CHOIR_TRY(serve_caller(join, &join->callers[i]));
    CHOIR_TRY(accept_callers(join, &refused));
    for (int32_t r = 0; r < size; ++r) {
      if (r == own) continue;
      if (shm->sockets[r] < 0 && r < own) CHOIR_TRY(connect_to_lower(join, r));
      if (shm->sockets[r] >= 0) CHOIR_TRY(check_connected(join, r));
      missing += shm->sockets[r] < 0;
    }
    if (missing == 0) return NULL;
    if (choir_clock_seconds() > join->deadline) return tell_missing(join);
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
  comm->sizes.exchange = exchange;
  comm->sizes.with_header = 32u << 10;
  if (comm->sizes.with_header > exchange) comm->sizes.with_header = exchange;
  comm->sizes.share_with_header =
      comm->sizes.with_header;  // a peer reads its share only
  shm->bank_stride =
      (sizeof(choir_comm_message_t) + exchange + 4095) / 4096 * 4096;
  shm->slot_stride =
      (sizeof(choir_shm_slot_t) + 4095) / 4096 * 4096 + 2 * shm->bank_stride;
  shm->control_bytes = shm->slot_stride * (size_t)comm->size;
}

static choir_status_t hand_out_control(join_t* join) {
  choir_shm_comm_t* shm = join->shm;
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

static choir_status_t take_control(join_t* join) {
  choir_shm_comm_t* shm = join->shm;
  for (;;) {
    for (int32_t r = 0; r < shm->base.size; ++r)
      if (r != shm->base.rank) CHOIR_TRY(check_connected(join, r));
    struct pollfd from_root = {.fd = shm->sockets[0], .events = POLLIN};
    if (poll(&from_root, 1, 20) > 0 && (from_root.revents & POLLIN)) break;
    if (choir_clock_seconds() > join->deadline)
      return CHOIR_ERROR(TIMEOUT, "rank 0 gave no shared memory within %.1f s",
                         join->config->deadline);
  }
  CHOIR_TRY(check_connected(join, 0));
  int fd = -1;
  if (!choir_shm_try_receive_fd(shm->sockets[0], &fd) || fd < 0)
    return CHOIR_ERROR(INTERNAL, "rank 0 gave no shared memory");
  choir_status_t status = choir_shm_map(fd, shm->control_bytes, &shm->control);
  close(fd);
  return status;
}

static choir_status_t allocate_tables(join_t* join) {
  choir_shm_comm_t* shm = join->shm;
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
  join->called = memory;
  join->callers = join->called + size;
  for (size_t r = 0; r < 2 * size; ++r)
    join->called[r] = (caller_t){.socket = -1};
  return NULL;
}

static choir_status_t connect_all(join_t* join) {
  choir_shm_comm_t* shm = join->shm;
  CHOIR_TRY(open_listener(join));
  CHOIR_TRY(connect_mesh(join));
  plan_control(shm);
  CHOIR_TRY(shm->base.rank == 0 ? hand_out_control(join) : take_control(join));
  for (int32_t r = 0; r < shm->base.size; ++r)
    shm->polls[r] = (struct pollfd){.fd = shm->sockets[r], .events = POLLRDHUP};
  shm->polls[shm->base.size] =
      (struct pollfd){.fd = shm->base.watch.wake_fd, .events = POLLIN};
  return NULL;
}

static void abort_all(join_t* join, choir_status_t why) {
  for (int32_t r = 0; r < join->config->size; ++r)
    if (join->shm->sockets[r] >= 0)
      send_abort(join, join->shm->sockets[r], why);
}

choir_status_t choir_shm_connect(choir_shm_comm_t* shm,
                                 const choir_comm_config_t* config) {
  join_t join = {.shm = shm,
                 .config = config,
                 .deadline = choir_clock_seconds() + config->deadline};
  choir__comm_identify(config, &join.own);
  shm->base.peers[config->rank].identity = join.own;
  CHOIR_TRY(allocate_tables(&join));
  choir_status_t status = connect_all(&join);
  if (status) abort_all(&join, status);
  for (int32_t r = 0; r < 2 * config->size; ++r) drop(&join.called[r]);
  choir_deallocate(shm->base.allocator, join.called,
                   2 * (size_t)config->size * sizeof(caller_t));
  return status;
}

void choir_shm_disconnect(choir_shm_comm_t* shm) {
  if (shm->sockets)
    for (int32_t r = 0; r < shm->base.size; ++r) close_socket(&shm->sockets[r]);
  close_socket(&shm->listener);
  size_t size = (size_t)shm->base.size;
  if (shm->polls)
    choir_deallocate(shm->base.allocator, shm->polls,
                     size * sizeof(int) + (size + 1) * sizeof(struct pollfd));
}
