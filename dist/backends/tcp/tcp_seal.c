// SPDX-License-Identifier: Apache-2.0
// Bytes on a connection: as they are, or in records that are encrypted and
// authenticated (ChaCha20-Poly1305, RFC 8439; keys by X25519 and BLAKE2b, by
// libsodium):
//
//   4 bytes: how many follow in clear, 1 .. RECORD_BYTES, least first
//   so many bytes, encrypted
//   16 bytes: the code of both
//
// A record's nonce is its number, so that none can be left out, sent again or
// taken for another. Keys are of one connection and one direction.
#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "dist/backends/tcp/tcp_seal_internal.h"

enum {
  RECORD_BYTES = 16 << 10,
  LENGTH_BYTES = 4,
  CODE_BYTES = crypto_aead_chacha20poly1305_ietf_ABYTES,
  NONCE_BYTES = crypto_aead_chacha20poly1305_ietf_NPUBBYTES,
};
_Static_assert(CHOIR_TCP_KEY_BYTES == crypto_kx_PUBLICKEYBYTES &&
                   CHOIR_TCP_KEY_BYTES == crypto_kx_SECRETKEYBYTES &&
                   CHOIR_TCP_KEY_BYTES == crypto_kx_SESSIONKEYBYTES &&
                   CHOIR_TCP_KEY_BYTES ==
                       crypto_aead_chacha20poly1305_ietf_KEYBYTES,
               "keys are of one length");

typedef struct record_s {
  unsigned char key[CHOIR_TCP_KEY_BYTES];
  uint64_t number;
  size_t clear;  // bytes in clear; 0: there is no record
  size_t done;   // sent, or taken
  size_t came;   // of a record that is on its way here
  unsigned char bytes[LENGTH_BYTES + RECORD_BYTES + CODE_BYTES];
} record_t;

struct choir_tcp_seal_s {
  record_t out;
  record_t in;
};

choir_status_t choir_tcp_make_keys(choir_tcp_keys_t* out_keys) {
  if (sodium_init() < 0)
    return CHOIR_ERROR(UNAVAILABLE, "libsodium does not start");
  crypto_kx_keypair(out_keys->shown, out_keys->hidden);
  return NULL;
}

choir_status_t choir_tcp_seal_open(choir_allocator_t allocator,
                                   choir_tcp_keys_t* own,
                                   const unsigned char* theirs, bool is_caller,
                                   choir_tcp_seal_t** out_seal) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir_tcp_seal_t),
                           "an encrypted connection", &memory));
  choir_tcp_seal_t* seal = memory;
  memset(seal, 0, sizeof(*seal));
  *out_seal = seal;
  const int failed =
      is_caller
          ? crypto_kx_client_session_keys(seal->in.key, seal->out.key,
                                          own->shown, own->hidden, theirs)
          : crypto_kx_server_session_keys(seal->in.key, seal->out.key,
                                          own->shown, own->hidden, theirs);
  sodium_memzero(own->hidden, sizeof(own->hidden));
  if (!failed) return NULL;
  choir_tcp_seal_close(allocator, out_seal);
  return CHOIR_ERROR(UNAVAILABLE, "the other side's key is none");
}

void choir_tcp_seal_close(choir_allocator_t allocator,
                          choir_tcp_seal_t** seal) {
  if (!*seal) return;
  sodium_memzero(*seal, sizeof(**seal));
  choir_deallocate(allocator, *seal, sizeof(**seal));
  *seal = NULL;
}

static void fill_nonce(const record_t* record,
                       unsigned char nonce[NONCE_BYTES]) {
  memset(nonce, 0, NONCE_BYTES);
  for (size_t i = 0; i < sizeof(record->number); ++i)
    nonce[i] = (unsigned char)(record->number >> 8 * i);
}

static size_t record_bytes(size_t clear) {
  return LENGTH_BYTES + clear + CODE_BYTES;
}

