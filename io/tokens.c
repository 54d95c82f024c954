// SPDX-License-Identifier: Apache-2.0
#include "io/tokens.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "io/byte_pairs_internal.h"
#include "io/gz_internal.h"
#include "io/io_internal.h"
#include "io/utf8_internal.h"

enum {
  CODES = 0x110000,  // Unicode's code points
  BYTE_VALUES = 256,
  FIRST_TEXT_BYTES = 1 << 16,
  PATH_TEXT = 4096,
};

// llm.c's header.
enum {
  HEADER_NUMBERS = 256,
  HEADER_IDS_16 = 20240520,
  HEADER_IDS_32 = 20240801
};

struct choir_tokens_s {
  atomic_int ref_count;
  choir_allocator_t allocator;
  int64_t count;
  int64_t vocabulary;
  int32_t id_bytes;  // 1, 2 or 4: of an id where it lies
  // A text's.
  uint8_t* ids;
  size_t ids_bytes;
  char (*texts)[4];       // (vocabulary), each filled up with zeros
  uint8_t* text_lengths;  // (vocabulary)
  bool is_bytes;
  choir_byte_pairs_t* pairs;  // in place of texts
  // A file's; -1: none.
  int fd;
  uint64_t ids_offset;
  char path[PATH_TEXT];
};

// ---- Life ----

static choir_status_t make(const char* path, choir_tokens_t** out_tokens) {
  if (!path || strlen(path) >= PATH_TEXT)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tokens: path '%s'; one of less than %d bytes is needed",
                       path ? path : "(null)", PATH_TEXT);
  choir_allocator_t allocator = choir_allocator_default();
  void* block;
  CHOIR_TRY(
      choir_allocate(allocator, sizeof(choir_tokens_t), "tokens", &block));
  choir_tokens_t* tokens = block;
  atomic_init(&tokens->ref_count, 1);
  tokens->allocator = allocator;
  tokens->fd = -1;
  memcpy(tokens->path, path, strlen(path) + 1);
  *out_tokens = tokens;
  return NULL;
}

void choir_tokens_retain(choir_tokens_t* tokens) {
  if (tokens)
    atomic_fetch_add_explicit(&tokens->ref_count, 1, memory_order_relaxed);
}

static void give_back(choir_tokens_t* tokens, void* memory, size_t bytes) {
  if (memory) choir_deallocate(tokens->allocator, memory, bytes);
}

void choir_tokens_release(choir_tokens_t* tokens) {
  if (!tokens || atomic_fetch_sub_explicit(&tokens->ref_count, 1,
                                           memory_order_acq_rel) != 1)
    return;
  const size_t words = (size_t)tokens->vocabulary;
  give_back(tokens, tokens->ids, tokens->ids_bytes);
  give_back(tokens, tokens->texts, words * sizeof(tokens->texts[0]));
  give_back(tokens, tokens->text_lengths, words);
  choir_byte_pairs_destroy(tokens->pairs);
  if (tokens->fd >= 0) close(tokens->fd);
  choir_deallocate(tokens->allocator, tokens, sizeof(*tokens));
}

int64_t choir_tokens_count(const choir_tokens_t* tokens) {
  return tokens->count;
}

int64_t choir_tokens_vocabulary(const choir_tokens_t* tokens) {
  return tokens->vocabulary;
}

// ---- A text ----

typedef struct text_s {
  char* data;
  size_t bytes;
  size_t capacity;
} text_t;

static void free_text(choir_tokens_t* tokens, text_t* text) {
  give_back(tokens, text->data, text->capacity);
  memset(text, 0, sizeof(*text));
}

// Room for twice as much.
static choir_status_t grow(choir_tokens_t* tokens, text_t* text) {
  text_t larger = {
      .bytes = text->bytes,
      .capacity = text->data ? 2 * text->capacity : FIRST_TEXT_BYTES};
  void* memory;
  CHOIR_TRY_NOTE(
      choir_allocate(tokens->allocator, larger.capacity, "a text", &memory),
      "tokens: '%s'", tokens->path);
  larger.data = memory;
  if (text->data) memcpy(larger.data, text->data, text->bytes);
  free_text(tokens, text);
  *text = larger;
  return NULL;
}

static choir_status_t read_stream(choir_tokens_t* tokens, choir__gz_t* gz,
                                  text_t* text) {
  do {
    CHOIR_TRY(grow(tokens, text));
    size_t got = 0;
    CHOIR_TRY(choir__gz_read(gz, text->data + text->bytes,
                             text->capacity - text->bytes, &got));
    text->bytes += got;
  } while (text->bytes == text->capacity);
  CHOIR_TRY(choir__gz_check_end(gz));
  if (text->bytes > 0) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "tokens: '%s' is empty; a text is needed", tokens->path);
}

