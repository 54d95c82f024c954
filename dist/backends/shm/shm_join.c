// SPDX-License-Identifier: Apache-2.0
// How ranks find each other: rank r listens on the abstract Unix socket
// "choir-<id>-<r>", connects to all lower ranks and is called by all higher
// ones. Abstract names go with their sockets; nothing is left in any folder.
// The listening socket stays open, so that a second use of an id is noticed.
//
// Every pair exchanges a hello; then rank 0 hands the control segment to all.
// A rank that gives up says why on all its sockets, so that the others do not
// wait for their own deadline.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/backends/shm/shm_internal.h"

#define HELLO_MAGIC 0x43484f4952534831ull  // changes with the layout
#define TEXT_BYTES 320

enum { HELLO_GREETS = 1, HELLO_GIVES_UP = 2 };

typedef struct hello_s {
  uint64_t magic;
  int32_t kind;
  int32_t code;  // choir_status_code_t of HELLO_GIVES_UP
  choir_comm_identity_t identity;
  uint64_t segment_bytes;
  char text[TEXT_BYTES];
} hello_t;

// A connection whose hello has not come yet.
typedef struct meeting_s {
  choir_shm_comm_t* shm;
  const choir_comm_config_t* config;
  choir_comm_identity_t own;
  int* called;   // [size] connections to lower ranks, hello not answered
  int* callers;  // [size] accepted connections of unknown rank; -1: free
  double deadline;
} meeting_t;

static size_t make_address(const choir_comm_id_t* id, int32_t rank,
                           struct sockaddr_un* address) {
  memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
                        "choir-%s-%d", id->text, rank);
  return offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length;
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

static choir_status_t open_listener(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  const choir_comm_config_t* config = meeting->config;
  shm->listener = open_socket();
  if (shm->listener < 0) return socket_error("socket");
  struct sockaddr_un address;
  size_t bytes = make_address(&config->id, config->rank, &address);
  if (bind(shm->listener, (struct sockaddr*)&address, (socklen_t)bytes)) {
    if (errno == EADDRINUSE)
      return CHOIR_ERROR(ALREADY_EXISTS,
                         "rank %d of id %s is there already; an id serves one "
                         "communicator",
                         config->rank, config->id.text);
    return socket_error("bind");
  }
  if (listen(shm->listener, config->size)) return socket_error("listen");
  return NULL;
}

static void send_hello(meeting_t* meeting, int socket, int32_t kind,
                       choir_status_t why) {
  hello_t hello = {.magic = HELLO_MAGIC,
                   .kind = kind,
                   .code = (int32_t)choir_status_code(why),
                   .identity = meeting->own,
                   .segment_bytes = meeting->config->segment_bytes};
  if (why)
    snprintf(hello.text, sizeof(hello.text), "%s", choir_status_message(why));
  // A peer that went away is noticed when it is waited for.
  ssize_t sent = send(socket, &hello, sizeof(hello), MSG_NOSIGNAL);
  (void)sent;
}

static void close_socket(int* socket) {
  if (*socket >= 0) close(*socket);
  *socket = -1;
}

// Another user's process may know the name but has no business here.
static bool is_same_user(int socket) {
  struct ucred peer;
  socklen_t bytes = sizeof(peer);
  return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) &&
         peer.uid == geteuid();
}

static choir_status_t check_hello(const meeting_t* meeting,
                                  const hello_t* hello) {
  const choir_comm_config_t* config = meeting->config;
  if (hello->magic != HELLO_MAGIC)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "another rank runs another version of Choir");
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

