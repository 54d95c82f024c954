// SPDX-License-Identifier: Apache-2.0
#include "io/byte_pairs.h"

#include <string.h>

#include "io/byte_pairs_internal.h"

// The rank of two neighbours that are no pair.
#define NO_RANK UINT32_MAX
// Words of up to so many bytes need no memory but the stack.
#define SMALL_WORD 64
// For each byte of a word: entries of the heap, and lists.
#define HEAP_PER_BYTE 2
#define LISTS 4

static void give_back(choir_allocator_t allocator, void* memory, size_t bytes) {
  if (memory) choir_deallocate(allocator, memory, bytes);
}

choir_status_t choir_byte_pairs_open(const char* vocab_path,
                                     const char* merges_path,
                                     choir_byte_pairs_t** out_pairs) {
  *out_pairs = NULL;
  if (!vocab_path || !merges_path) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "byte pairs: vocabulary '%s', merges '%s'; two paths "
                       "are needed",
                       vocab_path ? vocab_path : "(null)",
                       merges_path ? merges_path : "(null)");
  }
  const choir_allocator_t allocator = choir_allocator_default();
  void* memory;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir_byte_pairs_t), "byte pairs",
                           &memory));
  choir_byte_pairs_t* pairs = memory;
  pairs->allocator = allocator;
  choir_status_t status =
      choir__byte_pairs_read(pairs, vocab_path, merges_path);
  if (status) {
    choir_byte_pairs_destroy(pairs);
    return status;
  }
  *out_pairs = pairs;
  return NULL;
}

void choir_byte_pairs_destroy(choir_byte_pairs_t* pairs) {
  if (!pairs) return;
  const choir_allocator_t allocator = pairs->allocator;
  const size_t count = (size_t)pairs->count;
  const size_t merges = pairs->merge_count;
  give_back(allocator, pairs->text, pairs->text_bytes);
  give_back(allocator, pairs->begins, (count + 1) * sizeof *pairs->begins);
  give_back(allocator, pairs->by_text, count * sizeof *pairs->by_text);
  give_back(allocator, pairs->merges, merges * sizeof *pairs->merges);
  give_back(allocator, pairs->merge_begins,
            (count + 1) * sizeof *pairs->merge_begins);
  give_back(allocator, pairs->results, merges * sizeof *pairs->results);
  choir_deallocate(allocator, pairs, sizeof *pairs);
}

int64_t choir_byte_pairs_count(const choir_byte_pairs_t* pairs) {
  return pairs->count;
}

int32_t choir_byte_pairs_find(const choir_byte_pairs_t* pairs,
                              const char* token, size_t bytes) {
  int32_t low = 0;
  int32_t high = pairs->count;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    const int32_t id = pairs->by_text[middle];
    const size_t begin = pairs->begins[id];
    const size_t size = pairs->begins[id + 1] - begin;
    const size_t both = size < bytes ? size : bytes;
    int order = both ? memcmp(token, pairs->text + begin, both) : 0;
    if (order == 0) order = (bytes > size) - (bytes < size);
    if (order == 0) return id;
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return -1;
}

// ---- Encoding ----

// The merge of two neighbours, or NO_RANK.
static uint32_t rank_of(const choir_byte_pairs_t* pairs, int32_t left,
                        int32_t right) {
  uint32_t low = pairs->merge_begins[left];
  uint32_t high = pairs->merge_begins[left + 1];
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const choir__merge_t* merge = &pairs->merges[middle];
    if (merge->right == right) return merge->rank;
    if (merge->right > right) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return NO_RANK;
}

// A word while its tokens are merged: a list of tokens, each at the place of
// its first byte, and a heap of the pairs that have a rank. A pair that goes
// leaves its entry in the heap, which is known by a rank that its place no
// longer has. A merge takes an entry out and adds two at most, and n bytes have
// n - 1 merges, so 2n entries are enough.
typedef struct word_s {
  const choir_byte_pairs_t* pairs;
  uint32_t bytes;
  int32_t* ids;
  uint32_t* previous;
  uint32_t* next;   // `bytes` behind the last one
  uint32_t* ranks;  // of the pair of a token and its next one
  uint64_t* heap;   // rank << 32 | place, the lowest one first
  size_t heap_count;
} word_t;

static void heap_push(word_t* word, uint64_t entry) {
  uint64_t* heap = word->heap;
  size_t at = word->heap_count++;
  while (at > 0 && heap[(at - 1) / 2] > entry) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = entry;
}

static uint64_t heap_pop(word_t* word) {
  uint64_t* heap = word->heap;
  const uint64_t lowest = heap[0];
  const size_t count = --word->heap_count;
  const uint64_t entry = heap[count];
  size_t at = 0;
  for (size_t child = 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && heap[child + 1] < heap[child]) ++child;
    if (heap[child] >= entry) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = entry;
  return lowest;
}

// The token at `place` has a new neighbour behind it, or is new itself.
static void rank_pair(word_t* word, uint32_t place) {
  const uint32_t next = word->next[place];
  word->ranks[place] =
      next < word->bytes
          ? rank_of(word->pairs, word->ids[place], word->ids[next])
          : NO_RANK;
  if (word->ranks[place] != NO_RANK) {
    heap_push(word, (uint64_t)word->ranks[place] << 32 | place);
  }
}

