// SPDX-License-Identifier: Apache-2.0
// Header, checksum and the order of things in a sparse message; gaps are in
// compress_gaps.c, values of few bits in compress_levels.c.
#include <math.h>
#include <string.h>

#include "dist/compress_internal.h"
#include "dist/compress_kernels_internal.h"

enum {
  SLACK = 8,
  CHUNK = 1024,  // values on the stack; the largest block
  LEAST_BLOCK = 128,
  MOST_EXPONENT = 126,
  MOST_RICE = 30,
  CHECKED = 8,  // the checksum is of what follows here
};

static const uint8_t magic[4] = {'C', 'H', 'S', '1'};

typedef struct header_s {
  uint8_t magic[4];
  uint32_t checksum;
  uint8_t kind;
  uint8_t rice;
  int8_t exponent;
  uint8_t block_log2;
  uint32_t count;
  uint32_t k;
  uint32_t gap_bytes;
  double weight;
} header_t;
_Static_assert(sizeof(header_t) == 32, "a header has no gaps");

static bool is_few_bits(choir__value_kind_t kind) {
  return kind >= CHOIR__VALUES_BITS2 && kind <= CHOIR__VALUES_BITS4;
}

static size_t values_bytes(const choir__message_config_t* config, int64_t k) {
  if (config->kind == CHOIR__VALUES_F32) return (size_t)k * sizeof(float);
  if (config->kind == CHOIR__VALUES_F16) return (size_t)k * sizeof(uint16_t);
  return choir__levels_bytes((int32_t)config->kind, config->block, k);
}

static choir_status_t check_config(const choir__message_config_t* config) {
  if ((int)config->kind < CHOIR__VALUES_F32 ||
      config->kind > CHOIR__VALUES_BITS4)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: no kind of values has number %d; 0 is "
                       "f32, 1 f16, 2 to 4 are bits",
                       (int)config->kind);
  if (config->kind == CHOIR__VALUES_F16 &&
      (config->exponent < -MOST_EXPONENT || config->exponent > MOST_EXPONENT))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: exponent %d; -126 .. 126 are allowed",
                       (int)config->exponent);
  if (is_few_bits(config->kind) &&
      (config->block < LEAST_BLOCK || config->block > CHUNK ||
       (config->block & (config->block - 1))))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: blocks of %d values; 128, 256, 512 or "
                       "1024 are allowed",
                       (int)config->block);
  if (!(config->weight >= 0 && isfinite(config->weight)))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: weight %g; a finite one of 0 or more "
                       "is needed",
                       config->weight);
  return NULL;
}

static choir_status_t check_counts(int64_t count, int64_t k) {
  if (k < 0 || k > count || count > INT32_MAX)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: k is %lld of %lld elements; 0 .. count "
                       "are allowed, of 2^31 - 1 at most",
                       (long long)k, (long long)count);
  return NULL;
}

// Each byte and each word changes it: a step maps different states to different
// ones.
uint32_t choir__message_checksum(const uint8_t* message, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = CHECKED; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    const size_t left = bytes - i;
    memcpy(&word, message + i, left < sizeof(word) ? left : sizeof(word));
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return (uint32_t)(hash ^ hash >> 32);
}

size_t choir__message_most_bytes(const choir__message_config_t* config,
                                 int64_t count, int64_t k) {
  choir_status_t status =
      choir_status_join(check_config(config), check_counts(count, k));
  if (status) {
    choir_status_free(status);
    return 0;
  }
  return sizeof(header_t) +
         choir__gaps_most_bytes(count, k, choir__gaps_rice(count, k)) +
         values_bytes(config, k) + SLACK;
}

// ---- Values ----

static uint8_t* encode_f16(const choir__message_config_t* config,
                           const float* values, int64_t k, uint8_t* out,
                           float* out_sent, int64_t* clipped) {
  uint16_t halves[CHUNK];
  for (int64_t done = 0; done < k; done += CHUNK) {
    const int64_t n = k - done < CHUNK ? k - done : CHUNK;
    *clipped += choir__half_encode(CHOIR_DTYPE_F16, values + done, n,
                                   config->exponent, INFINITY, halves);
    if (out_sent)
      choir__half_decode(CHOIR_DTYPE_F16, halves, n, config->exponent,
                         out_sent + done);
    memcpy(out, halves, (size_t)n * sizeof(uint16_t));
    out += (size_t)n * sizeof(uint16_t);
  }
  return out;
}

