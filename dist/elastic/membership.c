// SPDX-License-Identifier: Apache-2.0
#include "dist/elastic/membership_def.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/board_internal.h"
#include "dist/comm_internal.h"
#include "dist/comm_mac_internal.h"
#include "dist/elastic/agreement_internal.h"

enum { MARK_BYTES = 8 };
// They change with the layout.
static const char agreement_mark[] = "choir-a1";
static const char greeting_mark[] = "choir-g1";
// Who was asked and has not answered is asked again.
static const double again_seconds = 0.05;
// One who notices a loss gives those of lower ranks this time to propose.
static const double patience_seconds = 0.2;
static const double turn_seconds = 0.005;
// Ranks that agreed come at the same time; who does not has ended since.
static const double join_seconds = 5;

typedef struct sockaddr_in address_t;

// Of one who comes, and to it; of one who leaves.
enum {
  GREETING_JOIN,     // may it take part?
  GREETING_WELCOME,  // yes, as this rank; all members
  GREETING_AWAY,     // no: its model or settings are others
  GREETING_LEAVE,    // this rank of the generation says nothing more in it
};
typedef struct greeting_s {
  int32_t kind;
  int32_t pid;
  uint64_t model;
  int64_t generation;
  int32_t rank;
  int32_t size;
  choir__member_t members[];  // [size], of WELCOME
} greeting_t;

typedef struct packet_s {
  char mark[MARK_BYTES];
  choir__comm_mac_t mac;  // of what follows
  union {
    choir__agreement_message_t message;
    greeting_t greeting;
    unsigned char bytes[sizeof(greeting_t) +
                        CHOIR__MEMBERS_MOST * sizeof(choir__member_t)];
  };
} packet_t;

struct choir__membership_s {
  choir_allocator_t allocator;
  choir_comm_id_t id;  // the run's
  uint64_t model;
  int socket;
  int wake_fd;
  pthread_t thread;
  bool thread_runs;
  packet_t* sent;      // under the mutex
  packet_t* received;  // the thread's

  pthread_mutex_t mutex;
  pthread_cond_t heard;
  atomic_bool stops;
  // Of this generation, under the mutex; 0: it has come, and is in none yet.
  int64_t generation;
  choir__members_t left;  // who has said so
  bool is_turned_away;
  int32_t rank;
  int32_t size;
  choir__member_t members[CHOIR__MEMBERS_MOST];  // [size]
  bool is_open;                                  // it takes part in agreeing
  choir__agreement_t agreement;
  atomic_int newcomer_count;  // that have asked
  choir__member_t newcomers[CHOIR__NEWCOMERS_MOST];
  // decisions[i] made generation i + 2. Everybody who was in generation i + 1
  // and asks gets it. Of generations before this member came: zeros.
  choir__decision_t* decisions;  // [capacity]
  int64_t capacity;
};

// ---- Messages ----

static choir_status_t make_mac(const choir__membership_t* membership,
                               const packet_t* packet, size_t bytes,
                               choir__comm_mac_t* out_mac) {
  const bool is_greeting = !memcmp(packet->mark, greeting_mark, MARK_BYTES);
  return choir__comm_mac_make(&membership->id,
                              is_greeting ? "elastic-join" : "elastic",
                              packet->bytes, bytes, out_mac);
}

// `bytes` of membership->sent. What does not go is as good as lost.
static void send_sent(const choir__membership_t* membership, const char* mark,
                      size_t bytes, const address_t* address) {
  packet_t* packet = membership->sent;
  memcpy(packet->mark, mark, MARK_BYTES);
  choir_status_t status = make_mac(membership, packet, bytes, &packet->mac);
  ssize_t sent = -1;
  if (!status)
    sent = sendto(membership->socket, packet, offsetof(packet_t, bytes) + bytes,
                  MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr*)address,
                  sizeof(*address));
  (void)sent;
  choir_status_free(status);
}

static void send_to(const choir__membership_t* membership,
                    const choir__agreement_message_t* message,
                    const address_t* address) {
  membership->sent->message = *message;
  send_sent(membership, agreement_mark, sizeof(*message), address);
}

static address_t address_of(const choir__member_t* member) {
  return (address_t){.sin_family = AF_INET,
                     .sin_port = member->port,
                     .sin_addr = {member->address}};
}

