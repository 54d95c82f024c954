// SPDX-License-Identifier: Apache-2.0
// What members send each other, and those who come: datagrams with a code of
// the run's id.
#include <stddef.h>
#include <string.h>

#include "core/clock.h"
#include "dist/comm_mac_internal.h"
#include "dist/elastic/membership_internal.h"

enum { MARK_BYTES = 8 };
// They change with the layout.
static const char agreement_mark[] = "choir-a2";
static const char greeting_mark[] = "choir-g3";

typedef struct greeting_s {
  int32_t kind;  // CHOIR__GREETING_*
  int32_t pid;
  uint64_t host;
  uint64_t model;
  int64_t generation;
  int32_t rank;
  int32_t size;
  choir__member_t members[];  // [size], of WELCOME; the newcomer, of ORDER
} greeting_t;

struct choir__packet_s {
  char mark[MARK_BYTES];
  choir__comm_mac_t mac;  // of what follows
  union {
    choir__agreement_message_t message;
    greeting_t greeting;
    unsigned char bytes[sizeof(greeting_t) +
                        CHOIR__MEMBERS_MOST * sizeof(choir__member_t)];
  };
};
typedef choir__packet_t packet_t;

choir_status_t choir__messages_open(choir__membership_t* membership) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(membership->allocator, 2 * sizeof(packet_t),
                           "messages of members", &memory));
  memset(memory, 0, 2 * sizeof(packet_t));
  membership->sent = memory;
  membership->received = membership->sent + 1;
  return NULL;
}

void choir__messages_close(choir__membership_t* membership) {
  choir_deallocate(membership->allocator, membership->sent,
                   2 * sizeof(packet_t));
}

// ---- To others ----

static choir_status_t make_mac(const choir__membership_t* membership,
                               const packet_t* packet, size_t bytes,
                               choir__comm_mac_t* out_mac) {
  const bool is_greeting = !memcmp(packet->mark, greeting_mark, MARK_BYTES);
  return choir__comm_mac_make(&membership->id,
                              is_greeting ? "elastic-join" : "elastic",
                              packet->bytes, bytes, out_mac);
}

// `bytes` of membership->sent.
static void send_sent(const choir__membership_t* membership, const char* mark,
                      size_t bytes, const choir__endpoint_t* to) {
  packet_t* packet = membership->sent;
  memcpy(packet->mark, mark, MARK_BYTES);
  choir_status_t status = make_mac(membership, packet, bytes, &packet->mac);
  if (!status)
    choir__member_send(&membership->sockets, to, packet,
                       offsetof(packet_t, bytes) + bytes);
  choir_status_free(status);
}

static void send_to(const choir__membership_t* membership,
                    const choir__agreement_message_t* message,
                    const choir__endpoint_t* to) {
  membership->sent->message = *message;
  send_sent(membership, agreement_mark, sizeof(*message), to);
}

void choir__messages_send(void* self,
                          const choir__agreement_message_t* message) {
  const choir__membership_t* membership = self;
  send_to(membership, message, &membership->members[message->to].at);
}

void choir__messages_greet(const choir__membership_t* membership, int32_t kind,
                           int32_t rank, const choir__endpoint_t* to) {
  greeting_t* greeting = &membership->sent->greeting;
  *greeting = (greeting_t){.kind = kind,
                           .pid = membership->own.pid,
                           .host = membership->own.host,
                           .model = membership->model,
                           .generation = membership->generation,
                           .rank = rank,
                           .size = membership->size};
  size_t bytes = sizeof(*greeting);
  if (kind == CHOIR__GREETING_WELCOME) {
    const size_t more = (size_t)membership->size * sizeof(choir__member_t);
    memcpy(greeting->members, membership->members, more);
    bytes += more;
  }
  send_sent(membership, greeting_mark, bytes, to);
}

void choir__messages_leave(const choir__membership_t* membership) {
  for (int32_t r = 0; r < membership->size; ++r)
    if (r != membership->rank)
      choir__messages_greet(membership, CHOIR__GREETING_LEAVE, membership->rank,
                            &membership->members[r].at);
}

