// SPDX-License-Identifier: Apache-2.0
// Sockets that listen and call, addresses, and bytes with a deadline.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/backends/tcp/tcp_join_internal.h"

// ---- Sockets ----

choir_status_t choir_tcp_socket_error(const char* what) {
  if (errno == EMFILE)
    return CHOIR_ERROR(UNAVAILABLE,
                       "too few file descriptors: each rank needs two per "
                       "peer; raise the limit (ulimit -n)");
  return CHOIR_ERROR(UNAVAILABLE, "%s: %s", what, strerror(errno));
}

void choir_tcp_close_socket(int* socket) {
  if (*socket >= 0) close(*socket);
  *socket = -1;
}

void choir_tcp_set_options(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

// All interfaces; where the system has IPv6, both families.
choir_status_t choir_tcp_listen_at(uint16_t port, int* out_listener) {
  const int yes = 1, no = 0;
  *out_listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool is_6 = *out_listener >= 0;
  if (!is_6) *out_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*out_listener < 0) return choir_tcp_socket_error("socket");
  const struct sockaddr_in6 any_6 = {.sin6_family = AF_INET6,
                                     .sin6_port = htons(port)};
  const struct sockaddr_in any_4 = {.sin_family = AF_INET,
                                    .sin_port = htons(port)};
  setsockopt(*out_listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (is_6)
    setsockopt(*out_listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  const int failed =
      is_6 ? bind(*out_listener, (const struct sockaddr*)&any_6, sizeof(any_6))
           : bind(*out_listener, (const struct sockaddr*)&any_4, sizeof(any_4));
  if (!failed && !listen(*out_listener, SOMAXCONN) &&
      !fcntl(*out_listener, F_SETFL, O_NONBLOCK))
    return NULL;
  choir_status_t status = CHOIR_ERROR(
      UNAVAILABLE, "cannot listen at port %u: %s", port, strerror(errno));
  choir_tcp_close_socket(out_listener);
  return status;
}

uint16_t choir_tcp_port_of(const struct sockaddr_storage* address) {
  const size_t at = address->ss_family == AF_INET6
                        ? offsetof(struct sockaddr_in6, sin6_port)
                        : offsetof(struct sockaddr_in, sin_port);
  uint16_t port;
  memcpy(&port, (const char*)address + at, sizeof(port));
  return ntohs(port);
}

void choir_tcp_set_port(struct sockaddr_storage* address, uint16_t port) {
  if (address->ss_family == AF_INET6)
    ((struct sockaddr_in6*)address)->sin6_port = htons(port);
  else
    ((struct sockaddr_in*)address)->sin_port = htons(port);
}

static choir_status_t listen_anywhere(int* out_listener) {
  // $CHOIR_PORTS: FIRST-LAST, the TCP ports at which ranks may listen for each
  // other, as where a firewall lets no others pass. Not set: any free port.
  const char* ports = getenv("CHOIR_PORTS");
  if (!ports || !ports[0]) return choir_tcp_listen_at(0, out_listener);
  int first, last;
  char more;
  if (sscanf(ports, "%5d-%5d%c", &first, &last, &more) != 2 || first < 1 ||
      first > last || last > UINT16_MAX)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "CHOIR_PORTS is '%s'; it must be FIRST-LAST, ports of 1 "
                       ".. 65535",
                       ports);
  for (int port = first; port <= last; ++port) {
    choir_status_t status = choir_tcp_listen_at((uint16_t)port, out_listener);
    if (!status) return NULL;
    choir_status_free(status);
  }
  return CHOIR_ERROR(UNAVAILABLE,
                     "no port of %s (CHOIR_PORTS) is free for this rank to "
                     "listen at",
                     ports);
}

choir_status_t choir_tcp_listen(int* out_listener, uint16_t* out_port) {
  CHOIR_TRY(listen_anywhere(out_listener));
  struct sockaddr_storage address = {0};
  socklen_t bytes = sizeof(address);
  if (getsockname(*out_listener, (struct sockaddr*)&address, &bytes)) {
    choir_status_t status = choir_tcp_socket_error("getsockname");
    choir_tcp_close_socket(out_listener);
    return status;
  }
  *out_port = choir_tcp_port_of(&address);
  return NULL;
}

// A line of the table and an address.
void choir_tcp_write_address(const struct sockaddr_storage* address,
                             unsigned char out[16]) {
  if (address->ss_family == AF_INET6) {
    memcpy(out, &((const struct sockaddr_in6*)address)->sin6_addr, 16);
    return;
  }
  memset(out, 0, 10);
  memset(out + 10, 0xff, 2);
  memcpy(out + 12, &((const struct sockaddr_in*)address)->sin_addr, 4);
}

void choir_tcp_read_address(const unsigned char in[16],
                            struct sockaddr_storage* out_address) {
  static const unsigned char mapped[12] = {0, 0, 0, 0, 0,    0,
                                           0, 0, 0, 0, 0xff, 0xff};
  memset(out_address, 0, sizeof(*out_address));
  if (!memcmp(in, mapped, sizeof(mapped))) {
    struct sockaddr_in* four = (struct sockaddr_in*)out_address;
    four->sin_family = AF_INET;
    memcpy(&four->sin_addr, in + 12, 4);
    return;
  }
  struct sockaddr_in6* six = (struct sockaddr_in6*)out_address;
  six->sin6_family = AF_INET6;
  memcpy(&six->sin6_addr, in, 16);
}

bool choir_tcp_is_loopback(const struct sockaddr_storage* address) {
  unsigned char bytes[16] = {0};
  choir_tcp_write_address(address, bytes);
  struct sockaddr_storage plain;
  choir_tcp_read_address(bytes, &plain);
  if (plain.ss_family == AF_INET)
    return ntohl(((const struct sockaddr_in*)&plain)->sin_addr.s_addr) >> 24 ==
           127;
  return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6*)&plain)->sin6_addr);
}

