// SPDX-License-Identifier: Apache-2.0
// What is posted to a peer and comes from it: frames on its data connection,
// and headers by what differs from the one before. Nothing here blocks.
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "core/clock.h"
#include "dist/backends/tcp/tcp_internal.h"

static choir_tcp_request_t* head_of(choir_tcp_queue_t* queue) {
  return queue->count ? &queue->requests[queue->first] : NULL;
}

static void pop(choir_tcp_queue_t* queue) {
  queue->first = (queue->first + 1) % CHOIR_TCP_POSTED;
  --queue->count;
}

static void note_lost(choir_tcp_link_t* link) {
  if (!link->is_lost) link->lost_at = choir_clock_seconds();
  link->is_lost = true;
}

// Of send and receive: what came of it, 0 where it would block.
static size_t moved_bytes(choir_tcp_link_t* link, ssize_t n) {
  if (n > 0) return (size_t)n;
  if (n < 0 && errno == EBADMSG) atomic_store(&link->is_forged, true);
  if (n == 0 || (errno != EAGAIN && errno != EINTR)) note_lost(link);
  return 0;
}

size_t choir_tcp_header_bytes(const choir_tcp_frame_t* frame) {
  return (size_t)__builtin_popcount(frame->words) * sizeof(uint64_t);
}

uint32_t choir_tcp_pack_header(const choir_comm_header_t* header,
                               choir_comm_header_t* last, uint64_t* packed) {
  uint32_t which = 0;
  ++last->sequence;
  for (int i = 0; i < CHOIR_TCP_HEADER_WORDS; ++i) {
    const size_t at = (size_t)i * sizeof(*packed);
    if (!memcmp((const char*)header + at, (const char*)last + at,
                sizeof(*packed)))
      continue;
    memcpy(packed++, (const char*)header + at, sizeof(*packed));
    which |= 1u << i;
  }
  memcpy(last, header, sizeof(*last));
  return which;
}

void choir_tcp_unpack_header(uint32_t which, const uint64_t* packed,
                             choir_comm_header_t* last,
                             choir_comm_header_t* header) {
  ++last->sequence;
  for (int i = 0; i < CHOIR_TCP_HEADER_WORDS; ++i)
    if (which >> i & 1)
      memcpy((char*)last + (size_t)i * sizeof(*packed), packed++,
             sizeof(*packed));
  memcpy(header, last, sizeof(*header));
}

// Where the frame and what follows it lie, without the first `done` bytes.
static struct msghdr message_of(const choir_tcp_frame_t* frame,
                                uint64_t* header, void* data, size_t done,
                                struct iovec parts[3]) {
  const bool is_exchange = frame->channel == CHOIR_COMM_CHANNEL_EXCHANGE;
  const size_t head = choir_tcp_header_bytes(frame);
  char* rest = (char*)data + (is_exchange ? sizeof(choir_comm_message_t) : 0);
  const struct iovec all[3] = {
      {.iov_base = (void*)frame, .iov_len = sizeof(*frame)},
      {.iov_base = header, .iov_len = head},
      {.iov_base = rest, .iov_len = frame->bytes - head}};
  size_t count = 0;
  for (int i = 0; i < 3; ++i) {
    const size_t skipped = done < all[i].iov_len ? done : all[i].iov_len;
    done -= skipped;
    if (skipped < all[i].iov_len)
      parts[count++] =
          (struct iovec){.iov_base = (char*)all[i].iov_base + skipped,
                         .iov_len = all[i].iov_len - skipped};
  }
  return (struct msghdr){.msg_iov = parts, .msg_iovlen = count};
}

bool choir_tcp_send_some(choir_tcp_comm_t* tcp, choir_tcp_link_t* link) {
  bool moved = false;
  choir_tcp_request_t* request;
  while (!link->is_lost && (request = head_of(&link->out))) {
    const size_t head = sizeof(choir_tcp_frame_t);
    struct iovec parts[3];
    const struct msghdr message = message_of(
        &request->frame, tcp->header, request->data, request->done, parts);
    const size_t n = moved_bytes(
        link, choir_tcp_send(link->data, link->data_seal, &message));
    if (!n) break;
    moved = true;
    request->done += n;
    if (request->done < head + request->frame.bytes) break;
    pop(&link->out);
  }
  return moved;
}

// The frame that is coming is what was posted first; false: it is something
// else, which waits until this rank comes to it.
static bool fits(const choir_tcp_link_t* link,
                 const choir_tcp_request_t* request) {
  const choir_tcp_frame_t* came = &link->frame;
  if (came->channel != request->frame.channel) return false;
  if (came->channel == CHOIR_TCP_CHANNEL_RELAY)
    return came->bytes <= request->frame.bytes && came->words == 0;
  if (came->channel != CHOIR_COMM_CHANNEL_EXCHANGE)
    return came->bytes == request->frame.bytes && came->words == 0;
  const size_t head = choir_tcp_header_bytes(came);
  return came->words >> CHOIR_TCP_HEADER_WORDS == 0 && came->bytes >= head &&
         came->bytes - head <=
             request->frame.bytes - sizeof(choir_comm_message_t);
}

bool choir_tcp_receives(const choir_tcp_link_t* link) {
  if (!link->in.count) return false;
  return link->frame_bytes < sizeof(link->frame) ||
         fits(link, &link->in.requests[link->in.first]);
}

bool choir_tcp_receive_some(choir_tcp_link_t* link) {
  bool moved = false;
  choir_tcp_request_t* request;
  while (!link->is_lost && (request = head_of(&link->in))) {
    if (link->frame_bytes < sizeof(link->frame)) {
      struct iovec part = {.iov_base = (char*)&link->frame + link->frame_bytes,
                           .iov_len = sizeof(link->frame) - link->frame_bytes};
      struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
      const size_t n = moved_bytes(
          link, choir_tcp_receive(link->data, link->data_seal, &message));
      if (!n) break;
      moved = true;
      link->frame_bytes += n;
      continue;
    }
    if (!fits(link, request)) break;
    if (request->done < link->frame.bytes) {
      struct iovec parts[3];
      struct msghdr message =
          message_of(&link->frame, link->header, request->data,
                     sizeof(link->frame) + request->done, parts);
      const size_t n = moved_bytes(
          link, choir_tcp_receive(link->data, link->data_seal, &message));
      if (!n) break;
      moved = true;
      request->done += n;
    }
    if (request->done < link->frame.bytes) continue;
    if (link->frame.channel == CHOIR_COMM_CHANNEL_EXCHANGE)
      choir_tcp_unpack_header(link->frame.words, link->header,
                              &link->last_header, request->data);
    link->frame_bytes = 0;
    pop(&link->in);
  }
  return moved;
}

choir_status_t choir_tcp_post(choir_comm_t* comm, int32_t peer,
                              choir_tcp_frame_t frame, void* data,
                              bool is_receive) {
  choir_tcp_comm_t* tcp = (choir_tcp_comm_t*)comm;
  choir_tcp_link_t* link = &tcp->links[peer];
  choir_tcp_queue_t* queue = is_receive ? &link->in : &link->out;
  if (queue->count == CHOIR_TCP_POSTED)
    return CHOIR_ERROR(INTERNAL, "comm tcp: more than %d posted to %s",
                       CHOIR_TCP_POSTED, comm->peers[peer].text);
  queue->requests[(queue->first + queue->count++) % CHOIR_TCP_POSTED] =
      (choir_tcp_request_t){.frame = frame, .data = data};
  if (!is_receive) choir_tcp_send_some(tcp, link);
  return NULL;
}
