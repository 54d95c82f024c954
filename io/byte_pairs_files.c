// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/byte_pairs_internal.h"
#include "io/io_internal.h"
#include "io/utf8_internal.h"

// Both files write a byte as one character. Those that print are written as the
// character of their number; the others, in their order, as U+0100 and on.
#define ALPHABET_END 0x144
// Bytes of a token that a message shows.
#define SHOWN_BYTES 48

typedef struct source_s {
  choir_allocator_t allocator;
  const char* path;
  char* text;
  size_t bytes;
  size_t at;        // the next byte
  uint8_t* buffer;  // as long as the text: the bytes that tokens stand for
  size_t used;      // of it
  int16_t alphabet[ALPHABET_END];  // the byte of each character, or -1
} source_t;

// A token of vocab.json.
typedef struct token_s {
  const uint8_t* text;
  size_t bytes;
  size_t name;  // where it stands in the file
  size_t name_bytes;
  int32_t id;
} token_t;

static choir_status_t source_open(source_t* source) {
  int next = 0x100;
  for (int k = 0; k < ALPHABET_END; ++k) source->alphabet[k] = -1;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints =
        (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    source->alphabet[prints ? byte : next++] = (int16_t)byte;
  }
  int fd;
  uint64_t bytes;
  CHOIR_TRY(choir__io_open("byte pairs", source->path, &fd, &bytes));
  choir_status_t status = NULL;
  void* memory;
  if (bytes == 0) {
    status = CHOIR_ERROR(INVALID_ARGUMENT, "byte pairs: '%s' is empty",
                         source->path);
  }
  if (!status) {
    status = choir_allocate(source->allocator, bytes, "a vocabulary", &memory);
  }
  if (!status) {
    source->text = memory;
    source->bytes = bytes;
    status = choir__io_read_at(fd, "byte pairs", source->path, 0, source->text,
                               bytes);
  }
  close(fd);
  CHOIR_TRY(status);
  CHOIR_TRY(choir_allocate(source->allocator, bytes, "a vocabulary", &memory));
  source->buffer = memory;
  return NULL;
}

static void source_close(source_t* source) {
  if (source->text) {
    choir_deallocate(source->allocator, source->text, source->bytes);
  }
  if (source->buffer) {
    choir_deallocate(source->allocator, source->buffer, source->bytes);
  }
}

static size_t line_of(const source_t* source) {
  size_t line = 1;
  for (size_t i = 0; i < source->at && i < source->bytes; ++i) {
    line += source->text[i] == '\n';
  }
  return line;
}

// The file and the line at which the reader stands, and what is wrong.
#define MALFORMED(source, format, ...)                                 \
  CHOIR_ERROR(INVALID_ARGUMENT, "byte pairs: '%s', line %zu: " format, \
              (source)->path, line_of(source), __VA_ARGS__)

// "%.*s" of a text that is UTF-8, cut between characters.
static int shown(const char* text, size_t bytes) {
  if (bytes <= SHOWN_BYTES) return (int)bytes;
  bytes = SHOWN_BYTES;
  while (bytes > 0 && ((uint8_t)text[bytes] & 0xc0) == 0x80) --bytes;
  return (int)bytes;
}
#define SHOWN(text, bytes) shown(text, bytes), text

// Adds the byte that a character stands for to the buffer.
static choir_status_t add_byte(source_t* source, uint32_t point) {
  if (point >= ALPHABET_END || source->alphabet[point] < 0) {
    return MALFORMED(source,
                     "the character U+%04X in a token; GPT-2's alphabet of "
                     "bytes does not have it",
                     point);
  }
  source->buffer[source->used++] = (uint8_t)source->alphabet[point];
  return NULL;
}

// One character of a token as it stands in the file.
static choir_status_t read_character(source_t* source) {
  uint32_t point;
  const size_t size = choir__utf8_read(source->text + source->at,
                                       source->bytes - source->at, &point);
  if (size == 0) {
    return MALFORMED(source, "byte %zu is not UTF-8", source->at);
  }
  CHOIR_TRY(add_byte(source, point));
  source->at += size;
  return NULL;
}

// ---- vocab.json ----

// A JSON object of texts and whole numbers is all that there may be, so it is
// read here and not by cJSON: without its memory for each value, and with the
// line of a mistake.

static void skip_spaces(source_t* source) {
  while (source->at < source->bytes &&
         memchr(" \t\r\n", source->text[source->at], 4)) {
    ++source->at;
  }
}