static void send_message(void* self,
                         const choir__agreement_message_t* message) {
  const choir__membership_t* membership = self;
  const address_t to = address_of(&membership->members[message->to]);
  send_to(membership, message, &to);
}

static void greet(const choir__membership_t* membership, int32_t kind,
                  int32_t rank, const address_t* address) {
  greeting_t* greeting = &membership->sent->greeting;
  *greeting = (greeting_t){.kind = kind,
                           .pid = (int32_t)getpid(),
                           .model = membership->model,
                           .generation = membership->generation,
                           .rank = rank,
                           .size = membership->size};
  size_t bytes = sizeof(*greeting);
  if (kind == GREETING_WELCOME) {
    const size_t more = (size_t)membership->size * sizeof(choir__member_t);
    memcpy(greeting->members, membership->members, more);
    bytes += more;
  }
  send_sent(membership, greeting_mark, bytes, address);
}

// Whether something came from who knows the id, of `*out_bytes`.
static bool receive(const choir__membership_t* membership, size_t* out_bytes,
                    address_t* out_from) {
  packet_t* packet = membership->received;
  const size_t head = offsetof(packet_t, bytes);
  socklen_t address_bytes = sizeof(*out_from);
  const ssize_t count = recvfrom(membership->socket, packet, sizeof(*packet),
                                 MSG_DONTWAIT | MSG_TRUNC,
                                 (struct sockaddr*)out_from, &address_bytes);
  if (count < (ssize_t)head || count > (ssize_t)sizeof(*packet)) return false;
  *out_bytes = (size_t)count - head;
  choir__comm_mac_t mac;
  choir_status_t status = make_mac(membership, packet, *out_bytes, &mac);
  const bool is_authentic =
      !status && choir__comm_mac_equal(&mac, &packet->mac);
  choir_status_free(status);
  return is_authentic;
}

// To one who is not in this generation yet.
static void answer_of_before(const choir__membership_t* membership,
                             const choir__agreement_message_t* message,
                             const address_t* from) {
  if (message->generation < 1 || message->generation > membership->capacity ||
      (message->kind != CHOIR__AGREE_ASK &&
       message->kind != CHOIR__AGREE_PROPOSE))
    return;
  const choir__agreement_message_t answer = {
      .generation = message->generation,
      .kind = CHOIR__AGREE_DECIDE,
      .from = message->to,
      .to = message->from,
      .attempt = message->attempt,
      .decision = membership->decisions[message->generation - 1]};
  send_to(membership, &answer, from);
}

static void take_message(choir__membership_t* membership,
                         const choir__agreement_message_t* message,
                         const address_t* from) {
  if (message->generation < membership->generation)
    answer_of_before(membership, message, from);
  else if (membership->is_open && message->generation == membership->generation)
    choir__agreement_receive(&membership->agreement, message,
                             choir_clock_seconds());
}

static bool is_at(const choir__member_t* member, const address_t* address) {
  return member->address == address->sin_addr.s_addr &&
         member->port == address->sin_port;
}

// Once more to one whose welcome was lost; else the next change takes it in.
static void take_join(choir__membership_t* membership,
                      const greeting_t* greeting, const address_t* from) {
  if (membership->generation == 0) return;
  if (greeting->model != membership->model) {
    greet(membership, GREETING_AWAY, -1, from);
    return;
  }
  for (int32_t r = 0; r < membership->size; ++r)
    if (is_at(&membership->members[r], from)) {
      greet(membership, GREETING_WELCOME, r, from);
      return;
    }
  const int count = atomic_load(&membership->newcomer_count);
  for (int i = 0; i < count; ++i)
    if (is_at(&membership->newcomers[i], from)) return;
  if (count == CHOIR__NEWCOMERS_MOST ||
      membership->size + count >= CHOIR__MEMBERS_MOST)
    return;
  membership->newcomers[count] =
      (choir__member_t){.address = from->sin_addr.s_addr,
                        .port = from->sin_port,
                        .pid = greeting->pid};
  atomic_store(&membership->newcomer_count, count + 1);
}

static void note_member(const choir__membership_t* membership) {
  choir_board_slot_t* slot = choir__board_slot();
  if (slot) atomic_store(&slot->is_member, membership->generation > 0);
}

