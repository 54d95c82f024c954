// SPDX-License-Identifier: Apache-2.0
// Where a member listens: datagrams, and a socket at the same port where the
// ranks of a generation meet.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dist/backends/tcp/tcp_join_internal.h"
#include "dist/comm_internal.h"
#include "dist/elastic/membership_internal.h"
#include "dist/rendezvous_internal.h"

// A port that is free for one protocol may be taken for the other.
enum { PORTS_TRIED = 32 };

typedef struct sockaddr_storage address_t;

static socklen_t address_bytes(const address_t* address) {
  return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                        : sizeof(struct sockaddr_in);
}

// ---- Endpoints ----

static void endpoint_of(const address_t* address,
                        choir__endpoint_t* out_endpoint) {
  choir_tcp_write_address(address, out_endpoint->address);
  out_endpoint->port = choir_tcp_port_of(address);
}

static void address_of(const choir__endpoint_t* endpoint, bool is_6,
                       address_t* out_address) {
  choir_tcp_read_address(endpoint->address, out_address);
  if (is_6) {
    struct sockaddr_in6* six = (struct sockaddr_in6*)out_address;
    *six = (struct sockaddr_in6){.sin6_family = AF_INET6};
    memcpy(&six->sin6_addr, endpoint->address, sizeof(six->sin6_addr));
  }
  choir_tcp_set_port(out_address, (uint16_t)endpoint->port);
}

static bool is_loopback(const choir__endpoint_t* endpoint) {
  address_t address;
  address_of(endpoint, false, &address);
  return choir_tcp_is_loopback(&address);
}

bool choir__endpoint_equal(const choir__endpoint_t* a,
                           const choir__endpoint_t* b) {
  return a->port == b->port &&
         !memcmp(a->address, b->address, sizeof(a->address));
}

const char* choir__endpoint_print(const choir__endpoint_t* endpoint,
                                  char text[CHOIR__ENDPOINT_TEXT_BYTES]) {
  _Static_assert(CHOIR__ENDPOINT_TEXT_BYTES >= CHOIR_TCP_ADDRESS_TEXT_BYTES,
                 "room for any address");
  address_t address;
  address_of(endpoint, false, &address);
  return choir_tcp_print_address(&address, text);
}

