// SPDX-License-Identifier: Apache-2.0
// A communicator over TCP: sockets that never block, a look at all of them,
// then a sleep until one is ready or the deadline is near.
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/algorithms/direct.h"
#include "dist/backends/tcp/tcp_internal.h"

typedef choir_comm_operation_t operation_t;

// Larger messages gain nothing from going with the header.
#define EXCHANGE_BYTES ((size_t)16 << 10)
// Nor do data of which each peer needs a share only, beyond what a message
// costs anyway.
#define EXCHANGE_SHARE_BYTES ((size_t)1 << 10)

// Looks before a rank sleeps, where each has a core of its own.
#define SPIN_COUNT 200
#define SLICE_MILLISECONDS 50
// At 32 ranks 31 beats of about 220 bytes, headers included, in so many seconds
// are 9 kbit/s, less than 0.1 % of 10 Mbit/s.
#define BEAT_SECONDS 6
// After a connection ended: time for what the peer told before that.
#define WORD_SECONDS 0.5
// After a fault: time for the messages that tell it.
#define BROADCAST_SECONDS 0.2

static choir_tcp_comm_t* as_tcp(choir_comm_t* comm) {
  return (choir_tcp_comm_t*)comm;
}

static choir_status_t tcp_post(choir_comm_t* comm, int32_t peer,
                               int32_t channel, void* data, size_t bytes,
                               bool is_receive) {
  if (bytes == 0) return NULL;
  const choir_tcp_frame_t frame = {.channel = (uint8_t)channel,
                                   .bytes = (uint32_t)bytes};
  return choir_tcp_post(comm, peer, frame, data, is_receive);
}

// ---- Waiting ----

typedef struct progress_s {
  int32_t open;  // peers with something posted
  int32_t peer;  // the first of them; those that this rank receives from first
  bool moved;
} progress_t;

static void break_by_forgery(choir_comm_t* comm, int32_t rank) {
  if (!atomic_load(&comm->faults.broken))
    choir_status_free(choir__comm_break_by_message(comm, rank));
}

// A peer whose connection ended, and who told nothing, is gone.
static void check_lost(choir_comm_t* comm, int32_t rank) {
  choir_tcp_link_t* link = &as_tcp(comm)->links[rank];
  if (atomic_load(&link->is_forged)) break_by_forgery(comm, rank);
  if (!link->is_lost || atomic_load(&link->has_ended) ||
      choir_clock_seconds() - link->lost_at < WORD_SECONDS)
    return;
  int here = CHOIR_COMM_PEER_HERE;
  atomic_compare_exchange_strong(&comm->peers[rank].presence, &here,
                                 CHOIR_COMM_PEER_GONE);
}

static progress_t look(choir_tcp_comm_t* tcp) {
  progress_t progress = {.peer = -1};
  bool receives = false;
  for (int32_t r = 0; r < tcp->base.size; ++r) {
    choir_tcp_link_t* link = &tcp->links[r];
    if (!link->in.count && !link->out.count) continue;
    const bool came = link->in.count && choir_tcp_receive_some(link);
    const bool went = link->out.count && choir_tcp_send_some(tcp, link);
    if (came) atomic_fetch_add(&tcp->base.peers[r].beat, 1);
    progress.moved = progress.moved || came || went;
    check_lost(&tcp->base, r);
    if (!link->in.count && !link->out.count) continue;
    ++progress.open;
    if (progress.peer < 0 || (link->in.count && !receives)) {
      progress.peer = r;
      receives = link->in.count > 0;
    }
  }
  return progress;
}

static void sleep_until_ready(choir_tcp_comm_t* tcp) {
  bool is_lost = false;
  for (int32_t r = 0; r < tcp->base.size; ++r) {
    choir_tcp_link_t* link = &tcp->links[r];
    const bool reads = choir_tcp_receives(link);
    tcp->polls[r] = (struct pollfd){
        .fd = (reads || link->out.count) && !link->is_lost ? link->data : -1,
        .events =
            (short)((reads ? POLLIN : 0) | (link->out.count ? POLLOUT : 0))};
    is_lost = is_lost || (link->is_lost && (link->in.count || link->out.count));
  }
  poll(tcp->polls, (nfds_t)tcp->base.size, is_lost ? 5 : SLICE_MILLISECONDS);
}

