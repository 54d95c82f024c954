// SPDX-License-Identifier: Apache-2.0
// The exchange of messages of many ranks, by all-gather in the way of Bruck et
// al. (1997): in step k each rank sends what it has of the first 2^k ranks from
// itself on to the rank 2^k below it, and hears as much from the one 2^k above.
// So a message comes to all in ceil(log2 n) steps, and a rank sends as many.
#include <string.h>

#include "dist/backends/tcp/tcp_internal.h"

// Messages of ranks, from the own one on, one behind the other: a frame, the
// words of the header that are others than before, data.
typedef struct choir_tcp_relay_s {
  size_t bytes;
  size_t ends[];  // [size], of each message; behind them the messages
} choir_tcp_relay_t;

static unsigned char* messages_of(choir_tcp_comm_t* tcp) {
  return (unsigned char*)&tcp->relay->ends[tcp->base.size];
}

static size_t most_bytes(const choir_comm_t* comm) {
  return sizeof(choir_tcp_frame_t) + sizeof(choir_comm_message_t) +
         comm->sizes.exchange;
}

choir_status_t choir_tcp_relay_open(choir_tcp_comm_t* tcp) {
  const choir_comm_t* comm = &tcp->base;
  const size_t bytes = sizeof(choir_tcp_relay_t) +
                       (size_t)comm->size * (sizeof(size_t) + most_bytes(comm));
  void* memory;
  CHOIR_TRY(
      choir_allocate(comm->allocator, bytes, "messages to pass on", &memory));
  tcp->relay = memory;
  tcp->relay->bytes = bytes;
  return NULL;
}

void choir_tcp_relay_close(choir_tcp_comm_t* tcp) {
  if (tcp->relay)
    choir_deallocate(tcp->base.allocator, tcp->relay, tcp->relay->bytes);
  tcp->relay = NULL;
}

static void put_own(choir_tcp_comm_t* tcp, const choir_tcp_frame_t* own) {
  unsigned char* at = messages_of(tcp);
  const size_t head = choir_tcp_header_bytes(own);
  const choir_comm_message_t* message =
      (const choir_comm_message_t*)(const void*)tcp->out_message;
  memcpy(at, own, sizeof(*own));
  memcpy(at + sizeof(*own), tcp->header, head);
  memcpy(at + sizeof(*own) + head, message->data, own->bytes - head);
  tcp->relay->ends[0] = sizeof(*own) + own->bytes;
}

// Finds the ends of messages [first, first + count) in what came. False: they
// are not what ranks send.
static bool find_ends(choir_tcp_comm_t* tcp, int32_t first, int32_t count,
                      size_t end) {
  const unsigned char* messages = messages_of(tcp);
  size_t at = tcp->relay->ends[first - 1];
  for (int32_t i = first; i < first + count; ++i) {
    choir_tcp_frame_t frame;
    if (end - at < sizeof(frame)) return false;
    memcpy(&frame, messages + at, sizeof(frame));
    at += sizeof(frame);
    const size_t head = choir_tcp_header_bytes(&frame);
    if (frame.channel != CHOIR_COMM_CHANNEL_EXCHANGE || frame.bytes < head ||
        frame.bytes - head > tcp->base.sizes.exchange || frame.bytes > end - at)
      return false;
    at += frame.bytes;
    tcp->relay->ends[i] = at;
  }
  return at == end;
}

// Message i, of rank `rank`, to where it is looked for.
static void take(choir_tcp_comm_t* tcp, int32_t i, int32_t rank) {
  const unsigned char* at = messages_of(tcp) + tcp->relay->ends[i - 1];
  choir_tcp_frame_t frame;
  uint64_t header[CHOIR_TCP_HEADER_WORDS];
  choir_comm_message_t* message =
      (choir_comm_message_t*)(void*)(tcp->in_messages +
                                     (size_t)rank * tcp->message_stride);
  memcpy(&frame, at, sizeof(frame));
  const size_t head = choir_tcp_header_bytes(&frame);
  memcpy(header, at + sizeof(frame), head);
  choir_tcp_unpack_header(frame.words, header, &tcp->links[rank].last_header,
                          &message->header);
  memcpy(message->data, at + sizeof(frame) + head, frame.bytes - head);
}

choir_status_t choir_tcp_relay_exchange(choir_tcp_comm_t* tcp,
                                        const choir_tcp_frame_t* own) {
  choir_comm_t* comm = &tcp->base;
  const int32_t size = comm->size;
  put_own(tcp, own);
  for (int32_t have = 1; have < size; have *= 2) {
    const int32_t count = have < size - have ? have : size - have;
    const int32_t above = (comm->rank + have) % size;
    const int32_t below = (comm->rank - have + size) % size;
    unsigned char* messages = messages_of(tcp);
    const size_t end = tcp->relay->ends[have - 1];
    choir_tcp_frame_t frame = {
        .channel = CHOIR_TCP_CHANNEL_RELAY,
        .bytes = (uint32_t)((size_t)count * most_bytes(comm))};
    CHOIR_TRY(choir_tcp_post(comm, above, frame, messages + end, true));
    frame.bytes = (uint32_t)tcp->relay->ends[count - 1];
    CHOIR_TRY(choir_tcp_post(comm, below, frame, messages, false));
    CHOIR_TRY(comm->vtable->wait(comm));
    if (!find_ends(tcp, have, count, end + tcp->links[above].frame.bytes))
      return choir__comm_break_by_message(comm, above);
  }
  for (int32_t i = 1; i < size; ++i) take(tcp, i, (comm->rank + i) % size);
  return NULL;
}