static uint8_t* encode_values(const choir__message_config_t* config,
                              const float* values, int64_t k, uint8_t* out,
                              float* out_sent, int64_t* clipped) {
  if (config->kind == CHOIR__VALUES_F32) {
    memcpy(out, values, (size_t)k * sizeof(float));
    if (out_sent) memmove(out_sent, values, (size_t)k * sizeof(float));
    return out + (size_t)k * sizeof(float);
  }
  if (config->kind == CHOIR__VALUES_F16)
    return encode_f16(config, values, k, out, out_sent, clipped);
  for (int64_t done = 0; done < k; done += config->block) {
    const int64_t n = k - done < config->block ? k - done : config->block;
    out += choir__levels_encode((int32_t)config->kind, values + done, n, out,
                                out_sent ? out_sent + done : NULL);
  }
  return out;
}

// The next n values from `bytes`, n a block or the rest. Returns where they
// end.
static const uint8_t* decode_values(const choir__message_config_t* config,
                                    const uint8_t* bytes, int64_t n,
                                    float* out_values) {
  if (config->kind == CHOIR__VALUES_F32) {
    memcpy(out_values, bytes, (size_t)n * sizeof(float));
    return bytes + (size_t)n * sizeof(float);
  }
  if (config->kind == CHOIR__VALUES_F16) {
    uint16_t halves[CHUNK];
    memcpy(halves, bytes, (size_t)n * sizeof(uint16_t));
    choir__half_decode(CHOIR_DTYPE_F16, halves, n, config->exponent,
                       out_values);
    return bytes + (size_t)n * sizeof(uint16_t);
  }
  return bytes +
         choir__levels_decode((int32_t)config->kind, bytes, n, out_values);
}

// ---- Messages ----

choir_status_t choir__message_encode(const choir__message_config_t* config,
                                     int64_t count, int64_t k,
                                     const int32_t* indices,
                                     const float* values, void* message,
                                     size_t* out_bytes, float* out_sent,
                                     int64_t* out_clipped) {
  *out_bytes = 0;
  if (out_clipped) *out_clipped = 0;
  CHOIR_TRY(check_config(config));
  CHOIR_TRY(check_counts(count, k));
  if (!message || (k > 0 && (!indices || !values)))
    return CHOIR_ERROR(INVALID_ARGUMENT, "sparse message: %s is NULL",
                       !message   ? "message"
                       : !indices ? "indices"
                                  : "values");
  uint8_t* bytes = message;
  uint8_t* const gaps = bytes + sizeof(header_t);
  const int32_t rice = choir__gaps_rice(count, k);
  size_t gap_bytes = 0;
  CHOIR_TRY(choir__gaps_encode(count, k, rice, indices, gaps, &gap_bytes));
  int64_t clipped = 0;
  const uint8_t* end = gaps + gap_bytes;
  if (k > 0)
    end =
        encode_values(config, values, k, gaps + gap_bytes, out_sent, &clipped);
  header_t header = {
      .kind = (uint8_t)config->kind,
      .rice = (uint8_t)rice,
      .count = (uint32_t)count,
      .k = (uint32_t)k,
      .gap_bytes = (uint32_t)gap_bytes,
      .weight = config->weight,
  };
  memcpy(header.magic, magic, sizeof(magic));
  if (config->kind == CHOIR__VALUES_F16)
    header.exponent = (int8_t)config->exponent;
  if (is_few_bits(config->kind))
    header.block_log2 = (uint8_t)__builtin_ctz((unsigned)config->block);
  memcpy(bytes, &header, sizeof(header));
  *out_bytes = (size_t)(end - bytes);
  header.checksum = choir__message_checksum(bytes, *out_bytes);
  memcpy(bytes, &header, sizeof(header));
  if (out_clipped) *out_clipped = clipped;
  return NULL;
}

