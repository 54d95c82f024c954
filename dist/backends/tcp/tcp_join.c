// SPDX-License-Identifier: Apache-2.0
// How ranks find each other over TCP. Rank 0 listens at the rendezvous address;
// all others come there and say where they listen, and get the table of all.
// Then rank r connects to all lower ranks, and is called by all higher ones.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "dist/backends/tcp/tcp_join_internal.h"
#include "dist/rendezvous_internal.h"

#define FAR_MICROSECONDS 1000
// At 100 Mbit/s over a second's worth, at 1 Gbit/s a seventh of one.
#define FAR_ROUND_BYTES ((size_t)16 << 20)

// A line of the table: IPv4 addresses are mapped into IPv6's.
typedef struct entry_s {
  choir_tcp_card_t card;
  unsigned char address[16];
  uint64_t is_rank_0;  // the host that the reader knows as rank 0's
  uint64_t is_far;     // of rank 0's: some rank's host is far from there
} entry_t;

// ---- The rendezvous ----

choir_status_t choir_tcp_resolve(const char* text,
                                 struct addrinfo** out_found) {
  *out_found = NULL;
  char host[CHOIR_COMM_ADDRESS_BYTES];
  snprintf(host, sizeof(host), "%s", text);
  char* colon = strrchr(host, ':');
  if (!colon || colon == host || !colon[1])
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "the rendezvous is '%s'; HOST:PORT is needed", text);
  *colon = 0;
  char* name = host;
  if (*name == '[' && colon[-1] == ']') {
    ++name;
    colon[-1] = 0;
  }
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  const int error = getaddrinfo(name, colon + 1, &hints, out_found);
  if (!error) return NULL;
  return CHOIR_ERROR(NOT_FOUND, "the rendezvous %s: %s", text,
                     gai_strerror(error));
}

static void copy_address(const struct addrinfo* found,
                         struct sockaddr_storage* out_address) {
  memset(out_address, 0, sizeof(*out_address));
  memcpy(out_address, found->ai_addr, found->ai_addrlen);
}

static choir_status_t check_card(const choir_tcp_join_t* join,
                                 const choir_tcp_card_t* card) {
  if (card->encrypts != join->own.encrypts)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "rank %d encrypts what it sends (CHOIR_TCP_ENCRYPT=1), "
                       "rank %d does not; all ranks need the same",
                       join->own.encrypts ? 0 : card->identity.rank,
                       join->own.encrypts ? card->identity.rank : 0);
  if (card->identity.size == join->own.identity.size) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "rank %d (pid %d) has size %d, rank %d (pid %d) has size "
                     "%d; all ranks need the same",
                     join->own.identity.rank, join->own.identity.pid,
                     join->own.identity.size, card->identity.rank,
                     card->identity.pid, card->identity.size);
}

static choir_status_t tell_missing(choir_tcp_join_t* join) {
  choir_comm_t* comm = &join->tcp->base;
  char ranks[128];
  int32_t count = 0;
  for (int32_t r = 0; r < comm->size; ++r) count += comm->flags[r];
  choir__comm_rank_list(comm->flags, comm->size, ranks, sizeof(ranks));
  return CHOIR_ERROR(TIMEOUT,
                     "rank %d (host %s, pid %d) waited %.1f s at the start; %s "
                     "of %d %s not come",
                     comm->rank, join->own.identity.host,
                     join->own.identity.pid, join->config->deadline, ranks,
                     comm->size, count == 1 ? "has" : "have");
}

// Rank 0: links[r].control is the connection of a rank that has come, until the
// table has gone out.
static choir_status_t note_registered(choir_tcp_join_t* join,
                                      choir_tcp_caller_t* caller) {
  choir_tcp_comm_t* tcp = join->tcp;
  const choir_tcp_card_t* card = &caller->proof.card;
  const int32_t rank = caller->hello.rank;
  choir_status_t status = check_card(join, card);
  if (!status && (caller->hello.purpose != CHOIR_TCP_REGISTER || rank < 1 ||
                  rank >= tcp->base.size || card->identity.rank != rank))
    status = CHOIR_ERROR(INVALID_ARGUMENT, "rank %d of %d cannot register",
                         rank, tcp->base.size);
  if (!status && tcp->links[rank].control >= 0)
    status = CHOIR_ERROR(ALREADY_EXISTS,
                         "rank %d of this id is there already; an id serves "
                         "one communicator",
                         rank);
  if (status) {
    choir_tcp_send_reply(caller->socket, status);
    choir_tcp_drop_caller(caller);
    return status;
  }
  socklen_t bytes = sizeof(tcp->links[rank].address);
  if (getpeername(caller->socket, (struct sockaddr*)&tcp->links[rank].address,
                  &bytes))
    return choir_tcp_socket_error("getpeername");
  tcp->links[rank].control = caller->socket;
  tcp->base.peers[rank].identity = card->identity;
  choir_tcp_set_port(&tcp->links[rank].address, (uint16_t)card->port);
  *caller = (choir_tcp_caller_t){.socket = -1};
  return NULL;
}