const char* choir_tcp_print_address(const struct sockaddr_storage* address,
                                    char text[CHOIR_TCP_ADDRESS_TEXT_BYTES]) {
  char host[INET6_ADDRSTRLEN] = "?";
  const bool is_6 = address->ss_family == AF_INET6;
  inet_ntop(address->ss_family,
            is_6
                ? (const void*)&((const struct sockaddr_in6*)address)->sin6_addr
                : (const void*)&((const struct sockaddr_in*)address)->sin_addr,
            host, sizeof(host));
  snprintf(text, CHOIR_TCP_ADDRESS_TEXT_BYTES, is_6 ? "[%s]:%u" : "%s:%u", host,
           choir_tcp_port_of(address));
  return text;
}

// ---- Bytes with a deadline ----

// 1: ready; 0: not before the deadline.
static int wait_ready(int socket, short events, double deadline) {
  for (;;) {
    const double left = deadline - choir_clock_seconds();
    if (left <= 0) return 0;
    struct pollfd ready = {.fd = socket, .events = events};
    const int n = poll(&ready, 1, left > 1 ? 1000 : (int)(left * 1e3) + 1);
    if (n > 0) return 1;
    if (n < 0 && errno != EINTR) return 0;
  }
}

choir_tcp_moved_t choir_tcp_move_all(int socket, void* data, size_t bytes,
                                     bool is_send, double deadline) {
  for (size_t done = 0; done < bytes;) {
    char* at = (char*)data + done;
    const ssize_t n = is_send ? send(socket, at, bytes - done, MSG_NOSIGNAL)
                              : recv(socket, at, bytes - done, 0);
    if (n > 0) {
      done += (size_t)n;
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return CHOIR_TCP_CLOSED;
    if (!wait_ready(socket, is_send ? POLLOUT : POLLIN, deadline))
      return CHOIR_TCP_LATE;
  }
  return CHOIR_TCP_MOVED;
}

// ---- Calling ----

// *out_socket: -1 where nobody listens.
choir_status_t choir_tcp_connect_to(const struct sockaddr_storage* address,
                                    double deadline, int* out_socket) {
  *out_socket =
      socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*out_socket < 0) return choir_tcp_socket_error("socket");
  const socklen_t bytes = address->ss_family == AF_INET6
                              ? sizeof(struct sockaddr_in6)
                              : sizeof(struct sockaddr_in);
  int error = connect(*out_socket, (const struct sockaddr*)address, bytes);
  if (error && errno == EINPROGRESS) {
    socklen_t length = sizeof(error);
    error = !wait_ready(*out_socket, POLLOUT, deadline) ||
            getsockopt(*out_socket, SOL_SOCKET, SO_ERROR, &error, &length) ||
            error;
  }
  if (error)
    choir_tcp_close_socket(out_socket);
  else
    choir_tcp_set_options(*out_socket);
  return NULL;
}