static choir_status_t check_header(const header_t* header, int64_t count) {
  if (memcmp(header->magic, magic, sizeof(magic)) != 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: it begins with bytes %02x %02x %02x "
                       "%02x, not with 'CHS1'",
                       header->magic[0], header->magic[1], header->magic[2],
                       header->magic[3]);
  if (header->count != (uint64_t)count)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: it is of %lld elements; %lld are "
                       "expected here",
                       (long long)header->count, (long long)count);
  CHOIR_TRY(check_counts(header->count, header->k));
  if (header->rice > MOST_RICE)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: Rice parameter %d; 0 .. %d are allowed",
                       (int)header->rice, (int)MOST_RICE);
  return NULL;
}

choir_status_t choir__message_open(const void* message, size_t bytes,
                                   int64_t count,
                                   choir__message_t* out_message) {
  memset(out_message, 0, sizeof(*out_message));
  if (!message)
    return CHOIR_ERROR(INVALID_ARGUMENT, "sparse message: message is NULL");
  CHOIR_TRY(check_counts(count, 0));
  header_t header;
  if (bytes < sizeof(header))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: %zu bytes came; a header has %zu",
                       bytes, sizeof(header));
  memcpy(&header, message, sizeof(header));
  CHOIR_TRY(check_header(&header, count));
  const choir__message_config_t config = {
      .kind = (choir__value_kind_t)header.kind,
      .exponent = header.exponent,
      .block = header.block_log2 < 31 ? 1 << header.block_log2 : 0,
      .weight = header.weight,
  };
  CHOIR_TRY(check_config(&config));
  const size_t needed = sizeof(header) + (size_t)header.gap_bytes +
                        values_bytes(&config, header.k);
  if (bytes != needed)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: %zu bytes came; its header speaks of "
                       "%zu",
                       bytes, needed);
  const uint8_t* data = message;
  const uint32_t checksum = choir__message_checksum(data, bytes);
  if (checksum != header.checksum)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "sparse message: the checksum is %08x, the header's %08x:"
        " bytes were changed on the way",
        (unsigned)checksum, (unsigned)header.checksum);
  out_message->count = count;
  out_message->k = header.k;
  out_message->config = config;
  out_message->rice = header.rice;
  out_message->gaps = data + sizeof(header);
  out_message->gap_bytes = header.gap_bytes;
  out_message->values = data + sizeof(header) + header.gap_bytes;
  return NULL;
}

static choir__gaps_reader_t read_gaps(const choir__message_t* message) {
  return (choir__gaps_reader_t){.gaps = message->gaps,
                                .bytes = message->gap_bytes,
                                .count = message->count,
                                .k = message->k,
                                .rice = message->rice,
                                .index = -1};
}

// Values that are decoded at a time.
static int64_t step_of(const choir__message_t* message) {
  return is_few_bits(message->config.kind) ? message->config.block : CHUNK;
}

choir_status_t choir__message_decode(const choir__message_t* message,
                                     int32_t* out_indices, float* out_values) {
  choir__gaps_reader_t reader = read_gaps(message);
  CHOIR_TRY(choir__gaps_decode(&reader, message->k, out_indices));
  const int64_t step = step_of(message);
  const uint8_t* values = message->values;
  for (int64_t done = 0; done < message->k; done += step) {
    const int64_t n = message->k - done < step ? message->k - done : step;
    values = decode_values(&message->config, values, n, out_values + done);
  }
  return NULL;
}

choir_status_t choir__message_add(const choir__message_t* message, float share,
                                  float* dense) {
  int32_t indices[CHUNK];
  float chunk[CHUNK];
  choir__gaps_reader_t reader = read_gaps(message);
  const int64_t step = step_of(message);
  const uint8_t* values = message->values;
  // Gaps of no elements are checked as well.
  if (message->k == 0) return choir__gaps_decode(&reader, 0, indices);
  for (int64_t done = 0; done < message->k; done += step) {
    const int64_t n = message->k - done < step ? message->k - done : step;
    CHOIR_TRY(choir__gaps_decode(&reader, n, indices));
    values = decode_values(&message->config, values, n, chunk);
    choir__compress_table()->scatter_add(indices, chunk, n, share, dense);
  }
  return NULL;
}