static void drop_posted(choir_tcp_comm_t* tcp) {
  for (int32_t r = 0; r < tcp->base.size; ++r)
    tcp->links[r].in.count = tcp->links[r].out.count = 0;
}

static choir_status_t wait_slowly(choir_tcp_comm_t* tcp, int32_t peer) {
  choir_comm_t* comm = &tcp->base;
  choir_comm_wait_t wait;
  choir__comm_wait_begin(comm, &wait, peer);
  for (;;) {
    const bool over = choir__comm_wait_is_over(comm, &wait);
    const progress_t progress = look(tcp);
    if (progress.open == 0) break;
    if (over) {
      choir_status_t status = choir__comm_wait_fail(comm, &wait);
      drop_posted(tcp);
      return status;
    }
    if (progress.moved)
      choir__comm_wait_progress(comm, &wait, progress.peer);
    else
      sleep_until_ready(tcp);
  }
  choir__comm_wait_end(comm, &wait);
  return NULL;
}

static choir_status_t tcp_wait(choir_comm_t* comm) {
  choir_tcp_comm_t* tcp = as_tcp(comm);
  const operation_t* running = comm->run.operation;
  const int looks = running && running->may_spin ? SPIN_COUNT : 2;
  progress_t progress = {0};
  for (int i = 0; i < looks; ++i) {
    progress = look(tcp);
    if (progress.open == 0) return NULL;
  }
  return wait_slowly(tcp, progress.peer);
}

// ---- Messages ----

static choir_comm_message_t* tcp_stage(choir_comm_t* comm) {
  return (choir_comm_message_t*)(void*)as_tcp(comm)->out_message;
}

static choir_status_t tcp_exchange(choir_comm_t* comm, size_t bytes) {
  choir_tcp_comm_t* tcp = as_tcp(comm);
  const choir_tcp_frame_t most = {.channel = CHOIR_COMM_CHANNEL_EXCHANGE,
                                  .bytes = (uint32_t)tcp->message_stride};
  choir_tcp_frame_t own = {.channel = CHOIR_COMM_CHANNEL_EXCHANGE};
  own.words = choir_tcp_pack_header(&tcp_stage(comm)->header, &tcp->last_header,
                                    tcp->header) &
              0xffffff;
  own.bytes = (uint32_t)(choir_tcp_header_bytes(&own) + bytes);
  // Not all to rank 0 first.
  for (int32_t step = 1; step < comm->size; ++step) {
    const int32_t r = (comm->rank + step) % comm->size;
    unsigned char* in = tcp->in_messages + (size_t)r * tcp->message_stride;
    comm->messages[r] = (const choir_comm_message_t*)(void*)in;
    if (tcp->relay) continue;
    CHOIR_TRY(choir_tcp_post(comm, r, most, in, true));
    CHOIR_TRY(choir_tcp_post(comm, r, own, tcp->out_message, false));
  }
  comm->messages[comm->rank] = tcp_stage(comm);
  return tcp->relay ? choir_tcp_relay_exchange(tcp, &own) : tcp_wait(comm);
}

// ---- Heartbeats and faults ----

enum { WORD_BEAT = 1, WORD_FAULT = 2, WORD_LEAVE = 3, WORD_END = 4 };

// On a control connection. Of a beat `activity`, of a fault `fault` follows.
typedef struct word_s {
  uint32_t kind;
  uint32_t bytes;  // that follow
  union {
    choir_activity_t activity;
    choir_comm_fault_t fault;
  };
} word_t;
enum { WORD_HEAD_BYTES = offsetof(word_t, activity) };
_Static_assert(sizeof(word_t) <= sizeof(((choir_tcp_link_t*)0)->control_in),
               "a word fits into the buffer");