static void take_welcome(choir__membership_t* membership,
                         const greeting_t* greeting, size_t bytes) {
  const int32_t size = greeting->size;
  if (membership->generation > 0 || size < 1 || size > CHOIR__MEMBERS_MOST ||
      greeting->rank < 0 || greeting->rank >= size ||
      greeting->generation < 1 ||
      bytes != sizeof(*greeting) + (size_t)size * sizeof(choir__member_t))
    return;
  membership->generation = greeting->generation;
  membership->rank = greeting->rank;
  membership->size = size;
  memcpy(membership->members, greeting->members,
         (size_t)size * sizeof(choir__member_t));
  membership->left = (choir__members_t){{0}};
  note_member(membership);
}

// It stands behind all else that the member has sent here, like its end.
static void take_leave(choir__membership_t* membership,
                       const greeting_t* greeting, const address_t* from) {
  const int32_t rank = greeting->rank;
  if (greeting->generation == membership->generation && rank >= 0 &&
      rank < membership->size && is_at(&membership->members[rank], from))
    choir__members_add(&membership->left, rank);
}

static void take_greeting(choir__membership_t* membership,
                          const greeting_t* greeting, size_t bytes,
                          const address_t* from) {
  switch (greeting->kind) {
    case GREETING_JOIN:
      take_join(membership, greeting, from);
      return;
    case GREETING_WELCOME:
      take_welcome(membership, greeting, bytes);
      return;
    case GREETING_AWAY:
      membership->is_turned_away = true;
      return;
    case GREETING_LEAVE:
      take_leave(membership, greeting, from);
      return;
    default:
      return;
  }
}

static void take(choir__membership_t* membership, size_t bytes,
                 const address_t* from) {
  const packet_t* packet = membership->received;
  pthread_mutex_lock(&membership->mutex);
  if (!memcmp(packet->mark, agreement_mark, MARK_BYTES) &&
      bytes == sizeof(packet->message))
    take_message(membership, &packet->message, from);
  else if (!memcmp(packet->mark, greeting_mark, MARK_BYTES) &&
           bytes >= sizeof(packet->greeting))
    take_greeting(membership, &packet->greeting, bytes, from);
  pthread_cond_signal(&membership->heard);
  pthread_mutex_unlock(&membership->mutex);
}

static void* thread_main(void* argument) {
  choir__membership_t* membership = argument;
  struct pollfd polls[] = {{.fd = membership->socket, .events = POLLIN},
                           {.fd = membership->wake_fd, .events = POLLIN}};
  while (!atomic_load(&membership->stops)) {
    size_t bytes;
    address_t from = {0};
    if (poll(polls, 2, -1) > 0 && (polls[0].revents & POLLIN) &&
        receive(membership, &bytes, &from))
      take(membership, bytes, &from);
  }
  return NULL;
}

// ---- Its life ----

static choir_status_t need_one_host(const choir_comm_t* comm) {
  const char* backend = comm->vtable->name;
  if (comm->size == 1 ||
      (comm->hosts.count == 1 && strcmp(backend, "shm") == 0))
    return NULL;
  return CHOIR_ERROR(UNIMPLEMENTED,
                     "elastic: ranks may be lost on one host, by comm shm; "
                     "here is comm %s",
                     backend);
}

static choir_status_t open_socket(choir__membership_t* membership,
                                  address_t* out_own) {
  membership->socket = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  membership->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  *out_own =
      (address_t){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t bytes = sizeof(*out_own);
  if (membership->socket < 0 || membership->wake_fd < 0 ||
      bind(membership->socket, (struct sockaddr*)out_own, bytes) ||
      getsockname(membership->socket, (struct sockaddr*)out_own, &bytes))
    return CHOIR_ERROR(UNAVAILABLE, "elastic: no socket: %s", strerror(errno));
  return NULL;
}

static choir_status_t start_thread(choir__membership_t* membership) {
  choir_threads_started();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const int error =
      pthread_create(&membership->thread, NULL, thread_main, membership);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error)
    return CHOIR_ERROR(UNAVAILABLE, "elastic: the system gives no thread: %s",
                       strerror(error));
  membership->thread_runs = true;
  return NULL;
}

