// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_RENDEZVOUS_INTERNAL_H_
#define CHOIR_DIST_RENDEZVOUS_INTERNAL_H_

#include "core/status.h"

// For a launcher: where the ranks that it starts on this host meet over tcp. A
// socket that listens on the loopback interface, for rank 0 to inherit
// (CHOIR_RENDEZVOUS_FD), so that no other process can take the port before.
// The caller closes it. backends/tcp/tcp_join.c.
choir_status_t choir__rendezvous_open(int* out_fd, uint16_t* out_port);

#endif  // CHOIR_DIST_RENDEZVOUS_INTERNAL_H_