static size_t word_bytes(uint32_t kind) {
  return kind == WORD_BEAT    ? sizeof(choir_activity_t)
         : kind == WORD_FAULT ? sizeof(choir_comm_fault_t)
                              : 0;
}

// With the mutex. Small enough for a buffer that is nearly always empty; what
// does not fit whole is a peer that has not read for long.
static void send_word(choir_tcp_link_t* link, const word_t* word) {
  if (link->control < 0) return;
  const size_t bytes = WORD_HEAD_BYTES + word->bytes;
  const double end = choir_clock_seconds() + BROADCAST_SECONDS;
  // Of a beat that did not go whole: it goes first.
  bool is_rest = choir_tcp_is_sending(link->control_seal);
  for (size_t done = 0; done < bytes;) {
    struct iovec part = {.iov_base = (char*)word + done,
                         .iov_len = bytes - done};
    const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    const ssize_t n =
        choir_tcp_send(link->control, link->control_seal, &message);
    if (n > 0 && !is_rest) done += (size_t)n;
    if (n > 0) is_rest = false;
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    const bool is_full = n < 0 && errno == EAGAIN;
    // A beat may be left out, but not a part of a word: nothing after that
    // would be understood.
    if (is_full && done == 0 && word->kind == WORD_BEAT) return;
    if (!is_full || choir_clock_seconds() > end) {
      if (done > 0) shutdown(link->control, SHUT_WR);
      return;
    }
    struct pollfd ready = {.fd = link->control, .events = POLLOUT};
    poll(&ready, 1, 10);
  }
}

// With the mutex. False: not a word.
static bool take_word(choir_tcp_comm_t* tcp, int32_t rank, const word_t* word) {
  choir_tcp_link_t* link = &tcp->links[rank];
  if (word->kind == WORD_FAULT)
    choir__comm_note_fault(&tcp->base, &word->fault);
  else if (word->kind == WORD_BEAT)
    link->activity = word->activity;
  else if (word->kind == WORD_LEAVE)
    link->has_left = true;
  else if (word->kind == WORD_END)
    atomic_store(&link->has_ended, true);
  return word->kind >= WORD_BEAT && word->kind <= WORD_END;
}

static bool take_words(choir_tcp_comm_t* tcp, int32_t rank) {
  choir_tcp_link_t* link = &tcp->links[rank];
  size_t at = 0;
  bool is_right = true;
  while (is_right && link->control_bytes - at >= WORD_HEAD_BYTES) {
    word_t word;
    memcpy(&word, link->control_in + at, WORD_HEAD_BYTES);
    const size_t bytes = WORD_HEAD_BYTES + word_bytes(word.kind);
    is_right = word.bytes == word_bytes(word.kind);
    if (!is_right || link->control_bytes - at < bytes) break;
    memcpy(&word, link->control_in + at, bytes);
    is_right = take_word(tcp, rank, &word);
    at += bytes;
  }
  memmove(link->control_in, link->control_in + at, link->control_bytes - at);
  link->control_bytes -= at;
  return is_right;
}

// With the mutex: what has come from a peer. False: its connection ended.
static bool read_words(choir_tcp_comm_t* tcp, int32_t rank) {
  choir_tcp_link_t* link = &tcp->links[rank];
  for (;;) {
    struct iovec part = {
        .iov_base = link->control_in + link->control_bytes,
        .iov_len = sizeof(link->control_in) - link->control_bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    const ssize_t n =
        choir_tcp_receive(link->control, link->control_seal, &message);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EBADMSG) atomic_store(&link->is_forged, true);
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    link->control_bytes += (size_t)n;
    atomic_fetch_add(&tcp->base.peers[rank].beat, 1);
    if (!take_words(tcp, rank)) return false;
  }
}