static choir_status_t gather_ranks(choir_tcp_join_t* join) {
  choir_comm_t* comm = &join->tcp->base;
  for (;;) {
    int32_t missing = 0;
    for (int32_t r = 0; r < comm->size; ++r) {
      comm->flags[r] = r > 0 && join->tcp->links[r].control < 0;
      missing += comm->flags[r];
    }
    if (missing == 0) return NULL;
    if (choir_clock_seconds() > join->deadline) return tell_missing(join);
    CHOIR_TRY(choir_tcp_serve_callers(join, note_registered));
  }
}

// Where a packet and its acknowledgement take longer than in a local network.
static bool is_far(int socket) {
  struct tcp_info info = {0};
  socklen_t bytes = sizeof(info);
  return !getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) &&
         info.tcpi_min_rtt > FAR_MICROSECONDS;
}

// Between two rounds there is half a round trip in which nothing is sent.
static void choose_rounds(choir_tcp_comm_t* tcp, const entry_t* table) {
  if (table[0].is_far) tcp->base.sizes.round = FAR_ROUND_BYTES;
}

static choir_status_t hand_out_table(choir_tcp_join_t* join) {
  choir_tcp_comm_t* tcp = join->tcp;
  const size_t bytes = (size_t)tcp->base.size * sizeof(entry_t);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(tcp->base.allocator, bytes, "table of ranks", &memory));
  entry_t* table = memory;
  table[0] = (entry_t){.card = join->own, .is_rank_0 = 1};
  for (int32_t r = 1; r < tcp->base.size; ++r) {
    const struct sockaddr_storage* address = &tcp->links[r].address;
    table[0].is_far |= is_far(tcp->links[r].control);
    table[r] = (entry_t){.card = {.identity = tcp->base.peers[r].identity,
                                  .port = choir_tcp_port_of(address)},
                         .is_rank_0 = choir_tcp_is_loopback(address)};
    choir_tcp_write_address(address, table[r].address);
  }
  for (int32_t r = 1; r < tcp->base.size; ++r) {
    choir_tcp_send_reply(tcp->links[r].control, NULL);
    choir_tcp_move_all(tcp->links[r].control, table, bytes, true,
                       join->deadline);
    choir_tcp_close_socket(&tcp->links[r].control);
  }
  choose_rounds(tcp, table);
  choir_deallocate(tcp->base.allocator, memory, bytes);
  return NULL;
}

choir_status_t choir__rendezvous_open(int* out_fd, uint16_t* out_port) {
  const struct sockaddr_in loopback = {
      .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_storage address = {0};
  socklen_t bytes = sizeof(address);
  *out_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*out_fd < 0) return choir_tcp_socket_error("socket");
  if (!bind(*out_fd, (const struct sockaddr*)&loopback, sizeof(loopback)) &&
      !listen(*out_fd, SOMAXCONN) &&
      !getsockname(*out_fd, (struct sockaddr*)&address, &bytes)) {
    *out_port = choir_tcp_port_of(&address);
    return NULL;
  }
  choir_status_t status = choir_tcp_socket_error("rendezvous");
  choir_tcp_close_socket(out_fd);
  return status;
}

static choir_status_t open_rendezvous(choir_tcp_join_t* join) {
  if (join->config->rendezvous_fd > 0) {
    join->listener = fcntl(join->config->rendezvous_fd, F_DUPFD_CLOEXEC, 0);
    if (join->listener < 0) return choir_tcp_socket_error("rendezvous_fd");
    fcntl(join->listener, F_SETFL, O_NONBLOCK);
    return NULL;
  }
  struct sockaddr_storage address;
  struct addrinfo* found;
  CHOIR_TRY(choir_tcp_resolve(join->config->rendezvous, &found));
  copy_address(found, &address);
  freeaddrinfo(found);
  return choir_tcp_listen_at(choir_tcp_port_of(&address), &join->listener);
}

static choir_status_t host_rendezvous(choir_tcp_join_t* join) {
  CHOIR_TRY(open_rendezvous(join));
  choir_status_t status = gather_ranks(join);
  if (!status) status = hand_out_table(join);
  for (int32_t r = 1; r < join->tcp->base.size; ++r) {
    int* socket = &join->tcp->links[r].control;
    if (status && *socket >= 0) choir_tcp_send_reply(*socket, status);
    choir_tcp_close_socket(socket);
  }
  for (int i = 0; i < CHOIR_TCP_MAX_CALLERS; ++i)
    choir_tcp_drop_caller(&join->callers[i]);
  choir_tcp_close_socket(&join->listener);
  return status;
}