// Takes one of `wanted` from behind spaces; *out_found is which.
static choir_status_t take(source_t* source, const char* wanted,
                           char* out_found) {
  skip_spaces(source);
  *out_found = '\0';
  if (source->at == source->bytes) {
    return MALFORMED(source, "the file ends where one of %s is needed", wanted);
  }
  const char found = source->text[source->at];
  if (!memchr(wanted, found, strlen(wanted))) {
    return MALFORMED(source, "byte %zu is 0x%02x; one of %s is needed",
                     source->at, (uint8_t)found, wanted);
  }
  ++source->at;
  *out_found = found;
  return NULL;
}

// What stands behind a backslash.
static choir_status_t read_escape(source_t* source) {
  const char* text = source->text + ++source->at;
  const size_t left = source->bytes - source->at;
  uint32_t point = 0;
  size_t size = 1;
  if (left > 4 && text[0] == 'u') {
    for (; size < 5; ++size) {
      const char digit = text[size];
      const char low = (char)(digit | 0x20);
      if (digit >= '0' && digit <= '9') {
        point = point << 4 | (uint32_t)(digit - '0');
      } else if (low >= 'a' && low <= 'f') {
        point = point << 4 | (uint32_t)(low - 'a' + 10);
      } else {
        return MALFORMED(source, "byte %zu belongs to no \\u and four digits",
                         source->at + size);
      }
    }
  } else if (left > 0 && memchr("\"\\/", text[0], 3)) {
    point = (uint8_t)text[0];
  } else {
    return MALFORMED(source,
                     "byte %zu, behind a backslash, is none of \" \\ / and u "
                     "with four digits",
                     source->at);
  }
  CHOIR_TRY(add_byte(source, point));
  source->at += size;
  return NULL;
}

// A token behind its first quotation mark.
static choir_status_t read_name(source_t* source, token_t* token) {
  token->name = source->at;
  token->text = source->buffer + source->used;
  const size_t begin = source->used;
  while (source->at < source->bytes && source->text[source->at] != '"') {
    if (source->text[source->at] == '\\') {
      CHOIR_TRY(read_escape(source));
    } else {
      CHOIR_TRY(read_character(source));
    }
  }
  if (source->at == source->bytes) {
    return MALFORMED(source,
                     "the file ends in the token that begins at byte "
                     "%zu",
                     token->name);
  }
  token->name_bytes = source->at++ - token->name;
  token->bytes = source->used - begin;
  if (token->bytes == 0) {
    return MALFORMED(source, "byte %zu: a token without text", token->name);
  }
  return NULL;
}

static choir_status_t read_id(source_t* source, token_t* token) {
  skip_spaces(source);
  const size_t begin = source->at;
  int64_t id = 0;
  bool is_whole = true;
  for (; source->at < source->bytes; ++source->at) {
    const char byte = source->text[source->at];
    if (memchr(" \t\r\n,}", byte, 6)) break;
    is_whole = is_whole && byte >= '0' && byte <= '9';
    if (is_whole && id <= INT32_MAX) id = 10 * id + (byte - '0');
  }
  const size_t bytes = source->at - begin;
  const char* text = source->text + begin;
  // 2^31 - 1 would be one token too many to count.
  if (bytes == 0 || !is_whole || id >= INT32_MAX ||
      (text[0] == '0' && bytes > 1)) {
    const bool is_text = choir__utf8_is_valid(text, bytes);
    return MALFORMED(source,
                     "token '%.*s' has the id '%.*s'; a whole number from 0 to "
                     "%d is needed",
                     SHOWN(source->text + token->name, token->name_bytes),
                     SHOWN(is_text ? text : "?", is_text ? bytes : 1),
                     INT32_MAX - 1);
  }
  token->id = (int32_t)id;
  return NULL;
}