// All peers that have something to say.
static void read_all_words(choir_tcp_comm_t* tcp) {
  int32_t forger = -1;
  pthread_mutex_lock(&tcp->mutex);
  for (int32_t r = 0; r < tcp->base.size; ++r) {
    choir_tcp_link_t* link = &tcp->links[r];
    if (link->control < 0 || atomic_load(&link->is_forged) ||
        read_words(tcp, r))
      continue;
    if (atomic_load(&link->is_forged)) {
      forger = r;  // who is told so, over the same connection
      continue;
    }
    if (!atomic_load(&link->has_ended))
      atomic_store(&tcp->base.peers[r].presence, link->has_left
                                                     ? CHOIR_COMM_PEER_LEFT
                                                     : CHOIR_COMM_PEER_GONE);
    close(link->control);
    link->control = -1;
  }
  pthread_mutex_unlock(&tcp->mutex);
  if (forger >= 0) break_by_forgery(&tcp->base, forger);
}

static void tcp_poll_faults(choir_comm_t* comm) {
  read_all_words(as_tcp(comm));
}

static void send_to_all(choir_tcp_comm_t* tcp, const word_t* word) {
  pthread_mutex_lock(&tcp->mutex);
  for (int32_t r = 0; r < tcp->base.size; ++r) send_word(&tcp->links[r], word);
  pthread_mutex_unlock(&tcp->mutex);
}

static void tcp_heartbeat(choir_comm_t* comm, double seconds) {
  choir_tcp_comm_t* tcp = as_tcp(comm);
  const double end = choir_clock_seconds() + seconds;
  // Also when it broke: those who agree on who goes on see who is there.
  word_t beat = {.kind = WORD_BEAT, .bytes = sizeof(choir_activity_t)};
  choir__activity_read(comm->activity.places[0], &beat.activity);
  send_to_all(tcp, &beat);
  for (;;) {
    const double left = end - choir_clock_seconds();
    if (left <= 0) return;
    pthread_mutex_lock(&tcp->mutex);
    for (int32_t r = 0; r < comm->size; ++r)
      tcp->watched[r] = (struct pollfd){
          .fd = atomic_load(&tcp->links[r].is_forged) ? -1
                                                      : tcp->links[r].control,
          .events = POLLIN};
    pthread_mutex_unlock(&tcp->mutex);
    tcp->watched[comm->size] =
        (struct pollfd){.fd = comm->watch.wake_fd, .events = POLLIN};
    poll(tcp->watched, (nfds_t)comm->size + 1, (int)(left * 1e3) + 1);
    read_all_words(tcp);
    if (tcp->watched[comm->size].revents) return;
  }
}

static void tcp_broadcast_fault(choir_comm_t* comm,
                                const choir_comm_fault_t* fault) {
  word_t word = {.kind = WORD_FAULT, .bytes = sizeof(*fault), .fault = *fault};
  send_to_all(as_tcp(comm), &word);
}

static void tcp_peer_activity(choir_comm_t* comm, int32_t rank,
                              choir_activity_t* out_activity) {
  choir_tcp_comm_t* tcp = as_tcp(comm);
  pthread_mutex_lock(&tcp->mutex);
  *out_activity = tcp->links[rank].activity;
  pthread_mutex_unlock(&tcp->mutex);
}

static void tcp_finalize(choir_comm_t* comm) {
  const word_t end = {.kind = WORD_END};
  send_to_all(as_tcp(comm), &end);
}

// ---- Groups ----

// Where this rank will listen for a group's others.
static void tcp_describe(choir_comm_t* comm, const operation_t* operation,
                         choir_comm_header_t* header) {
  choir_tcp_comm_t* tcp = as_tcp(comm);
  if (operation->kind != CHOIR_COMM_KIND_GROUP) return;
  if (tcp->group_listener >= 0) close(tcp->group_listener);
  tcp->group_listener = -1;
  uint16_t port = 0;
  choir_status_free(choir_tcp_listen(&tcp->group_listener, &port));
  header->src_place = port;
}

// ---- Life ----

static size_t work_bytes(const choir_comm_t* comm) {
  return CHOIR_COMM_WORK_BYTES(comm->sizes.round, comm->size);
}

