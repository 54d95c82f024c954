// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMM_PROOF_INTERNAL_H_
#define CHOIR_DIST_COMM_PROOF_INTERNAL_H_

#include "dist/comm.h"

// What only those can compute who know the id of a communicator: a keyed
// one-way function (BLAKE2b, by libsodium) of a purpose and a message. Who sees
// a proof learns nothing of the id, nor of the proof of another message.

typedef struct choir__comm_proof_s {
  unsigned char bytes[32];
} choir__comm_proof_t;

// `id` is valid (32 hexadecimal digits). `purpose`, of at most 15 bytes, keeps
// the uses of one id apart.
choir_status_t choir__comm_prove(const choir_comm_id_t* id, const char* purpose,
                                 const void* message, size_t bytes,
                                 choir__comm_proof_t* out_proof)
    CHOIR_NODISCARD;

// In a time that does not tell where they differ.
bool choir__comm_proof_equal(const choir__comm_proof_t* a,
                             const choir__comm_proof_t* b);

#endif  // CHOIR_DIST_COMM_PROOF_INTERNAL_H_