static choir_status_t open(choir__membership_t* membership,
                           choir_comm_t* comm) {
  CHOIR_TRY(need_one_host(comm));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(membership->allocator, 2 * sizeof(packet_t),
                           "messages of members", &memory));
  memset(memory, 0, 2 * sizeof(packet_t));
  membership->sent = memory;
  membership->received = membership->sent + 1;
  address_t own;
  CHOIR_TRY(open_socket(membership, &own));
  choir_board_slot_t* slot = choir__board_slot();
  if (slot) atomic_store(&slot->member_port, ntohs(own.sin_port));
  const choir__member_t member = {.address = own.sin_addr.s_addr,
                                  .port = own.sin_port,
                                  .pid = (int32_t)getpid()};
  if (!comm->is_newcomer)
    CHOIR_TRY(choir_comm_all_gather(comm, &member, membership->members,
                                    sizeof(member), CHOIR_DTYPE_U8, "members"));
  note_member(membership);
  return start_thread(membership);
}

choir_status_t choir__membership_create(choir_comm_t* comm, uint64_t model,
                                        choir__membership_t** out_membership) {
  choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  *out_membership = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir__membership_t), "membership",
                           &memory));
  choir__membership_t* membership = memory;
  memset(membership, 0, sizeof(*membership));
  membership->allocator = allocator;
  membership->id = comm->id;
  membership->model = model;
  membership->generation = comm->is_newcomer ? 0 : 1;
  membership->rank = comm->rank;
  membership->size = comm->size;
  membership->socket = membership->wake_fd = -1;
  pthread_mutex_init(&membership->mutex, NULL);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&membership->heard, &attributes);
  pthread_condattr_destroy(&attributes);
  choir_status_t status = open(membership, comm);
  if (status)
    choir__membership_destroy(membership);
  else
    *out_membership = membership;
  return status;
}

void choir__membership_destroy(choir__membership_t* membership) {
  if (!membership) return;
  if (membership->thread_runs) {
    atomic_store(&membership->stops, true);
    eventfd_write(membership->wake_fd, 1);
    pthread_join(membership->thread, NULL);
  }
  if (membership->socket >= 0) close(membership->socket);
  if (membership->wake_fd >= 0) close(membership->wake_fd);
  pthread_cond_destroy(&membership->heard);
  pthread_mutex_destroy(&membership->mutex);
  choir_deallocate(membership->allocator, membership->sent,
                   2 * sizeof(packet_t));
  choir_deallocate(membership->allocator, membership->decisions,
                   (size_t)membership->capacity * sizeof(choir__decision_t));
  choir_deallocate(membership->allocator, membership, sizeof(*membership));
}

bool choir__membership_is_newcomer(const choir__membership_t* membership) {
  return membership->generation == 0;
}

bool choir__membership_has_newcomers(const choir__membership_t* membership) {
  return atomic_load(&membership->newcomer_count) > 0;
}

void choir__membership_leave(choir__membership_t* membership, int number) {
  choir_board_slot_t* slot = choir__board_slot();
  if (slot)
    atomic_store(&slot->left_by, number ? number : CHOIR_BOARD_LEFT_ITSELF);
  pthread_mutex_lock(&membership->mutex);
  for (int32_t r = 0; r < membership->size; ++r) {
    const address_t address = address_of(&membership->members[r]);
    if (r != membership->rank)
      greet(membership, GREETING_LEAVE, membership->rank, &address);
  }
  pthread_mutex_unlock(&membership->mutex);
}

// ---- A change ----

typedef struct change_s {
  choir__membership_t* membership;
  choir_comm_t* comm;  // the caller's
  // Of this generation's ranks, [size]: those there, -1: it has come since.
  int32_t ranks[CHOIR__MEMBERS_MOST];
  choir__members_t left;  // of the caller's ranks
  bool has_come;          // this member itself
  double start;
} change_t;

static void wait_a_turn(choir__membership_t* membership) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += (long)(turn_seconds * 1e9);
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&membership->heard, &membership->mutex, &until);
}

// Of one that the launcher of this process has started, too.
static bool has_ended(const choir__member_t* member) {
  return kill(member->pid, 0) && errno == ESRCH;
}

static bool is_gone(const change_t* change, int32_t rank) {
  const int32_t before = change->ranks[rank];
  if (choir__members_has(&change->membership->left, rank)) return true;
  const int presence = before < 0
                           ? CHOIR_COMM_PEER_LEFT
                           : atomic_load(&change->comm->peers[before].presence);
  // Who is in the next generation has released the communicator, too.
  return presence == CHOIR_COMM_PEER_GONE ||
         (presence == CHOIR_COMM_PEER_LEFT &&
          has_ended(&change->membership->members[rank]));
}