static int compare_tokens(const void* a, const void* b) {
  const token_t* x = a;
  const token_t* y = b;
  const size_t both = x->bytes < y->bytes ? x->bytes : y->bytes;
  const int order = memcmp(x->text, y->text, both);
  if (order != 0) return order;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static choir_status_t allocate(const choir_byte_pairs_t* pairs, size_t count,
                               size_t item_bytes, void** out_memory) {
  *out_memory = NULL;
  if (count == 0) return NULL;
  return choir_allocate(pairs->allocator, count * item_bytes, "a vocabulary",
                        out_memory);
}

// Lays out `count` tokens, sorted by their bytes, by their ids.
static choir_status_t keep_tokens(choir_byte_pairs_t* pairs, source_t* source,
                                  const token_t* tokens, size_t count) {
  pairs->count = (int32_t)count;
  void* memory;
  CHOIR_TRY(allocate(pairs, count + 1, sizeof *pairs->begins, &memory));
  pairs->begins = memory;
  CHOIR_TRY(allocate(pairs, count, sizeof *pairs->by_text, &memory));
  pairs->by_text = memory;
  CHOIR_TRY(allocate(pairs, source->used, 1, &memory));
  pairs->text = memory;
  pairs->text_bytes = source->used;
  // begins[id + 1] is the token's length first.
  for (size_t i = 0; i < count; ++i) {
    const token_t* token = &tokens[i];
    const char* name = source->text + token->name;
    source->at = token->name;
    if (i > 0 && compare_tokens(token - 1, token) == 0) {
      return MALFORMED(source, "token '%.*s' is in the vocabulary twice",
                       SHOWN(name, token->name_bytes));
    }
    if ((size_t)token->id >= count) {
      return MALFORMED(
          source,
          "token '%.*s' has the id %d; the ids of %zu tokens are 0 "
          "to %zu",
          SHOWN(name, token->name_bytes), token->id, count, count - 1);
    }
    if (pairs->begins[token->id + 1] != 0) {
      const token_t* other = tokens;
      while (other->id != token->id) ++other;
      return MALFORMED(source, "tokens '%.*s' and '%.*s' both have the id %d",
                       SHOWN(source->text + other->name, other->name_bytes),
                       SHOWN(name, token->name_bytes), token->id);
    }
    pairs->begins[token->id + 1] = token->bytes;
    pairs->by_text[i] = token->id;
  }
  for (size_t i = 0; i < count; ++i) pairs->begins[i + 1] += pairs->begins[i];
  for (size_t i = 0; i < count; ++i) {
    memcpy(pairs->text + pairs->begins[tokens[i].id], tokens[i].text,
           tokens[i].bytes);
  }
  for (int k = 0; k < 256; ++k) {
    const char byte = (char)k;
    pairs->byte_ids[k] = choir_byte_pairs_find(pairs, &byte, 1);
    if (pairs->byte_ids[k] < 0) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "byte pairs: '%s' has no token for the byte 0x%02x "
                         "alone; each byte needs one",
                         source->path, k);
    }
  }
  return NULL;
}

// The object into `tokens`, which has room.
static choir_status_t read_tokens(source_t* source, token_t* tokens,
                                  size_t* out_count) {
  char found;
  CHOIR_TRY(take(source, "{", &found));
  for (*out_count = 0; found != '}'; ++*out_count) {
    token_t* token = &tokens[*out_count];
    CHOIR_TRY(take(source, "\"", &found));
    CHOIR_TRY(read_name(source, token));
    CHOIR_TRY(take(source, ":", &found));
    CHOIR_TRY(read_id(source, token));
    CHOIR_TRY(take(source, ",}", &found));
  }
  skip_spaces(source);
  if (source->at < source->bytes) {
    return MALFORMED(source, "byte %zu stands behind the end of the object",
                     source->at);
  }
  return NULL;
}

static choir_status_t read_vocabulary(choir_byte_pairs_t* pairs,
                                      source_t* source) {
  CHOIR_TRY(source_open(source));
  // No entry is without a colon.
  size_t room = 1;
  for (size_t i = 0; i < source->bytes; ++i) room += source->text[i] == ':';
  void* memory;
  CHOIR_TRY(allocate(pairs, room, sizeof(token_t), &memory));
  token_t* tokens = memory;
  size_t count = 0;
  choir_status_t status = read_tokens(source, tokens, &count);
  if (!status && count >= INT32_MAX) {
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         "byte pairs: '%s' has %zu tokens; fewer than %d are "
                         "possible",
                         source->path, count, INT32_MAX);
  }
  if (!status) {
    qsort(tokens, count, sizeof *tokens, compare_tokens);
    status = keep_tokens(pairs, source, tokens, count);
  }
  choir_deallocate(pairs->allocator, tokens, room * sizeof *tokens);
  return status;
}

// ---- merges.txt ----

// The id of bytes of the buffer, which stand in the file as `name`.
static choir_status_t find(const choir_byte_pairs_t* pairs,
                           const source_t* source, size_t begin, size_t end,
                           const char* name, size_t name_bytes,
                           int32_t* out_id) {
  *out_id = choir_byte_pairs_find(pairs, (const char*)source->buffer + begin,
                                  end - begin);
  if (*out_id >= 0) return NULL;
  return MALFORMED(source, "the vocabulary has no token for '%.*s'",
                   SHOWN(name, name_bytes));
}