static choir_status_t read_text(choir_tokens_t* tokens, text_t* text) {
  choir__gz_t gz;
  CHOIR_TRY(choir__gz_open("tokens", tokens->path, &gz));
  choir_status_t status = read_stream(tokens, &gz, text);
  choir__gz_close(&gz);
  return status;
}

static choir_status_t make_texts(choir_tokens_t* tokens, int64_t vocabulary) {
  void* memory;
  tokens->vocabulary = vocabulary;
  CHOIR_TRY(choir_allocate(tokens->allocator,
                           (size_t)vocabulary * sizeof(tokens->texts[0]),
                           "a vocabulary", &memory));
  tokens->texts = memory;
  CHOIR_TRY(choir_allocate(tokens->allocator, (size_t)vocabulary,
                           "a vocabulary", &memory));
  tokens->text_lengths = memory;
  return NULL;
}

// The text's own bytes are the ids.
static choir_status_t take_bytes(choir_tokens_t* tokens, text_t* text) {
  CHOIR_TRY(make_texts(tokens, BYTE_VALUES));
  for (int value = 0; value < BYTE_VALUES; ++value) {
    tokens->texts[value][0] = (char)value;
    tokens->text_lengths[value] = 1;
  }
  tokens->id_bytes = 1;
  tokens->is_bytes = true;
  tokens->count = (int64_t)text->bytes;
  tokens->ids = (uint8_t*)text->data;
  tokens->ids_bytes = text->capacity;
  memset(text, 0, sizeof(*text));
  return NULL;
}

// Room for count ids below the vocabulary.
static choir_status_t make_ids(choir_tokens_t* tokens) {
  const int64_t vocabulary = tokens->vocabulary;
  tokens->id_bytes = vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4;
  tokens->ids_bytes = (size_t)tokens->count * (size_t)tokens->id_bytes;
  void* memory;
  CHOIR_TRY(choir_allocate(tokens->allocator, tokens->ids_bytes,
                           "the tokens of a text", &memory));
  tokens->ids = memory;
  return NULL;
}

static void store(choir_tokens_t* tokens, int64_t at, int32_t id) {
  memcpy(tokens->ids + at * tokens->id_bytes, &id, (size_t)tokens->id_bytes);
}

// Marks the codes that the text has with 1, and counts its characters.
static choir_status_t mark_codes(choir_tokens_t* tokens, const text_t* text,
                                 int32_t* marks) {
  uint32_t code;
  for (size_t at = 0; at < text->bytes; ++tokens->count) {
    const size_t size =
        choir__utf8_read(text->data + at, text->bytes - at, &code);
    if (size == 0)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "tokens: '%s' is not UTF-8 at byte %zu (0x%02x); take "
                         "it by bytes, not characters",
                         tokens->path, at, (unsigned)(uint8_t)text->data[at]);
    marks[code] = 1;
    at += size;
  }
  return NULL;
}

// ids: (CODES), zeros; here a code's number, later its id.
static choir_status_t number_characters(choir_tokens_t* tokens,
                                        const text_t* text, int32_t* ids) {
  CHOIR_TRY(mark_codes(tokens, text, ids));
  int32_t vocabulary = 0;
  for (uint32_t code = 0; code < CODES; ++code) vocabulary += ids[code];
  CHOIR_TRY(make_texts(tokens, vocabulary));
  int32_t next = 0;
  for (uint32_t code = 0; code < CODES; ++code) {
    if (!ids[code]) continue;
    tokens->text_lengths[next] =
        (uint8_t)choir__utf8_write(code, tokens->texts[next]);
    ids[code] = next++;
  }
  CHOIR_TRY(make_ids(tokens));
  size_t at = 0;
  for (int64_t i = 0; i < tokens->count; ++i) {
    uint32_t code;
    at += choir__utf8_read(text->data + at, text->bytes - at, &code);
    store(tokens, i, ids[code]);
  }
  return NULL;
}

static choir_status_t take_characters(choir_tokens_t* tokens, text_t* text) {
  void* memory;
  CHOIR_TRY(choir_allocate(tokens->allocator, CODES * sizeof(int32_t),
                           "a table of characters", &memory));
  choir_status_t status = number_characters(tokens, text, memory);
  choir_deallocate(tokens->allocator, memory, CODES * sizeof(int32_t));
  return status;
}