static choir_status_t lost_rank_0(const choir_tcp_join_t* join) {
  return CHOIR_ERROR(ABORTED,
                     "rank 0, which listens at %s, ended while ranks "
                     "were joining",
                     join->config->rendezvous);
}

static choir_status_t take_table(choir_tcp_join_t* join, int socket,
                                 const struct sockaddr_storage* rank_0) {
  choir_tcp_comm_t* tcp = join->tcp;
  const size_t bytes = (size_t)tcp->base.size * sizeof(entry_t);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(tcp->base.allocator, bytes, "table of ranks", &memory));
  const choir_tcp_moved_t moved =
      choir_tcp_move_all(socket, memory, bytes, false, join->deadline);
  const entry_t* table = memory;
  for (int32_t r = 0; !moved && r < tcp->base.size; ++r) {
    tcp->base.peers[r].identity = table[r].card.identity;
    if (table[r].is_rank_0)
      tcp->links[r].address = *rank_0;
    else
      choir_tcp_read_address(table[r].address, &tcp->links[r].address);
    choir_tcp_set_port(&tcp->links[r].address, (uint16_t)table[r].card.port);
  }
  if (!moved) choose_rounds(tcp, table);
  choir_deallocate(tcp->base.allocator, memory, bytes);
  return moved ? lost_rank_0(join) : NULL;
}

// A name may have several addresses, of which rank 0 listens at some.
static choir_status_t try_rank_0(choir_tcp_join_t* join,
                                 const struct addrinfo* found,
                                 struct sockaddr_storage* out_address,
                                 int* out_socket) {
  for (; found && *out_socket < 0; found = found->ai_next) {
    copy_address(found, out_address);
    CHOIR_TRY(choir_tcp_connect_to(out_address, join->deadline, out_socket));
    if (*out_socket >= 0)
      CHOIR_TRY(choir_tcp_introduce(join, CHOIR_TCP_REGISTER, 0, join->deadline,
                                    out_socket, NULL));
  }
  return NULL;
}

// Until rank 0 listens.
static choir_status_t call_rank_0(choir_tcp_join_t* join,
                                  struct sockaddr_storage* out_address,
                                  int* out_socket) {
  struct addrinfo* found;
  CHOIR_TRY(choir_tcp_resolve(join->config->rendezvous, &found));
  choir_status_t status = NULL;
  while (!status && *out_socket < 0) {
    status = try_rank_0(join, found, out_address, out_socket);
    if (status || *out_socket >= 0) break;
    if (choir_clock_seconds() > join->deadline) {
      join->tcp->base.flags[0] = true;
      status = choir_status_annotate(tell_missing(join), __FILE__, __LINE__,
                                     "rendezvous");
    }
    poll(NULL, 0, CHOIR_TCP_RETRY_MILLISECONDS);
  }
  freeaddrinfo(found);
  return status;
}

static choir_status_t visit_rendezvous(choir_tcp_join_t* join) {
  struct sockaddr_storage address;
  int socket = -1;
  choir_status_t status = call_rank_0(join, &address, &socket);
  if (!status) {
    // Rank 0's own deadline is told in its reply.
    choir_tcp_reply_t reply;
    const choir_tcp_moved_t moved = choir_tcp_move_all(
        socket, &reply, sizeof(reply), false, join->deadline + 1);
    status = moved ? lost_rank_0(join) : choir_tcp_read_reply(&reply);
  }
  if (!status) status = take_table(join, socket, &address);
  choir_tcp_close_socket(&socket);
  return status;
}

// ---- The mesh ----

static choir_status_t call_lower(choir_tcp_join_t* join, int32_t rank,
                                 int32_t purpose, int* out_socket,
                                 choir_tcp_seal_t** out_seal) {
  const struct sockaddr_storage* address = &join->tcp->links[rank].address;
  char text[CHOIR_TCP_ADDRESS_TEXT_BYTES];
  CHOIR_TRY(choir_tcp_connect_to(address, join->deadline, out_socket));
  if (*out_socket >= 0)
    CHOIR_TRY(choir_tcp_introduce(join, purpose, rank, join->deadline,
                                  out_socket, out_seal));
  choir_tcp_reply_t reply;
  if (*out_socket >= 0 && choir_tcp_move_all(*out_socket, &reply, sizeof(reply),
                                             false, join->deadline))
    choir_tcp_close_socket(out_socket);
  if (*out_socket >= 0) return choir_tcp_read_reply(&reply);
  const choir_comm_identity_t* own = &join->own.identity;
  return CHOIR_ERROR(
      ABORTED,
      "rank %d (host %s) cannot reach rank %d (host %s) at %s: it "
      "ended, or the network does not let it through",
      own->rank, own->host, rank, join->tcp->base.peers[rank].identity.host,
      choir_tcp_print_address(address, text));
}

