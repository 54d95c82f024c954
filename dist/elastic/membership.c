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
#include "dist/comm_internal.h"
#include "dist/comm_mac_internal.h"
#include "dist/elastic/agreement_internal.h"

static const char packet_mark[8] = "choir-m1";  // changes with the layout
// Who was asked and has not answered is asked again.
static const double again_seconds = 0.05;
// One who notices a loss gives those of lower ranks this time to propose.
static const double patience_seconds = 0.2;
static const double turn_seconds = 0.005;
// Ranks that agreed come at the same time; who does not has ended since.
static const double join_seconds = 5;

typedef struct packet_s {
  char mark[sizeof(packet_mark)];
  choir__comm_mac_t mac;  // of the message
  choir__agreement_message_t message;
} packet_t;

typedef struct sockaddr_in address_t;

struct choir__membership_s {
  choir_allocator_t allocator;
  choir_comm_id_t id;  // the run's
  int socket;
  int wake_fd;
  pthread_t thread;
  bool thread_runs;

  pthread_mutex_t mutex;
  pthread_cond_t heard;
  atomic_bool stops;
  // Of this generation, under the mutex.
  int64_t generation;
  int32_t rank;
  int32_t size;
  address_t* addresses;  // [most]
  int32_t most;          // of generation 1
  bool is_open;          // it takes part in agreeing
  choir__agreement_t agreement;
  // decisions[i] made generation i + 2. Everybody who was in generation i + 1
  // and asks gets it.
  choir__members_t* decisions;  // [capacity]
  int64_t capacity;
};

// ---- Messages ----

static choir_status_t make_mac(const choir__membership_t* membership,
                               const choir__agreement_message_t* message,
                               choir__comm_mac_t* out_mac) {
  return choir__comm_mac_make(&membership->id, "elastic", message,
                              sizeof(*message), out_mac);
}

// One that does not go is as good as lost.
static void send_to(const choir__membership_t* membership,
                    const choir__agreement_message_t* message,
                    const address_t* address) {
  packet_t packet;
  memset(&packet, 0, sizeof(packet));
  memcpy(packet.mark, packet_mark, sizeof(packet_mark));
  packet.message = *message;
  choir_status_t status = make_mac(membership, &packet.message, &packet.mac);
  ssize_t sent = -1;
  if (!status)
    sent = sendto(membership->socket, &packet, sizeof(packet),
                  MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr*)address,
                  sizeof(*address));
  (void)sent;
  choir_status_free(status);
}

static void send_message(void* self,
                         const choir__agreement_message_t* message) {
  const choir__membership_t* membership = self;
  send_to(membership, message, &membership->addresses[message->to]);
}

// Whether something came from who knows the id.
static bool receive(const choir__membership_t* membership, packet_t* packet,
                    address_t* out_from) {
  socklen_t bytes = sizeof(*out_from);
  const ssize_t count =
      recvfrom(membership->socket, packet, sizeof(*packet),
               MSG_DONTWAIT | MSG_TRUNC, (struct sockaddr*)out_from, &bytes);
  if (count != sizeof(*packet) ||
      memcmp(packet->mark, packet_mark, sizeof(packet_mark)) != 0)
    return false;
  choir__comm_mac_t mac;
  choir_status_t status = make_mac(membership, &packet->message, &mac);
  const bool is_authentic =
      !status && choir__comm_mac_equal(&mac, &packet->mac);
  choir_status_free(status);
  return is_authentic;
}

