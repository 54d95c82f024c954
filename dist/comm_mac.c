// SPDX-License-Identifier: Apache-2.0
#include "dist/comm_mac_internal.h"

#include <sodium.h>
#include <string.h>

enum { KEY_BYTES = (CHOIR_COMM_ID_BYTES - 1) / 2, PURPOSE_BYTES = 16 };
_Static_assert(KEY_BYTES >= crypto_generichash_KEYBYTES_MIN,
               "an id is long enough for a key");

choir_status_t choir__comm_mac_make(const choir_comm_id_t* id,
                                    const char* purpose, const void* message,
                                    size_t bytes, choir__comm_mac_t* out_mac) {
  unsigned char key[KEY_BYTES];
  size_t key_bytes = 0;
  if (sodium_init() < 0)
    return CHOIR_ERROR(UNAVAILABLE, "libsodium does not start");
  if (sodium_hex2bin(key, sizeof(key), id->text, CHOIR_COMM_ID_BYTES - 1, NULL,
                     &key_bytes, NULL) ||
      key_bytes != sizeof(key))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "the id of a communicator is 32 hexadecimal digits");
  // Of a fixed length, so that no purpose and message look like another pair.
  char head[PURPOSE_BYTES] = {0};
  memcpy(head, purpose, strnlen(purpose, sizeof(head) - 1));
  crypto_generichash_state state;
  crypto_generichash_init(&state, key, sizeof(key), sizeof(out_mac->bytes));
  crypto_generichash_update(&state, (const unsigned char*)head, sizeof(head));
  crypto_generichash_update(&state, message, bytes);
  crypto_generichash_final(&state, out_mac->bytes, sizeof(out_mac->bytes));
  sodium_memzero(key, sizeof(key));
  sodium_memzero(&state, sizeof(state));
  return NULL;
}

bool choir__comm_mac_equal(const choir__comm_mac_t* a,
                           const choir__comm_mac_t* b) {
  return sodium_memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}