// Those who have asked and are still there.
static void want_newcomers(choir__membership_t* membership,
                           choir__decision_t* wanted) {
  const int count = atomic_load(&membership->newcomer_count);
  int32_t left = 0;
  for (int i = 0; i < count; ++i)
    if (!has_ended(&membership->newcomers[i]))
      membership->newcomers[left++] = membership->newcomers[i];
  atomic_store(&membership->newcomer_count, left);
  wanted->newcomer_count = left;
  memcpy(wanted->newcomers, membership->newcomers,
         (size_t)left * sizeof(choir__member_t));
}

// With the mutex held: one look at who is there, and one turn.
static void take_turn(const change_t* change, double waited) {
  choir__membership_t* membership = change->membership;
  choir__agreement_t* agreement = &membership->agreement;
  const double now = choir_clock_seconds();
  want_newcomers(membership, &agreement->wanted);
  int32_t lower = 0;
  for (int32_t r = 0; r < membership->size; ++r) {
    const bool gone = r != membership->rank && is_gone(change, r);
    if (gone) choir__agreement_note_gone(agreement, r, now);
    lower += r < membership->rank && !gone;
  }
  if (waited >= lower * patience_seconds)
    choir__agreement_propose(agreement, now);
  choir__agreement_tick(agreement, now);
}

static choir_status_t tell_missing(const change_t* change, double waited) {
  const choir__membership_t* membership = change->membership;
  char ranks[128];
  bool flags[CHOIR__MEMBERS_MOST];
  int32_t missing = 0;
  for (int32_t r = 0; r < membership->size; ++r) {
    flags[r] = r != membership->rank &&
               !choir__members_has(&membership->agreement.replies, r);
    missing += flags[r];
  }
  choir__comm_rank_list(flags, membership->size, ranks, sizeof(ranks));
  return CHOIR_ERROR(TIMEOUT,
                     "elastic: generation %lld: %d of %d members did not "
                     "answer in %.1f s (%s), too many to go on without them",
                     (long long)membership->generation + 1, missing,
                     membership->size, waited, ranks);
}

static choir_status_t agree(const change_t* change) {
  choir__membership_t* membership = change->membership;
  const choir_comm_t* comm = change->comm;
  const choir__agreement_config_t config = {
      .generation = membership->generation,
      .rank = membership->rank,
      .size = membership->size,
      .limit = comm->silence,
      .again = again_seconds,
      .gone_is_ended = true,
      .send = send_message,
      .self = membership};
  const double start = choir_clock_seconds();
  choir_status_t status = NULL;
  pthread_mutex_lock(&membership->mutex);
  choir__agreement_begin(&membership->agreement, &config);
  membership->is_open = true;
  for (;;) {
    const double waited = choir_clock_seconds() - start;
    take_turn(change, waited);
    if (membership->agreement.phase == CHOIR__AGREE_DONE) break;
    if (waited > comm->deadline + comm->silence) {
      status = tell_missing(change, waited);
      break;
    }
    wait_a_turn(membership);
  }
  membership->is_open = false;
  pthread_mutex_unlock(&membership->mutex);
  return status;
}

static choir_status_t keep_decision(choir__membership_t* membership) {
  const int64_t count = membership->generation;
  if (count > membership->capacity) {
    const int64_t capacity = 2 * count;
    const size_t before =
        (size_t)membership->capacity * sizeof(choir__decision_t);
    const size_t bytes = (size_t)capacity * sizeof(choir__decision_t);
    void* memory = NULL;
    CHOIR_TRY(
        choir_allocate(membership->allocator, bytes, "decisions", &memory));
    memset(memory, 0, bytes);
    if (before) memcpy(memory, membership->decisions, before);
    choir_deallocate(membership->allocator, membership->decisions, before);
    membership->decisions = memory;
    membership->capacity = capacity;
  }
  membership->decisions[count - 1] = membership->agreement.decision;
  return NULL;
}

// One that was taken in has not to ask any more.
static void drop_newcomer(choir__membership_t* membership,
                          const choir__member_t* taken) {
  const int count = atomic_load(&membership->newcomer_count);
  for (int i = 0; i < count; ++i) {
    choir__member_t* newcomer = &membership->newcomers[i];
    if (newcomer->address != taken->address || newcomer->port != taken->port)
      continue;
    *newcomer = membership->newcomers[count - 1];
    atomic_store(&membership->newcomer_count, count - 1);
    return;
  }
}