bool choir__endpoint_parse(const char* text, choir__endpoint_t* out_endpoint) {
  struct addrinfo* found;
  choir_status_t status = choir_tcp_resolve(text, &found);
  const bool is_found = !status;
  choir_status_free(status);
  if (!is_found) return false;
  address_t address = {0};
  memcpy(&address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  endpoint_of(&address, out_endpoint);
  return true;
}

// ---- This process ----

// The address from which what goes to `there` comes.
static bool find_source(const choir__endpoint_t* there,
                        choir__endpoint_t* out_endpoint) {
  address_t address;
  address_of(there, false, &address);
  const int fd = socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  socklen_t bytes = address_bytes(&address);
  const bool is_found = !connect(fd, (const struct sockaddr*)&address, bytes) &&
                        !getsockname(fd, (struct sockaddr*)&address, &bytes);
  close(fd);
  if (is_found) endpoint_of(&address, out_endpoint);
  return is_found;
}

static uint64_t hash_host(const choir_comm_identity_t* identity) {
  char text[CHOIR_COMM_HOST_BYTES + CHOIR_COMM_BOOT_BYTES];
  snprintf(text, sizeof(text), "%s/%s", identity->host, identity->boot);
  return choir__comm_name_hash(text);
}

static void find_own_address(const choir_comm_t* comm,
                             choir__endpoint_t* out_endpoint) {
  static const choir__endpoint_t loopback = {
      .address = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
  choir__endpoint_t there;
  const bool has_hosts = comm->vtable->address &&
                         comm->vtable->address(comm, out_endpoint->address);
  if (has_hosts) return;
  const bool is_found = comm->rendezvous[0] &&
                        choir__endpoint_parse(comm->rendezvous, &there) &&
                        find_source(&there, out_endpoint);
  if (!is_found) *out_endpoint = loopback;
}

choir_status_t choir__member_identify(const choir_comm_t* comm,
                                      choir__member_t* out_member) {
  const char* backend = comm->vtable->name;
  if (comm->size > 1 && strcmp(backend, "shm") != 0 && !comm->vtable->address)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "elastic: ranks may be lost over comm shm and tcp; here "
                       "is comm %s",
                       backend);
  const choir_comm_config_t config = {.rank = comm->rank, .size = comm->size};
  choir_comm_identity_t identity;
  choir__comm_identify(&config, &identity);
  memset(out_member, 0, sizeof(*out_member));
  out_member->pid = identity.pid;
  out_member->host = hash_host(&identity);
  find_own_address(comm, &out_member->at);
  return NULL;
}

// ---- Sockets ----

static int bind_datagrams(const choir__endpoint_t* at, bool is_6) {
  const int no = 0;
  const int fd =
      socket(is_6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  choir__endpoint_t place = {.port = at->port};
  if (is_loopback(at)) memcpy(place.address, at->address, sizeof(at->address));
  address_t address = {.ss_family = AF_INET};
  if (is_6 || is_loopback(at))
    address_of(&place, is_6, &address);
  else
    choir_tcp_set_port(&address, (uint16_t)at->port);
  if (is_6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (!bind(fd, (const struct sockaddr*)&address, address_bytes(&address)))
    return fd;
  close(fd);
  return -1;
}

// At all interfaces where members of other hosts may come.
static choir_status_t open_once(choir__member_t* member,
                                choir__member_sockets_t* sockets) {
  uint16_t port = 0;
  if (is_loopback(&member->at))
    CHOIR_TRY(choir__rendezvous_open(&sockets->listener, &port));
  else
    CHOIR_TRY(choir_tcp_listen(&sockets->listener, &port));
  member->at.port = port;
  for (int family = 0; family < 2 && sockets->datagrams < 0; ++family) {
    sockets->is_6 = family == 0;
    sockets->datagrams = bind_datagrams(&member->at, sockets->is_6);
  }
  return NULL;
}

choir_status_t choir__member_open(choir__member_t* member,
                                  choir__member_sockets_t* out_sockets) {
  choir__member_sockets_t* sockets = out_sockets;
  *sockets = (choir__member_sockets_t){.datagrams = -1, .listener = -1};
  for (int i = 0; i < PORTS_TRIED && sockets->datagrams < 0; ++i) {
    choir__member_close(sockets);
    CHOIR_TRY(open_once(member, sockets));
  }
  if (sockets->datagrams >= 0) return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "elastic: no socket for datagrams: %s",
                     strerror(errno));
}

void choir__member_close(choir__member_sockets_t* sockets) {
  choir_tcp_close_socket(&sockets->datagrams);
  choir_tcp_close_socket(&sockets->listener);
}

void choir__member_send(const choir__member_sockets_t* sockets,
                        const choir__endpoint_t* to, const void* data,
                        size_t bytes) {
  address_t address;
  address_of(to, sockets->is_6, &address);
  const ssize_t sent =
      sendto(sockets->datagrams, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL,
             (const struct sockaddr*)&address, address_bytes(&address));
  (void)sent;
}

int64_t choir__member_receive(const choir__member_sockets_t* sockets,
                              void* data, size_t bytes,
                              choir__endpoint_t* out_from) {
  address_t address = {0};
  socklen_t length = sizeof(address);
  const ssize_t count =
      recvfrom(sockets->datagrams, data, bytes, MSG_DONTWAIT | MSG_TRUNC,
               (struct sockaddr*)&address, &length);
  if (count < 0 || (size_t)count > bytes) return -1;
  endpoint_of(&address, out_from);
  return count;
}