// Reads a hello if there is one. A closed socket is *out_closed.
static choir_status_t receive_hello(meeting_t* meeting, int socket,
                                    hello_t* out_hello, bool* out_came,
                                    bool* out_closed) {
  *out_came = *out_closed = false;
  ssize_t bytes = recv(socket, out_hello, sizeof(*out_hello), MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return NULL;
  if (bytes <= 0) {
    *out_closed = true;
    return NULL;
  }
  if (bytes != (ssize_t)sizeof(*out_hello)) out_hello->magic = 0;
  out_hello->text[TEXT_BYTES - 1] = 0;
  CHOIR_TRY(check_hello(meeting, out_hello));
  *out_came = true;
  return NULL;
}

static void adopt(meeting_t* meeting, const hello_t* hello, int socket) {
  choir_shm_comm_t* shm = meeting->shm;
  int32_t rank = hello->identity.rank;
  shm->sockets[rank] = socket;
  shm->base.peers[rank].identity = hello->identity;
}

// Lower ranks: call, greet, take the answer.
static choir_status_t call_lower(meeting_t* meeting, int32_t rank) {
  int* socket = &meeting->called[rank];
  if (*socket < 0) {
    *socket = open_socket();
    if (*socket < 0) return socket_error("socket");
    struct sockaddr_un address;
    size_t bytes = make_address(&meeting->config->id, rank, &address);
    if (connect(*socket, (struct sockaddr*)&address, (socklen_t)bytes)) {
      close_socket(socket);  // not there yet, or busy with other callers
      return NULL;
    }
    send_hello(meeting, *socket, HELLO_GREETS, NULL);
  }
  hello_t hello;
  bool came, closed;
  CHOIR_TRY(receive_hello(meeting, *socket, &hello, &came, &closed));
  if (closed) close_socket(socket);  // it may have been another program's
  if (!came || hello.identity.rank != rank) return NULL;
  adopt(meeting, &hello, *socket);
  *socket = -1;
  return NULL;
}

static void accept_callers(meeting_t* meeting) {
  for (int32_t i = 0; i < meeting->config->size; ++i) {
    if (meeting->callers[i] >= 0) continue;
    int socket = accept4(meeting->shm->listener, NULL, NULL,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return;
    if (is_same_user(socket))
      meeting->callers[i] = socket;
    else
      close(socket);
  }
}

static choir_status_t greet_caller(meeting_t* meeting, int32_t index) {
  int* socket = &meeting->callers[index];
  hello_t hello;
  bool came, closed;
  choir_status_t status =
      receive_hello(meeting, *socket, &hello, &came, &closed);
  if (status) {
    send_hello(meeting, *socket, HELLO_GIVES_UP, status);
    return status;
  }
  if (closed) close_socket(socket);
  if (!came) return NULL;
  int32_t rank = hello.identity.rank;
  if (rank <= meeting->config->rank || rank >= meeting->config->size ||
      meeting->shm->sockets[rank] >= 0) {
    close_socket(socket);
    return NULL;
  }
  send_hello(meeting, *socket, HELLO_GREETS, NULL);
  adopt(meeting, &hello, *socket);
  *socket = -1;
  return NULL;
}

// Peers that were met say nothing unless they give up or die.
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
  return CHOIR_ERROR(TIMEOUT,
                     "rank %d (host %s, pid %d) waited %.1f s at the start; %s "
                     "of %d %s not come",
                     comm->rank, meeting->own.host, meeting->own.pid,
                     meeting->config->deadline, ranks, comm->size,
                     count == 1 ? "has" : "have");
}

static choir_status_t connect_mesh(meeting_t* meeting) {
  choir_shm_comm_t* shm = meeting->shm;
  int32_t size = meeting->config->size;
  int32_t own = meeting->config->rank;
  for (useconds_t pause = 100;; pause = pause < 10000 ? pause * 2 : 10000) {
    int32_t missing = 0;
    accept_callers(meeting);
    for (int32_t i = 0; i < size; ++i)
      if (meeting->callers[i] >= 0) CHOIR_TRY(greet_caller(meeting, i));
    for (int32_t r = 0; r < size; ++r) {
      if (r == own) continue;
      if (shm->sockets[r] < 0 && r < own) CHOIR_TRY(call_lower(meeting, r));
      if (shm->sockets[r] >= 0) CHOIR_TRY(check_met(meeting, r));
      missing += shm->sockets[r] < 0;
    }
    if (missing == 0) return NULL;
    if (choir_clock_seconds() > meeting->deadline) return tell_missing(meeting);
    usleep(pause);
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
  CHOIR_TRY(choir_allocate(shm->base.allocator, 2 * size * sizeof(int),
                           "sockets", &memory));
  meeting->called = memory;
  meeting->callers = meeting->called + size;
  for (size_t r = 0; r < 2 * size; ++r) meeting->called[r] = -1;
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
      send_hello(meeting, meeting->shm->sockets[r], HELLO_GIVES_UP, why);
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
  for (int32_t r = 0; r < 2 * config->size; ++r)
    close_socket(&meeting.called[r]);
  choir_deallocate(shm->base.allocator, meeting.called,
                   2 * (size_t)config->size * sizeof(int));
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