// To one who is not in this generation yet.
static void answer_of_before(const choir__membership_t* membership,
                             const choir__agreement_message_t* message,
                             const address_t* from) {
  if (message->generation < 1 || (message->kind != CHOIR__AGREE_ASK &&
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

static void take(choir__membership_t* membership, const packet_t* packet,
                 const address_t* from) {
  const choir__agreement_message_t* message = &packet->message;
  pthread_mutex_lock(&membership->mutex);
  if (message->generation < membership->generation)
    answer_of_before(membership, message, from);
  else if (membership->is_open && message->generation == membership->generation)
    choir__agreement_receive(&membership->agreement, message,
                             choir_clock_seconds());
  pthread_cond_signal(&membership->heard);
  pthread_mutex_unlock(&membership->mutex);
}

static void* thread_main(void* argument) {
  choir__membership_t* membership = argument;
  struct pollfd polls[] = {{.fd = membership->socket, .events = POLLIN},
                           {.fd = membership->wake_fd, .events = POLLIN}};
  while (!atomic_load(&membership->stops)) {
    packet_t packet;
    address_t from;
    if (poll(polls, 2, -1) > 0 && (polls[0].revents & POLLIN) &&
        receive(membership, &packet, &from))
      take(membership, &packet, &from);
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
  address_t own;
  CHOIR_TRY(open_socket(membership, &own));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(membership->allocator,
                           (size_t)comm->size * sizeof(address_t), "members",
                           &memory));
  membership->addresses = memory;
  CHOIR_TRY(choir_comm_all_gather(comm, &own, membership->addresses,
                                  sizeof(own), CHOIR_DTYPE_U8, "members"));
  return start_thread(membership);
}

choir_status_t choir__membership_create(choir_comm_t* comm,
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
  membership->generation = 1;
  membership->rank = comm->rank;
  membership->size = membership->most = comm->size;
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
  choir_deallocate(membership->allocator, membership->addresses,
                   (size_t)membership->most * sizeof(address_t));
  choir_deallocate(membership->allocator, membership->decisions,
                   (size_t)membership->capacity * sizeof(choir__members_t));
  choir_deallocate(membership->allocator, membership, sizeof(*membership));
}

// ---- A change ----

typedef struct change_s {
  choir__membership_t* membership;
  choir_comm_t* comm;  // the caller's
  int32_t* ranks;      // [size] there, of this generation's ranks
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

static bool is_gone(const change_t* change, int32_t rank) {
  const choir_comm_peer_t* peer = &change->comm->peers[change->ranks[rank]];
  return atomic_load(&peer->presence) == CHOIR_COMM_PEER_GONE;
}

// With the mutex held: one look at who is there, and one turn.
static void take_turn(const change_t* change, double waited) {
  choir__membership_t* membership = change->membership;
  choir__agreement_t* agreement = &membership->agreement;
  const double now = choir_clock_seconds();
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
  int32_t missing = 0;
  for (int32_t r = 0; r < membership->size; ++r) {
    const bool replied = choir__members_has(&membership->agreement.replies, r);
    change->comm->flags[r] = r != membership->rank && !replied;
    missing += change->comm->flags[r];
  }
  choir__comm_rank_list(change->comm->flags, membership->size, ranks,
                        sizeof(ranks));
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
    void* memory = NULL;
    CHOIR_TRY(choir_allocate(membership->allocator,
                             (size_t)capacity * sizeof(choir__members_t),
                             "decisions", &memory));
    if (count > 1)
      memcpy(memory, membership->decisions,
             (size_t)(count - 1) * sizeof(choir__members_t));
    choir_deallocate(membership->allocator, membership->decisions,
                     (size_t)membership->capacity * sizeof(choir__members_t));
    membership->decisions = memory;
    membership->capacity = capacity;
  }
  membership->decisions[count - 1] = membership->agreement.decision;
  return NULL;
}

// This member's place in the generation that was agreed on.
static choir_status_t enter_generation(const change_t* change) {
  choir__membership_t* membership = change->membership;
  const choir__members_t* members = &membership->agreement.decision;
  if (!choir__members_has(members, membership->rank))
    return CHOIR_ERROR(ABORTED,
                       "elastic: the others went on as generation %lld "
                       "without %s, which did not answer them in time",
                       (long long)membership->generation + 1,
                       change->comm->peers[change->comm->rank].text);
  pthread_mutex_lock(&membership->mutex);
  choir_status_t status = keep_decision(membership);
  if (!status) {
    int32_t size = 0;
    const int32_t rank = membership->rank;
    for (int32_t r = 0; r < membership->size; ++r) {
      if (!choir__members_has(members, r)) continue;
      if (r == rank) membership->rank = size;
      membership->addresses[size] = membership->addresses[r];
      change->ranks[size++] = change->ranks[r];
    }
    membership->size = size;
    ++membership->generation;
  }
  pthread_mutex_unlock(&membership->mutex);
  return status;
}

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

static void describe(const change_t* change, choir__change_t* out_change) {
  const choir__membership_t* membership = change->membership;
  const choir_comm_t* before = change->comm;
  char* text = out_change->text;
  const size_t bytes = sizeof(out_change->text);
  out_change->generation = membership->generation;
  out_change->seconds = choir_clock_seconds() - change->start;
  int32_t lost = 0;
  snprintf(text, bytes, "generation %lld: ", (long long)membership->generation);
  for (int32_t r = 0, next = 0; r < before->size; ++r) {
    if (next < membership->size && change->ranks[next] == r) {
      ++next;
      continue;
    }
    if (lost++) choir__text_append(text, bytes, ", ");
    choir__text_append(text, bytes, before->peers[r].text);
  }
  char more[96];
  snprintf(more, sizeof(more), " %s gone; %d worker%s on",
           lost == 1 ? "is" : "are", membership->size,
           membership->size == 1 ? " goes" : "s go");
  choir__text_append(text, bytes, more);
}

// Until the members of a generation have met, of whom more may be lost.
static choir_status_t make_generation(change_t* change,
                                      choir_comm_t** out_comm) {
  for (;;) {
    CHOIR_TRY(agree(change));
    CHOIR_TRY(enter_generation(change));
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
  change_t change = {
      .membership = membership, .comm = comm, .start = choir_clock_seconds()};
  const size_t bytes = (size_t)comm->size * sizeof(int32_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(membership->allocator, bytes, "ranks", &memory));
  change.ranks = memory;
  for (int32_t r = 0; r < comm->size; ++r) change.ranks[r] = r;
  choir_status_t status = make_generation(&change, out_comm);
  if (!status) describe(&change, out_change);
  choir_deallocate(membership->allocator, memory, bytes);
  return status;
}