// There are no more ids than bytes.
static choir_status_t take_pairs(choir_tokens_t* tokens, text_t* text) {
  const size_t bytes = text->bytes * sizeof(int32_t);
  void* memory;
  CHOIR_TRY(choir_allocate(tokens->allocator, bytes, "the tokens of a text",
                           &memory));
  const int32_t* ids = memory;
  size_t count = 0;
  choir_status_t status = choir_byte_pairs_encode(
      tokens->pairs, text->data, text->bytes, memory, text->bytes, &count);
  tokens->count = (int64_t)count;
  tokens->vocabulary = choir_byte_pairs_count(tokens->pairs);
  if (!status) status = make_ids(tokens);
  for (int64_t i = 0; i < tokens->count && !status; ++i)
    store(tokens, i, ids[i]);
  choir_deallocate(tokens->allocator, memory, bytes);
  return status;
}

static choir_status_t open_text(choir_tokens_t* tokens,
                                choir_status_t (*take)(choir_tokens_t* tokens,
                                                       text_t* text)) {
  text_t text = {0};
  choir_status_t status = read_text(tokens, &text);
  if (!status) status = take(tokens, &text);
  free_text(tokens, &text);
  return status;
}

static choir_status_t end_open(choir_tokens_t* tokens, choir_status_t status,
                               choir_tokens_t** out_tokens) {
  if (status)
    choir_tokens_release(tokens);
  else
    *out_tokens = tokens;
  return status;
}

choir_status_t choir_tokens_open_text(const char* path, choir_text_unit_t unit,
                                      choir_tokens_t** out_tokens) {
  *out_tokens = NULL;
  choir_tokens_t* tokens;
  CHOIR_TRY(make(path, &tokens));
  choir_status_t status = open_text(
      tokens, unit == CHOIR_TEXT_BYTES ? take_bytes : take_characters);
  return end_open(tokens, status, out_tokens);
}

choir_status_t choir_tokens_open_byte_pairs(const char* path,
                                            const char* vocab_path,
                                            const char* merges_path,
                                            choir_tokens_t** out_tokens) {
  *out_tokens = NULL;
  choir_tokens_t* tokens;
  CHOIR_TRY(make(path, &tokens));
  choir_status_t status =
      choir_byte_pairs_open(vocab_path, merges_path, &tokens->pairs);
  if (!status) status = open_text(tokens, take_pairs);
  return end_open(tokens, status, out_tokens);
}

const char* choir_tokens_text(const choir_tokens_t* tokens, int32_t id,
                              size_t* out_bytes) {
  const choir_byte_pairs_t* pairs = tokens->pairs;
  *out_bytes = 0;
  if (id < 0 || id >= tokens->vocabulary) return NULL;
  if (pairs) {
    *out_bytes = pairs->begins[id + 1] - pairs->begins[id];
    return (const char*)pairs->text + pairs->begins[id];
  }
  if (!tokens->texts) return NULL;
  *out_bytes = tokens->text_lengths[id];
  return tokens->texts[id];
}

// The id of a character, by halves as the codes' bytes are in their order too;
// -1: there is none.
static int32_t find_character(const choir_tokens_t* tokens, const char* text,
                              size_t size) {
  char wanted[4] = {0};
  memcpy(wanted, text, size);
  int32_t low = 0;
  int32_t high = (int32_t)tokens->vocabulary;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (memcmp(tokens->texts[middle], wanted, sizeof(wanted)) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < tokens->vocabulary &&
                 memcmp(tokens->texts[low], wanted, sizeof(wanted)) == 0
             ? low
             : -1;
}

choir_status_t choir_tokens_encode(const choir_tokens_t* tokens,
                                   const char* text, size_t bytes,
                                   int32_t* out_ids, int64_t* out_count) {
  *out_count = 0;
  if (tokens->pairs) {
    size_t count = 0;
    CHOIR_TRY(choir_byte_pairs_encode(tokens->pairs, text, bytes, out_ids,
                                      bytes, &count));
    *out_count = (int64_t)count;
    return NULL;
  }
  if (!tokens->texts)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "tokens: '%s' has ids and not what they stand for",
                       tokens->path);
  for (size_t at = 0; at < bytes;) {
    uint32_t code;
    const size_t size =
        tokens->is_bytes ? 1 : choir__utf8_read(text + at, bytes - at, &code);
    if (size == 0)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "tokens: the text is not UTF-8 at byte %zu (0x%02x)",
                         at, (unsigned)(uint8_t)text[at]);
    const int32_t id = find_character(tokens, text + at, size);
    if (id < 0)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "tokens: '%.*s' at byte %zu is none of the %lld "
                         "characters of '%s'",
                         (int)size, text + at, at,
                         (long long)tokens->vocabulary, tokens->path);
    out_ids[(*out_count)++] = id;
    at += size;
  }
  return NULL;
}

// ---- A file of ids ----

