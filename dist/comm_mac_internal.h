// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMM_MAC_INTERNAL_H_
#define CHOIR_DIST_COMM_MAC_INTERNAL_H_

#include "dist/comm.h"

// Message authentication codes with the id of a communicator as the key (keyed
// BLAKE2b, by libsodium). Who sees a code learns nothing of the id, nor of the
// code of another message.

typedef struct choir__comm_mac_s {
  unsigned char bytes[32];
} choir__comm_mac_t;

// `id` is valid (32 hexadecimal digits). `purpose`, of at most 15 bytes, keeps
// the uses of one id apart.
choir_status_t choir__comm_mac_make(const choir_comm_id_t* id,
                                    const char* purpose, const void* message,
                                    size_t bytes, choir__comm_mac_t* out_mac)
    CHOIR_NODISCARD;

// In a time that does not tell where they differ.
bool choir__comm_mac_equal(const choir__comm_mac_t* a,
                           const choir__comm_mac_t* b);

#endif  // CHOIR_DIST_COMM_MAC_INTERNAL_H_