// This member's place in the generation that was agreed on.
static void renumber(change_t* change, const choir__decision_t* decision) {
  choir__membership_t* membership = change->membership;
  const int32_t rank = membership->rank;
  int32_t size = 0;
  for (int32_t r = 0; r < membership->size; ++r) {
    if (choir__members_has(&membership->left, r) && change->ranks[r] >= 0)
      choir__members_add(&change->left, change->ranks[r]);
    if (!choir__members_has(&decision->members, r)) continue;
    if (r == rank) membership->rank = size;
    membership->members[size] = membership->members[r];
    change->ranks[size++] = change->ranks[r];
  }
  for (int32_t i = 0; i < decision->newcomer_count; ++i) {
    drop_newcomer(membership, &decision->newcomers[i]);
    membership->members[size] = decision->newcomers[i];
    change->ranks[size++] = -1;
  }
  membership->size = size;
  membership->left = (choir__members_t){{0}};
  ++membership->generation;
  for (int32_t r = size - decision->newcomer_count; r < size; ++r) {
    const address_t address = address_of(&membership->members[r]);
    greet(membership, GREETING_WELCOME, r, &address);
  }
}

// The others did not hear of this member in time, and went on.
static void become_newcomer(change_t* change) {
  choir__membership_t* membership = change->membership;
  change->has_come = true;
  membership->generation = 0;
  note_member(membership);
  for (int32_t r = 0; r < CHOIR__MEMBERS_MOST; ++r) change->ranks[r] = -1;
}

static choir_status_t enter_generation(change_t* change) {
  choir__membership_t* membership = change->membership;
  const choir__decision_t* decision = &membership->agreement.decision;
  choir_status_t status = NULL;
  pthread_mutex_lock(&membership->mutex);
  if (!choir__members_has(&decision->members, membership->rank)) {
    become_newcomer(change);
  } else {
    status = keep_decision(membership);
    if (!status) renumber(change, decision);
  }
  pthread_mutex_unlock(&membership->mutex);
  return status;
}

// ---- Of one who comes ----

// All it knows: who left it out, and who is on the board.
static void ask_to_join(const choir__membership_t* membership) {
  choir_board_t* board = choir__board();
  const choir_board_slot_t* own = choir__board_slot();
  for (int32_t r = 0; r < membership->size; ++r) {
    const address_t address = address_of(&membership->members[r]);
    if (address.sin_port) greet(membership, GREETING_JOIN, -1, &address);
  }
  for (int32_t r = 0; board && r < board->size; ++r) {
    const choir_board_slot_t* slot = &board->slots[r];
    const uint32_t port = atomic_load(&slot->member_port);
    const address_t address = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (slot != own && port && atomic_load(&slot->is_member))
      greet(membership, GREETING_JOIN, -1, &address);
  }
}

// Until it is a member.
static choir_status_t arrive(const change_t* change) {
  choir__membership_t* membership = change->membership;
  const double limit = change->comm->deadline;
  const double start = choir_clock_seconds();
  double asked = 0;
  choir_status_t status = NULL;
  pthread_mutex_lock(&membership->mutex);
  while (membership->generation == 0 && !status) {
    const double now = choir_clock_seconds();
    if (membership->is_turned_away)
      status = CHOIR_ERROR(FAILED_PRECONDITION,
                           "elastic: this worker's model or settings are not "
                           "those of the run");
    else if (now - start > limit)
      status = CHOIR_ERROR(TIMEOUT,
                           "elastic: no worker of the run has taken this one "
                           "in within %.1f s",
                           limit);
    if (now - asked > again_seconds) {
      ask_to_join(membership);
      asked = now;
    }
    wait_a_turn(membership);
  }
  pthread_mutex_unlock(&membership->mutex);
  return status;
}

// ---- The communicator ----

// Of this generation's communicator: the run's, and its number through a
// one-way function.
static choir_status_t make_id(const choir__membership_t* membership,
                              choir_comm_id_t* out_id) {
  choir__comm_mac_t mac;
  CHOIR_TRY(choir__comm_mac_make(&membership->id, "generation",
                                 &membership->generation,
                                 sizeof(membership->generation), &mac));
  sodium_bin2hex(out_id->text, sizeof(out_id->text), mac.bytes,
                 (sizeof(out_id->text) - 1) / 2);
  return NULL;
}