static void tcp_destroy(choir_comm_t* comm) {
  choir_tcp_comm_t* tcp = as_tcp(comm);
  if (tcp->memory && !comm->run.finalized &&
      !atomic_load(&comm->faults.broken)) {
    const word_t leave = {.kind = WORD_LEAVE};
    send_to_all(tcp, &leave);
  }
  for (int32_t r = 0; tcp->memory && r < comm->size; ++r) {
    choir_tcp_link_t* link = &tcp->links[r];
    if (link->data >= 0) close(link->data);
    if (link->control >= 0) close(link->control);
    choir_tcp_seal_close(comm->allocator, &link->data_seal);
    choir_tcp_seal_close(comm->allocator, &link->control_seal);
  }
  if (tcp->group_listener >= 0) close(tcp->group_listener);
  if (tcp->memory)
    comm->allocator.free(comm->allocator.self, tcp->memory, tcp->memory_bytes,
                         64);
  if (tcp->work) choir_deallocate(comm->allocator, tcp->work, work_bytes(comm));
  choir_tcp_relay_close(tcp);
  pthread_mutex_destroy(&tcp->mutex);
  choir__comm_deallocate(comm);
}

static choir_status_t tcp_group(choir_comm_t* comm,
                                const choir_comm_config_t* config,
                                const int32_t* ranks, uint64_t context,
                                choir_comm_t** out_group);

static bool tcp_address(const choir_comm_t* comm,
                        unsigned char out_address[16]) {
  const choir_tcp_comm_t* tcp = (const choir_tcp_comm_t*)comm;
  const int32_t own = comm->peers[comm->rank].host_index;
  for (int32_t r = 0; r < comm->size; ++r) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    if (comm->peers[r].host_index == own ||
        getsockname(tcp->links[r].control, (struct sockaddr*)&address, &bytes))
      continue;
    choir_tcp_write_address(&address, out_address);
    return true;
  }
  return false;
}

static const choir_comm_vtable_t tcp_vtable = {
    .name = "tcp",
    .destroy = tcp_destroy,
    .stage = tcp_stage,
    .exchange = tcp_exchange,
    .describe = tcp_describe,
    .large = CHOIR__DIRECT_LARGE,
    .group = tcp_group,
    .pair = choir__direct_pair,
    .post = tcp_post,
    .wait = tcp_wait,
    .heartbeat = tcp_heartbeat,
    .poll_faults = tcp_poll_faults,
    .broadcast_fault = tcp_broadcast_fault,
    .peer_activity = tcp_peer_activity,
    .finalize = tcp_finalize,
    .address = tcp_address,
};

static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

static choir_status_t allocate_memory(choir_tcp_comm_t* tcp) {
  choir_comm_t* comm = &tcp->base;
  const size_t size = (size_t)comm->size;
  comm->sizes.exchange = EXCHANGE_BYTES;
  comm->sizes.with_header = EXCHANGE_BYTES;
  comm->sizes.share_with_header = EXCHANGE_SHARE_BYTES;
  comm->watch.has_heartbeat = true;
  comm->watch.beat_seconds = BEAT_SECONDS;
  tcp->message_stride =
      round_up(sizeof(choir_comm_message_t) + comm->sizes.exchange);
  const size_t messages = (size + 1) * tcp->message_stride;
  const size_t links = round_up(size * sizeof(choir_tcp_link_t));
  const size_t polls = round_up(2 * (size + 1) * sizeof(struct pollfd));
  tcp->memory_bytes = messages + links + polls;
  tcp->memory =
      comm->allocator.alloc(comm->allocator.self, tcp->memory_bytes, 64);
  if (!tcp->memory)
    return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for %zu bytes",
                       tcp->memory_bytes);
  memset(tcp->memory, 0, messages + links + polls);
  tcp->out_message = tcp->memory;
  tcp->in_messages = tcp->memory + tcp->message_stride;
  unsigned char* next = tcp->memory + messages;
  tcp->links = (choir_tcp_link_t*)(void*)next;
  tcp->polls = (struct pollfd*)(void*)(next + links);
  tcp->watched = tcp->polls + size + 1;
  for (size_t r = 0; r < size; ++r) {
    tcp->links[r].data = tcp->links[r].control = -1;
    tcp->links[r].activity.kind = -1;
  }
  return NULL;
}