static choir_status_t check_ids_arguments(const choir_tokens_t* tokens,
                                          int32_t id_bytes,
                                          int64_t vocabulary) {
  if ((id_bytes == 0 || id_bytes == 2 || id_bytes == 4) && vocabulary >= 1 &&
      vocabulary <= INT32_MAX)
    return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "tokens: '%s' by ids of %d bytes below %lld; 2 or 4 bytes "
                     "and a vocabulary of 1 to %d are needed",
                     tokens->path, id_bytes, (long long)vocabulary, INT32_MAX);
}

// Looks for the header; *out_bytes: of all ids by it, UINT64_MAX without one.
static choir_status_t read_header(choir_tokens_t* tokens, uint64_t file_bytes,
                                  int32_t given_bytes, uint64_t* out_bytes) {
  uint32_t numbers[3] = {0};
  *out_bytes = UINT64_MAX;
  tokens->id_bytes = given_bytes;
  if (file_bytes >= HEADER_NUMBERS * sizeof(uint32_t))
    CHOIR_TRY(choir__io_read_at(tokens->fd, "tokens", tokens->path, 0, numbers,
                                sizeof(numbers)));
  if (numbers[0] != HEADER_IDS_16 && numbers[0] != HEADER_IDS_32) {
    if (!given_bytes) tokens->id_bytes = 2;
    return NULL;
  }
  tokens->id_bytes = numbers[0] == HEADER_IDS_16 ? 2 : 4;
  if (given_bytes && given_bytes != tokens->id_bytes)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tokens: '%s' has ids of %d bytes by its header; %d "
                       "were asked for",
                       tokens->path, tokens->id_bytes, given_bytes);
  tokens->ids_offset = HEADER_NUMBERS * sizeof(uint32_t);
  *out_bytes = (uint64_t)numbers[2] * (uint64_t)tokens->id_bytes;
  return NULL;
}

static choir_status_t open_ids(choir_tokens_t* tokens, int32_t id_bytes,
                               int64_t vocabulary) {
  uint64_t file_bytes = 0;
  uint64_t promised = 0;
  CHOIR_TRY(check_ids_arguments(tokens, id_bytes, vocabulary));
  tokens->vocabulary = vocabulary;
  CHOIR_TRY(choir__io_open("tokens", tokens->path, &tokens->fd, &file_bytes));
  CHOIR_TRY(read_header(tokens, file_bytes, id_bytes, &promised));
  const uint64_t bytes = file_bytes - tokens->ids_offset;
  if (promised != UINT64_MAX && bytes != promised)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tokens: '%s' has %llu bytes of ids; its header "
                       "promises %llu",
                       tokens->path, (unsigned long long)bytes,
                       (unsigned long long)promised);
  if (bytes == 0 || bytes % (uint64_t)tokens->id_bytes)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tokens: '%s' has %llu bytes of ids; a multiple of %d "
                       "is needed, and one id at least",
                       tokens->path, (unsigned long long)bytes,
                       tokens->id_bytes);
  tokens->count = (int64_t)(bytes / (uint64_t)tokens->id_bytes);
  return NULL;
}

choir_status_t choir_tokens_open_ids(const char* path, int32_t id_bytes,
                                     int64_t vocabulary,
                                     choir_tokens_t** out_tokens) {
  *out_tokens = NULL;
  choir_tokens_t* tokens;
  CHOIR_TRY(make(path, &tokens));
  return end_open(tokens, open_ids(tokens, id_bytes, vocabulary), out_tokens);
}

// ---- Reading ----

choir_status_t choir_tokens_read(const choir_tokens_t* tokens, int64_t first,
                                 int64_t count, int32_t* out_ids) {
  if (first < 0 || count < 0 || first > tokens->count ||
      count > tokens->count - first)
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "tokens: %lld from %lld on of '%s', which has %lld",
                       (long long)count, (long long)first, tokens->path,
                       (long long)tokens->count);
  const size_t id_bytes = (size_t)tokens->id_bytes;
  const size_t bytes = (size_t)count * id_bytes;
  const uint64_t offset = (uint64_t)first * id_bytes;
  const uint8_t* from = tokens->ids ? tokens->ids + offset : NULL;
  if (!from) {
    // At the end of the caller's memory, from where each id comes to its place
    // before the next one's is written over.
    uint8_t* end = (uint8_t*)out_ids + (size_t)count * sizeof(int32_t) - bytes;
    CHOIR_TRY(choir__io_read_at(tokens->fd, "tokens", tokens->path,
                                tokens->ids_offset + offset, end, bytes));
    from = end;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint32_t id = 0;
    memcpy(&id, from + (size_t)i * id_bytes, id_bytes);
    if (id >= (uint64_t)tokens->vocabulary)
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "tokens: '%s' has id %u at place %lld; the vocabulary "
                         "has %lld",
                         tokens->path, id, (long long)(first + i),
                         (long long)tokens->vocabulary);
    out_ids[i] = (int32_t)id;
  }
  return NULL;
}
