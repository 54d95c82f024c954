// SPDX-License-Identifier: Apache-2.0
// What stands ahead of the data in an operation's first message: factors,
// tensors' counts, counts of which each rank knows only its own, or the ranks
// of a group.
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

// Ahead of the first message's data, then the list. In an operation of this
// kind src is the list, dst the terms.
typedef struct group_words_s {
  choir_comm_id_t id;
  char zeros_[7];
} group_words_t;
_Static_assert(sizeof(group_words_t) % 8 == 0, "words");

static size_t group_bytes(int64_t count) {
  return (sizeof(group_words_t) + (size_t)count * sizeof(int32_t) + 7) / 8 * 8;
}

static void group_fill(const operation_t* operation, unsigned char* data) {
  const choir_collective_t* c = &operation->collective;
  const choir__comm_group_terms_t* terms = c->dst;
  group_words_t words = {.id = terms->id};
  memcpy(data, &words, sizeof(words));
  memcpy(data + sizeof(words), c->src, (size_t)c->count * sizeof(int32_t));
}

const int32_t* choir__comm_group_ranks(const choir_comm_message_t* message) {
  return (const int32_t*)(const void*)(message->data + sizeof(group_words_t));
}

void choir__comm_group_agree(const choir_comm_t* comm,
                             const operation_t* operation) {
  choir__comm_group_terms_t* terms = operation->collective.dst;
  const int32_t* ranks = operation->collective.src;
  group_words_t words;
  memcpy(&words, comm->messages[ranks[0]]->data, sizeof(words));
  terms->id = words.id;
  terms->context = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->headers[r].src_place > terms->context)
      terms->context = comm->headers[r].src_place;
}

#define FACTOR_BYTES (2 * sizeof(double))

const double* choir__comm_words_factors(const choir_comm_message_t* message) {
  return (const double*)(const void*)message->data;
}

const int64_t* choir__comm_words_tensors(const choir_comm_message_t* message,
                                         uint8_t words) {
  bool is_scaled = words & CHOIR_COMM_WORDS_FACTORS;
  return (const int64_t*)(const void*)(message->data +
                                       (is_scaled ? FACTOR_BYTES : 0));
}

// Room in dst, then what the rank gives: one number, or one for each rank.
enum { WORD_CAPACITY, WORD_GIVEN };

int64_t choir__comm_words_capacity(const choir_comm_message_t* message) {
  return ((const int64_t*)(const void*)message->data)[WORD_CAPACITY];
}

const int64_t* choir__comm_words_given(const choir_comm_message_t* message) {
  return (const int64_t*)(const void*)message->data + WORD_GIVEN;
}

size_t choir__comm_meta_bytes(const choir_comm_t* comm,
                              const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  size_t bytes = 0;
  if (operation->kind == CHOIR_COMM_KIND_GROUP) return group_bytes(c->count);
  if (traits->reduces && c->scales) bytes += FACTOR_BYTES;
  if (c->tensors && c->tensor_count > 0)
    bytes += (1 + (size_t)c->tensor_count) * sizeof(int64_t);
  if (!traits->has_own_counts) return bytes;
  size_t given = traits->has_splits ? (size_t)comm->size : 1;
  return (WORD_GIVEN + given) * sizeof(int64_t);
}

void choir__comm_meta_fill(const choir_comm_t* comm,
                           const operation_t* operation, unsigned char* data) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (!operation->meta_bytes) return;
  if (operation->kind == CHOIR_COMM_KIND_GROUP) {
    group_fill(operation, data);
    return;
  }
  if (traits->reduces && c->scales) {
    const double factors[2] = {c->prescale, c->postscale};
    memcpy(data, factors, FACTOR_BYTES);
    data += FACTOR_BYTES;
  }
  int64_t* words = (int64_t*)(void*)data;
  if (c->tensors) {
    words[0] = c->tensor_count;
    for (int32_t i = 0; i < c->tensor_count; ++i)
      words[1 + i] = c->tensors[i].count;
  }
  if (!traits->has_own_counts) return;
  words[WORD_CAPACITY] = c->capacity;
  words[WORD_GIVEN] = c->count;
  if (!traits->has_splits) return;
  bool gives = comm->rank == c->root || !traits->root_gives;
  for (int32_t r = 0; r < comm->size; ++r)
    words[WORD_GIVEN + r] = gives ? c->splits[r] : 0;
}