static choir_status_t allocate(const choir_comm_config_t* config,
                               choir_comm_t** out_comm) {
  CHOIR_TRY(choir__comm_allocate(&tcp_vtable, sizeof(choir_tcp_comm_t), config,
                                 out_comm));
  choir_tcp_comm_t* tcp = as_tcp(*out_comm);
  pthread_mutex_init(&tcp->mutex, NULL);
  tcp->group_listener = -1;
  tcp->encrypts = config->encrypt;
  return allocate_memory(tcp);
}

// Many ranks, near to each other: the steps of a relay wait for each other.
static bool passes_on(const choir_comm_t* comm) {
  return comm->size > CHOIR_TCP_MOST_DIRECT &&
         comm->sizes.round == CHOIR_COMM_ROUND_BYTES;
}

// How long rounds are is known when ranks have met.
static choir_status_t joined(choir_comm_t** out_comm, choir_status_t status) {
  choir_comm_t* comm = *out_comm;
  // Else nobody joined, and there is nobody to tell.
  if (comm) comm->run.finalized = status != NULL;
  if (!status)
    status = choir_allocate(comm->allocator, work_bytes(comm), "pieces of sums",
                            &as_tcp(comm)->work);
  if (!status && passes_on(comm)) status = choir_tcp_relay_open(as_tcp(comm));
  if (!status) {
    comm->work = as_tcp(comm)->work;
    choir__comm_map_hosts(comm);
    return NULL;
  }
  if (comm) tcp_destroy(comm);
  *out_comm = NULL;
  return choir_status_annotate(status, __FILE__, __LINE__, "comm tcp");
}

choir_status_t choir_tcp_comm_join(const choir_comm_config_t* config,
                                   choir_comm_t** out_comm) {
  choir_status_t status = allocate(config, out_comm);
  if (!status && config->size > 1)
    status = choir_tcp_meet(as_tcp(*out_comm), config);
  else if (!status)
    choir__comm_identify(config, &(*out_comm)->peers[0].identity);
  return joined(out_comm, status);
}

static choir_status_t meet_group(choir_tcp_comm_t* group,
                                 choir_tcp_comm_t* parent,
                                 const choir_comm_config_t* config,
                                 const int32_t* ranks) {
  const int listener = parent->group_listener;
  parent->group_listener = -1;
  for (int32_t r = 0; r < config->size; ++r) {
    group->base.peers[r].identity = parent->base.peers[ranks[r]].identity;
    group->base.peers[r].identity.rank = r;
    group->base.peers[r].identity.size = config->size;
    group->links[r].address = parent->links[ranks[r]].address;
  }
  uint16_t* ports = (uint16_t*)(void*)group->out_message;  // not in use yet
  for (int32_t r = 0; r < config->size; ++r)
    ports[r] = (uint16_t)parent->base.headers[ranks[r]].src_place;
  return choir_tcp_meet_group(group, config, listener, ports);
}

static choir_status_t tcp_group(choir_comm_t* comm,
                                const choir_comm_config_t* config,
                                const int32_t* ranks, uint64_t context,
                                choir_comm_t** out_group) {
  (void)context;
  bool one_host = true;
  for (int32_t r = 1; r < config->size; ++r)
    one_host = one_host && comm->peers[ranks[r]].host_index ==
                               comm->peers[ranks[0]].host_index;
  if (one_host) return choir_shm_comm_join(config, out_group);
  choir_comm_config_t own = *config;
  own.encrypt = as_tcp(comm)->encrypts;
  choir_status_t status = allocate(&own, out_group);
  if (!status) (*out_group)->sizes.round = comm->sizes.round;
  if (!status)
    status = meet_group(as_tcp(*out_group), as_tcp(comm), config, ranks);
  return joined(out_group, status);
}