static choir_status_t join(const change_t* change, choir_comm_t** out_comm) {
  const choir__membership_t* membership = change->membership;
  const choir_comm_t* before = change->comm;
  choir_comm_config_t config = {
      .backend = membership->size == 1 ? "self" : "shm",
      .rank = membership->rank,
      .size = membership->size,
      .deadline =
          before->deadline < join_seconds ? before->deadline : join_seconds,
      .silence = before->silence,
      .segment_bytes = before->segment_bytes,
      .device = before->device};
  CHOIR_TRY(make_id(membership, &config.id));
  CHOIR_TRY(choir_comm_create(&config, out_comm));
  (*out_comm)->deadline = before->deadline;
  return NULL;
}

// "rank 1 (host h, pid 7) is gone, "
static void tell_lost(const change_t* change, char* text, size_t bytes) {
  const choir_comm_t* before = change->comm;
  for (int32_t r = 0; r < before->size; ++r) {
    bool is_there = false;
    for (int32_t i = 0; i < change->membership->size; ++i)
      is_there = is_there || change->ranks[i] == r;
    if (is_there) continue;
    const choir_comm_peer_t* peer = &before->peers[r];
    const bool gone = atomic_load(&peer->presence) != CHOIR_COMM_PEER_HERE;
    choir__text_append(text, bytes, peer->text);
    choir__text_append(text, bytes,
                       choir__members_has(&change->left, r) ? " has left, "
                       : gone                               ? " is gone, "
                              : " did not answer, ");
  }
}

static void tell_come(const change_t* change, char* text, size_t bytes) {
  for (int32_t i = 0; i < change->membership->size; ++i) {
    if (change->ranks[i] >= 0) continue;
    choir__text_append(text, bytes, "process ");
    choir__text_append_number(text, bytes,
                              (uint64_t)change->membership->members[i].pid);
    choir__text_append(text, bytes, " has come, ");
  }
}

static void describe(const change_t* change, choir__change_t* out_change) {
  const choir__membership_t* membership = change->membership;
  char* text = out_change->text;
  const size_t bytes = sizeof(out_change->text);
  out_change->generation = membership->generation;
  out_change->has_come = change->has_come;
  out_change->seconds = choir_clock_seconds() - change->start;
  snprintf(text, bytes, "generation %lld: ", (long long)membership->generation);
  if (change->has_come) {
    choir__text_append(text, bytes, "this worker has come, ");
  } else {
    tell_lost(change, text, bytes);
    tell_come(change, text, bytes);
  }
  choir__text_append_number(text, bytes, (uint64_t)membership->size);
  choir__text_append(
      text, bytes,
      membership->size == 1 ? " worker goes on" : " workers go on");
}

// Until the members of a generation have met, of whom more may be lost.
static choir_status_t make_generation(change_t* change,
                                      choir_comm_t** out_comm) {
  for (;;) {
    if (choir__membership_is_newcomer(change->membership)) {
      CHOIR_TRY(arrive(change));
    } else {
      CHOIR_TRY(agree(change));
      CHOIR_TRY(enter_generation(change));
      if (choir__membership_is_newcomer(change->membership)) continue;
    }
    choir_status_t status = join(change, out_comm);
    if (!status) return NULL;
    const choir_status_code_t code = choir_status_code(status);
    if (code != CHOIR_STATUS_ABORTED && code != CHOIR_STATUS_TIMEOUT)
      return status;
    choir_status_free(status);
  }
}

choir_status_t choir__membership_change(choir__membership_t* membership,
                                        choir_comm_t* comm,
                                        choir_comm_t** out_comm,
                                        choir__change_t* out_change) {
  *out_comm = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(membership->allocator, sizeof(change_t), "a change",
                           &memory));
  change_t* change = memory;
  change->membership = membership;
  change->comm = comm;
  change->has_come = choir__membership_is_newcomer(membership);
  change->start = choir_clock_seconds();
  for (int32_t r = 0; r < CHOIR__MEMBERS_MOST; ++r)
    change->ranks[r] = change->has_come || r >= comm->size ? -1 : r;
  choir_status_t status = make_generation(change, out_comm);
  if (!status) describe(change, out_change);
  choir_deallocate(membership->allocator, memory, sizeof(change_t));
  return status;
}
