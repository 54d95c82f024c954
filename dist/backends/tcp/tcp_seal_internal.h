// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_TCP_TCP_SEAL_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_TCP_TCP_SEAL_INTERNAL_H_

#include <sys/socket.h>

#include "core/allocator.h"
#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// What goes over a connection, encrypted or not. One thread at a time for each
// direction.

typedef struct choir_tcp_seal_s choir_tcp_seal_t;

// Of one side of one connection: which the other side sees, and which nobody.
#define CHOIR_TCP_KEY_BYTES 32
typedef struct choir_tcp_keys_s {
  unsigned char shown[CHOIR_TCP_KEY_BYTES];
  unsigned char hidden[CHOIR_TCP_KEY_BYTES];
} choir_tcp_keys_t;
choir_status_t choir_tcp_make_keys(choir_tcp_keys_t* out_keys);
// `theirs` is what the other side has shown, and has proven to be its own.
// Clears what is hidden of `own`.
choir_status_t choir_tcp_seal_open(choir_allocator_t allocator,
                                   choir_tcp_keys_t* own,
                                   const unsigned char* theirs, bool is_caller,
                                   choir_tcp_seal_t** out_seal);
void choir_tcp_seal_close(choir_allocator_t allocator, choir_tcp_seal_t** seal);
// As sendmsg and recvmsg of a socket that does not block, without a signal. A
// message of which not all could go has to be given again, without what went,
// until it has gone; errno is EBADMSG where what came was changed on the way.
ssize_t choir_tcp_send(int socket, choir_tcp_seal_t* seal,
                       const struct msghdr* message);
ssize_t choir_tcp_receive(int socket, choir_tcp_seal_t* seal,
                          struct msghdr* message);
// A record has not gone whole: the next call sends the rest of it, whatever it
// is given, and returns how many bytes that was in clear.
bool choir_tcp_is_sending(const choir_tcp_seal_t* seal);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_BACKENDS_TCP_TCP_SEAL_INTERNAL_H_