// A line from where the reader stands up to `end`.
static choir_status_t read_merge(const choir_byte_pairs_t* pairs,
                                 source_t* source, size_t end,
                                 choir__merge_t* merge) {
  const char* line = source->text + source->at;
  const size_t bytes = end - source->at;
  const char* space = memchr(line, ' ', bytes);
  if (!space || space == line || space + 1 == line + bytes ||
      memchr(space + 1, ' ', bytes - (size_t)(space + 1 - line))) {
    const bool is_text = choir__utf8_is_valid(line, bytes);
    return MALFORMED(source,
                     "'%.*s'; two tokens with a space between them are "
                     "needed",
                     SHOWN(is_text ? line : "?", is_text ? bytes : 1));
  }
  const size_t left_bytes = (size_t)(space - line);
  const size_t begin = source->at;
  source->used = 0;
  while (source->at < begin + left_bytes) CHOIR_TRY(read_character(source));
  const size_t middle = source->used;
  ++source->at;
  while (source->at < end) CHOIR_TRY(read_character(source));
  CHOIR_TRY(find(pairs, source, 0, middle, line, left_bytes, &merge->left));
  CHOIR_TRY(find(pairs, source, middle, source->used, space + 1,
                 bytes - left_bytes - 1, &merge->right));
  return find(pairs, source, 0, source->used, line, bytes, &merge->result);
}

static int compare_merges(const void* a, const void* b) {
  const choir__merge_t* x = a;
  const choir__merge_t* y = b;
  if (x->left != y->left) return x->left < y->left ? -1 : 1;
  if (x->right != y->right) return x->right < y->right ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

static size_t end_of_line(const source_t* source) {
  const char* begin = source->text + source->at;
  const char* end = memchr(begin, '\n', source->bytes - source->at);
  return end ? (size_t)(end - source->text) : source->bytes;
}

// The merges by their left and right tokens.
static choir_status_t index_merges(choir_byte_pairs_t* pairs,
                                   const source_t* source,
                                   size_t lines_before) {
  const uint32_t count = pairs->merge_count;
  void* memory;
  CHOIR_TRY(allocate(pairs, count, sizeof *pairs->results, &memory));
  pairs->results = memory;
  CHOIR_TRY(allocate(pairs, (size_t)pairs->count + 1,
                     sizeof *pairs->merge_begins, &memory));
  pairs->merge_begins = memory;
  for (uint32_t i = 0; i < count; ++i) {
    pairs->results[i] = pairs->merges[i].result;
    ++pairs->merge_begins[pairs->merges[i].left + 1];
  }
  for (int32_t id = 0; id < pairs->count; ++id) {
    pairs->merge_begins[id + 1] += pairs->merge_begins[id];
  }
  if (count > 0) {
    qsort(pairs->merges, count, sizeof *pairs->merges, compare_merges);
  }
  for (uint32_t i = 1; i < count; ++i) {
    const choir__merge_t* merge = &pairs->merges[i];
    if (merge->left == merge[-1].left && merge->right == merge[-1].right) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "byte pairs: '%s', line %zu: the pair stands in line "
                         "%zu too",
                         source->path, merge->rank + lines_before + 1,
                         merge[-1].rank + lines_before + 1);
    }
  }
  return NULL;
}

static choir_status_t read_merges(choir_byte_pairs_t* pairs, source_t* source) {
  CHOIR_TRY(source_open(source));
  size_t lines = source->text[source->bytes - 1] != '\n';
  for (size_t i = 0; i < source->bytes; ++i) lines += source->text[i] == '\n';
  static const char version[] = "#version";
  const bool has_version =
      source->bytes >= sizeof version - 1 &&
      memcmp(source->text, version, sizeof version - 1) == 0;
  if (has_version) {
    source->at = end_of_line(source) + 1;
    --lines;
  }
  if (lines > INT32_MAX) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "byte pairs: '%s' has %zu lines; up to %d are possible",
                       source->path, lines, INT32_MAX);
  }
  void* memory;
  CHOIR_TRY(allocate(pairs, lines, sizeof *pairs->merges, &memory));
  pairs->merges = memory;
  pairs->merge_count = (uint32_t)lines;
  for (uint32_t rank = 0; rank < lines; ++rank) {
    const size_t next = end_of_line(source);
    size_t end = next;
    if (end > source->at && source->text[end - 1] == '\r') --end;
    pairs->merges[rank].rank = rank;
    CHOIR_TRY(read_merge(pairs, source, end, &pairs->merges[rank]));
    source->at = next + 1;
  }
  return index_merges(pairs, source, has_version);
}

choir_status_t choir__byte_pairs_read(choir_byte_pairs_t* pairs,
                                      const char* vocab_path,
                                      const char* merges_path) {
  source_t source = {.allocator = pairs->allocator, .path = vocab_path};
  choir_status_t status = read_vocabulary(pairs, &source);
  source_close(&source);
  if (status) return status;
  source = (source_t){.allocator = pairs->allocator, .path = merges_path};
  status = read_merges(pairs, &source);
  source_close(&source);
  return status;
}