static void merge_word(word_t* word, const uint8_t* text) {
  const uint32_t bytes = word->bytes;
  word->heap_count = 0;
  for (uint32_t k = 0; k < bytes; ++k) {
    word->ids[k] = word->pairs->byte_ids[text[k]];
    word->previous[k] = k - 1;
    word->next[k] = k + 1;
  }
  for (uint32_t k = 0; k < bytes; ++k) rank_pair(word, k);
  while (word->heap_count > 0) {
    const uint64_t entry = heap_pop(word);
    const uint32_t place = (uint32_t)entry;
    const uint32_t rank = (uint32_t)(entry >> 32);
    if (word->ranks[place] != rank) continue;
    const uint32_t gone = word->next[place];
    const uint32_t next = word->next[gone];
    word->ids[place] = word->pairs->results[rank];
    word->next[place] = next;
    word->ranks[gone] = NO_RANK;
    if (next < bytes) word->previous[next] = place;
    rank_pair(word, place);
    if (place > 0) rank_pair(word, word->previous[place]);
  }
}

// Memory for words of up to `room` bytes.
typedef struct work_s {
  choir_allocator_t allocator;
  size_t room;
  uint64_t* heap;
  uint32_t* lists;
  void* memory;  // of both, for large words
  uint64_t small_heap[HEAP_PER_BYTE * SMALL_WORD];
  uint32_t small_lists[LISTS * SMALL_WORD];
} work_t;

static size_t work_bytes(size_t room) {
  return room * (HEAP_PER_BYTE * sizeof(uint64_t) + LISTS * sizeof(uint32_t));
}

static void work_clear(work_t* work) {
  give_back(work->allocator, work->memory, work_bytes(work->room));
  work->memory = NULL;
  work->room = SMALL_WORD;
  work->heap = work->small_heap;
  work->lists = work->small_lists;
}

// Memory for a word of so many bytes.
static choir_status_t work_begin(work_t* work, size_t bytes, word_t* word) {
  if (bytes > INT32_MAX) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "byte pairs: a word of %zu bytes; up to %d are possible",
                       bytes, INT32_MAX);
  }
  if (bytes > work->room) {
    const size_t room = bytes > 2 * work->room ? bytes : 2 * work->room;
    work_clear(work);
    CHOIR_TRY(choir_allocate(work->allocator, work_bytes(room),
                             "byte pairs of a long word", &work->memory));
    work->room = room;
    work->heap = work->memory;
    work->lists = (uint32_t*)(work->heap + HEAP_PER_BYTE * room);
  }
  word->bytes = (uint32_t)bytes;
  word->heap = work->heap;
  word->previous = work->lists;
  word->next = word->previous + bytes;
  word->ranks = word->next + bytes;
  word->ids = (int32_t*)(word->ranks + bytes);
  return NULL;
}

static choir_status_t check_room(const char* what, size_t count, bool is_asked,
                                 size_t room) {
  if (!is_asked || count <= room) return NULL;
  return CHOIR_ERROR(OUT_OF_RANGE, "byte pairs: %zu %s; there is room for %zu",
                     count, what, room);
}

choir_status_t choir_byte_pairs_encode(const choir_byte_pairs_t* pairs,
                                       const char* text, size_t bytes,
                                       int32_t* out_ids, size_t room,
                                       size_t* out_count) {
  *out_count = 0;
  work_t work;  // its arrays need no beginning
  work.allocator = pairs->allocator;
  work.memory = NULL;
  work_clear(&work);
  word_t word = {.pairs = pairs};
  choir_status_t status = NULL;
  size_t count = 0;
  for (size_t at = 0; at < bytes;) {
    const size_t size = choir__byte_pairs_split(text + at, bytes - at);
    status = work_begin(&work, size, &word);
    if (status) break;
    merge_word(&word, (const uint8_t*)text + at);
    for (uint32_t k = 0; k < word.bytes; k = word.next[k]) {
      if (out_ids && count < room) out_ids[count] = word.ids[k];
      ++count;
    }
    at += size;
  }
  work_clear(&work);
  if (status) return status;
  *out_count = count;
  return check_room("ids", count, out_ids, room);
}

// ---- Decoding ----

choir_status_t choir_byte_pairs_decode(const choir_byte_pairs_t* pairs,
                                       const int32_t* ids, size_t count,
                                       char* out_text, size_t room,
                                       size_t* out_bytes) {
  *out_bytes = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= pairs->count) {
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "byte pairs: id %d at place %zu; ids are from 0 to %d",
                         ids[i], i, pairs->count - 1);
    }
    const size_t begin = pairs->begins[ids[i]];
    const size_t size = pairs->begins[ids[i] + 1] - begin;
    if (out_text && bytes <= room && size <= room - bytes) {
      memcpy(out_text + bytes, pairs->text + begin, size);
    }
    if (__builtin_add_overflow(bytes, size, &bytes)) {
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "byte pairs: %zu ids have more bytes than a number "
                         "can say",
                         count);
    }
  }
  *out_bytes = bytes;
  return check_room("bytes", bytes, out_text, room);
}