// Of the greeting its step, index and givers are generation, rank and size.
void choir__messages_order(const choir__membership_t* membership,
                           const choir__feed_t* feed,
                           const choir__endpoint_t* to) {
  greeting_t* greeting = &membership->sent->greeting;
  *greeting = (greeting_t){.kind = CHOIR__GREETING_ORDER,
                           .pid = membership->own.pid,
                           .host = membership->own.host,
                           .model = membership->model,
                           .generation = feed->step,
                           .rank = feed->index,
                           .size = feed->givers};
  greeting->members[0] = feed->to;
  send_sent(membership, greeting_mark, sizeof(*greeting) + sizeof(feed->to),
            to);
}

// ---- From others ----

// To one who is not in this generation yet.
static void answer_of_before(const choir__membership_t* membership,
                             const choir__agreement_message_t* message,
                             const choir__endpoint_t* from) {
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
                         const choir__endpoint_t* from) {
  if (message->generation < membership->generation)
    answer_of_before(membership, message, from);
  else if (membership->is_open && message->generation == membership->generation)
    choir__agreement_receive(&membership->agreement, message,
                             choir_clock_seconds());
}

// False: there is no room.
static bool note_newcomer(choir__membership_t* membership,
                          const choir__member_t* newcomer) {
  const int count = atomic_load(&membership->newcomer_count);
  for (int i = 0; i < count; ++i)
    if (choir__endpoint_equal(&membership->newcomers[i].at, &newcomer->at))
      return true;
  if (count == CHOIR__NEWCOMERS_MOST ||
      membership->size + count >= CHOIR__MEMBERS_MOST)
    return false;
  membership->newcomers[count] = *newcomer;
  atomic_store(&membership->newcomer_count, count + 1);
  return true;
}

// Once more to one whose welcome was lost; else the next change takes it in.
static void take_join(choir__membership_t* membership,
                      const greeting_t* greeting,
                      const choir__endpoint_t* from) {
  if (membership->generation == 0) return;
  if (greeting->model != membership->model) {
    choir__messages_greet(membership, CHOIR__GREETING_AWAY, -1, from);
    return;
  }
  for (int32_t r = 0; r < membership->size; ++r)
    if (choir__endpoint_equal(&membership->members[r].at, from)) {
      choir__messages_greet(membership, CHOIR__GREETING_WELCOME, r, from);
      return;
    }
  if (note_newcomer(membership, &(choir__member_t){.at = *from,
                                                   .pid = greeting->pid,
                                                   .host = greeting->host}))
    choir__messages_greet(membership, CHOIR__GREETING_SOON, -1, from);
}

// Of one who was left out: who has not heard of it yet welcomes it to what it
// was left out of.
static void take_welcome(choir__membership_t* membership,
                         const greeting_t* greeting, size_t bytes) {
  const int32_t size = greeting->size;
  if (membership->generation > 0 || size < 1 || size > CHOIR__MEMBERS_MOST ||
      greeting->rank < 0 || greeting->rank >= size ||
      greeting->generation <= membership->left_out_of ||
      bytes != sizeof(*greeting) + (size_t)size * sizeof(choir__member_t))
    return;
  membership->generation = greeting->generation;
  membership->rank = greeting->rank;
  membership->size = size;
  memcpy(membership->members, greeting->members,
         (size_t)size * sizeof(choir__member_t));
  membership->left = (choir__members_t){{0}};
  membership->is_welcomed = true;
  choir__membership_note(membership);
}

static bool is_ordered(const choir__membership_t* membership,
                       const choir__endpoint_t* to) {
  for (int i = 0; i < atomic_load(&membership->order_count); ++i)
    if (choir__endpoint_equal(&membership->orders[i].to.at, to)) return true;
  return false;
}

// On rank 0, which answers. Who has not heard yet asks again.
static void note_asker(choir__membership_t* membership,
                       const choir__member_t* asker) {
  const int count = atomic_load(&membership->asker_count);
  for (int i = 0; i < count; ++i)
    if (choir__endpoint_equal(&membership->askers[i].at, &asker->at)) return;
  if (membership->rank != 0 || count == CHOIR__NEWCOMERS_MOST ||
      is_ordered(membership, &asker->at))
    return;
  membership->askers[count] = *asker;
  atomic_store(&membership->asker_count, count + 1);
}