// Copies between `data` and the message's parts; returns how many bytes.
static size_t copy(const struct msghdr* message, unsigned char* data,
                   size_t most, bool to_data) {
  size_t done = 0;
  for (size_t i = 0; i < (size_t)message->msg_iovlen && done < most; ++i) {
    const struct iovec* part = &message->msg_iov[i];
    const size_t n = part->iov_len < most - done ? part->iov_len : most - done;
    if (n)
      memcpy(to_data ? data + done : part->iov_base,
             to_data ? part->iov_base : data + done, n);
    done += n;
  }
  return done;
}

// ---- Sending ----

static void seal_record(record_t* record, size_t clear) {
  unsigned char nonce[NONCE_BYTES];
  unsigned char* data = record->bytes + LENGTH_BYTES;
  for (int i = 0; i < LENGTH_BYTES; ++i)
    record->bytes[i] = (unsigned char)(clear >> 8 * i);
  fill_nonce(record, nonce);
  crypto_aead_chacha20poly1305_ietf_encrypt(data, NULL, data, clear,
                                            record->bytes, LENGTH_BYTES, NULL,
                                            nonce, record->key);
  ++record->number;
  record->clear = clear;
  record->done = 0;
}

bool choir_tcp_is_sending(const choir_tcp_seal_t* seal) {
  return seal && seal->out.clear > 0;
}

ssize_t choir_tcp_send(int socket, choir_tcp_seal_t* seal,
                       const struct msghdr* message) {
  const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
  if (!seal) return sendmsg(socket, message, flags);
  record_t* record = &seal->out;
  if (!record->clear)
    seal_record(record, copy(message, record->bytes + LENGTH_BYTES,
                             RECORD_BYTES, true));
  const size_t total = record_bytes(record->clear);
  while (record->done < total) {
    const ssize_t n =
        send(socket, record->bytes + record->done, total - record->done, flags);
    if (n <= 0) return n;
    record->done += (size_t)n;
  }
  const ssize_t clear = (ssize_t)record->clear;
  record->clear = 0;
  return clear;
}

// ---- Receiving ----

// A whole record has come. False: it is none that the other side sealed.
static bool open_record(record_t* record, size_t clear) {
  unsigned char nonce[NONCE_BYTES];
  unsigned char* data = record->bytes + LENGTH_BYTES;
  fill_nonce(record, nonce);
  if (crypto_aead_chacha20poly1305_ietf_decrypt(
          data, NULL, NULL, data, clear + CODE_BYTES, record->bytes,
          LENGTH_BYTES, nonce, record->key))
    return false;
  ++record->number;
  record->clear = clear;
  record->done = 0;
  record->came = 0;
  return true;
}

static size_t clear_bytes(const record_t* record) {
  size_t clear = 0;
  for (int i = 0; i < LENGTH_BYTES; ++i)
    clear |= (size_t)record->bytes[i] << 8 * i;
  return clear;
}

static ssize_t fail(void) {
  errno = EBADMSG;
  return -1;
}

ssize_t choir_tcp_receive(int socket, choir_tcp_seal_t* seal,
                          struct msghdr* message) {
  if (!seal) return recvmsg(socket, message, MSG_DONTWAIT);
  record_t* record = &seal->in;
  while (!record->clear) {
    const bool has_length = record->came >= LENGTH_BYTES;
    const size_t clear = has_length ? clear_bytes(record) : 0;
    if (has_length && (clear < 1 || clear > RECORD_BYTES)) return fail();
    const size_t wanted = has_length ? record_bytes(clear) : LENGTH_BYTES;
    const ssize_t n = recv(socket, record->bytes + record->came,
                           wanted - record->came, MSG_DONTWAIT);
    if (n <= 0) return n;
    record->came += (size_t)n;
    if (has_length && record->came == wanted && !open_record(record, clear))
      return fail();
  }
  const size_t n = copy(message, record->bytes + LENGTH_BYTES + record->done,
                        record->clear - record->done, false);
  record->done += n;
  if (record->done == record->clear) record->clear = 0;
  return (ssize_t)n;
}