static choir_status_t note_called(choir_tcp_join_t* join,
                                  choir_tcp_caller_t* caller) {
  choir_tcp_comm_t* tcp = join->tcp;
  const int32_t rank = caller->hello.rank;
  const bool is_data = caller->hello.purpose == CHOIR_TCP_DATA;
  if (rank <= tcp->base.rank || rank >= tcp->base.size ||
      (!is_data && caller->hello.purpose != CHOIR_TCP_CONTROL)) {
    choir_tcp_drop_caller(caller);
    return NULL;
  }
  choir_tcp_link_t* link = &tcp->links[rank];
  int* place = is_data ? &link->data : &link->control;
  if (*place >= 0) {
    choir_tcp_drop_caller(caller);
    return NULL;
  }
  CHOIR_TRY(
      choir_tcp_open_seal(join, &caller->keys, caller->hello.nonce, false,
                          is_data ? &link->data_seal : &link->control_seal));
  choir_tcp_send_reply(caller->socket, NULL);
  *place = caller->socket;
  *caller = (choir_tcp_caller_t){.socket = -1};
  return NULL;
}

// Higher ranks call when they have called all that are below them.
static choir_status_t serve_higher(choir_tcp_join_t* join) {
  choir_comm_t* comm = &join->tcp->base;
  for (;;) {
    int32_t missing = 0;
    for (int32_t r = 0; r < comm->size; ++r) {
      const choir_tcp_link_t* link = &join->tcp->links[r];
      comm->flags[r] = r > comm->rank && (link->data < 0 || link->control < 0);
      missing += comm->flags[r];
    }
    if (missing == 0) return NULL;
    if (choir_clock_seconds() > join->deadline) return tell_missing(join);
    CHOIR_TRY(choir_tcp_serve_callers(join, note_called));
  }
}

static choir_status_t connect_mesh(choir_tcp_join_t* join) {
  for (int32_t r = 0; r < join->config->rank; ++r) {
    choir_tcp_link_t* link = &join->tcp->links[r];
    CHOIR_TRY(call_lower(join, r, CHOIR_TCP_CONTROL, &link->control,
                         &link->control_seal));
    CHOIR_TRY(
        call_lower(join, r, CHOIR_TCP_DATA, &link->data, &link->data_seal));
  }
  CHOIR_TRY(serve_higher(join));
  for (int32_t r = 0; r < join->config->size; ++r)
    if (r != join->config->rank)
      fcntl(join->tcp->links[r].data, F_SETFL, O_NONBLOCK);
  return NULL;
}

static void init_join(choir_tcp_join_t* join, choir_tcp_comm_t* tcp,
                      const choir_comm_config_t* config) {
  memset(join, 0, sizeof(*join));
  join->tcp = tcp;
  join->config = config;
  join->deadline = choir_clock_seconds() + config->deadline;
  join->listener = -1;
  for (int i = 0; i < CHOIR_TCP_MAX_CALLERS; ++i) join->callers[i].socket = -1;
  choir__comm_identify(config, &join->own.identity);
  join->own.encrypts = tcp->encrypts;
  tcp->base.peers[config->rank].identity = join->own.identity;
}

static choir_status_t join_mesh(choir_tcp_join_t* join, int listener) {
  join->listener = listener;
  choir_status_t status = connect_mesh(join);
  for (int i = 0; i < CHOIR_TCP_MAX_CALLERS; ++i)
    choir_tcp_drop_caller(&join->callers[i]);
  choir_tcp_close_socket(&join->listener);
  return status;
}

choir_status_t choir_tcp_meet(choir_tcp_comm_t* tcp,
                              const choir_comm_config_t* config) {
  choir_tcp_join_t join;
  int listener = -1;
  uint16_t port = 0;
  init_join(&join, tcp, config);
  CHOIR_TRY(choir_tcp_listen(&listener, &port));
  join.own.port = port;
  choir_status_t status =
      config->rank == 0 ? host_rendezvous(&join) : visit_rendezvous(&join);
  if (!status) return join_mesh(&join, listener);
  choir_tcp_close_socket(&listener);
  return status;
}

choir_status_t choir_tcp_meet_group(choir_tcp_comm_t* tcp,
                                    const choir_comm_config_t* config,
                                    int listener, const uint16_t* ports) {
  choir_tcp_join_t join;
  init_join(&join, tcp, config);
  for (int32_t r = 0; r < config->size; ++r)
    choir_tcp_set_port(&tcp->links[r].address, ports[r]);
  return join_mesh(&join, listener);
}