void choir__membership_note_order(choir__membership_t* membership,
                                  const choir__feed_t* feed) {
  const int count = atomic_load(&membership->order_count);
  if (count == CHOIR__NEWCOMERS_MOST || is_ordered(membership, &feed->to.at))
    return;
  membership->orders[count] = *feed;
  atomic_store(&membership->order_count, count + 1);
}

static void take_asking(choir__membership_t* membership,
                        const greeting_t* greeting,
                        const choir__endpoint_t* from) {
  if (membership->generation == 0) return;
  if (greeting->model != membership->model)
    choir__messages_greet(membership, CHOIR__GREETING_AWAY, -1, from);
  else
    note_asker(membership,
               &(choir__member_t){
                   .at = *from, .pid = greeting->pid, .host = greeting->host});
}

static void take_order(choir__membership_t* membership,
                       const greeting_t* greeting, size_t bytes) {
  if (bytes != sizeof(*greeting) + sizeof(choir__member_t) ||
      greeting->size < 1 || greeting->rank < -1 ||
      greeting->rank >= greeting->size ||
      (greeting->rank < 0) != (membership->generation == 0))
    return;
  choir__membership_note_order(membership,
                               &(choir__feed_t){.to = greeting->members[0],
                                                .step = greeting->generation,
                                                .index = greeting->rank,
                                                .givers = greeting->size});
}

// It stands behind all else that the member has sent here, like its end.
static void take_leave(choir__membership_t* membership,
                       const greeting_t* greeting,
                       const choir__endpoint_t* from) {
  const int32_t rank = greeting->rank;
  if (greeting->generation == membership->generation && rank >= 0 &&
      rank < membership->size &&
      choir__endpoint_equal(&membership->members[rank].at, from))
    choir__members_add(&membership->left, rank);
}

static void take_greeting(choir__membership_t* membership,
                          const greeting_t* greeting, size_t bytes,
                          const choir__endpoint_t* from) {
  switch (greeting->kind) {
    case CHOIR__GREETING_JOIN:
      take_join(membership, greeting, from);
      return;
    case CHOIR__GREETING_WELCOME:
      take_welcome(membership, greeting, bytes);
      return;
    case CHOIR__GREETING_AWAY:
      membership->is_turned_away = true;
      return;
    case CHOIR__GREETING_SOON:
      membership->answered = choir_clock_seconds();
      return;
    case CHOIR__GREETING_LEAVE:
      take_leave(membership, greeting, from);
      return;
    case CHOIR__GREETING_ASK:
      take_asking(membership, greeting, from);
      return;
    case CHOIR__GREETING_ORDER:
      take_order(membership, greeting, bytes);
      return;
    default:
      return;
  }
}

// Whether something came from who knows the id, of `*out_bytes`.
static bool receive(const choir__membership_t* membership, size_t* out_bytes,
                    choir__endpoint_t* out_from) {
  packet_t* packet = membership->received;
  const int64_t head = offsetof(packet_t, bytes);
  const int64_t count = choir__member_receive(&membership->sockets, packet,
                                              sizeof(*packet), out_from);
  if (count < head) return false;
  *out_bytes = (size_t)(count - head);
  choir__comm_mac_t mac;
  choir_status_t status = make_mac(membership, packet, *out_bytes, &mac);
  const bool is_authentic =
      !status && choir__comm_mac_equal(&mac, &packet->mac);
  choir_status_free(status);
  return is_authentic;
}

void choir__messages_receive(choir__membership_t* membership) {
  size_t bytes;
  choir__endpoint_t from;
  if (!receive(membership, &bytes, &from)) return;
  const packet_t* packet = membership->received;
  pthread_mutex_lock(&membership->mutex);
  if (!memcmp(packet->mark, agreement_mark, MARK_BYTES) &&
      bytes == sizeof(packet->message))
    take_message(membership, &packet->message, &from);
  else if (!memcmp(packet->mark, greeting_mark, MARK_BYTES) &&
           bytes >= sizeof(packet->greeting))
    take_greeting(membership, &packet->greeting, bytes, &from);
  pthread_cond_signal(&membership->heard);
  pthread_mutex_unlock(&membership->mutex);
}
