// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"
#include "io/dataset.h"
#include "io/io_internal.h"

// A pixel is the level of its cell, 64 to 191, and noise of -64 to 63 on it: 0
// to 255 without a cut. Both have 7 bits. Four cells in a row take the four
// words of one random block.
enum { GRID = 4, LEAST = 64, SEVEN_BITS = 127, NOISE_HALF = 64 };
// Purposes of random numbers.
enum { STREAM_LEVELS = 1, STREAM_NOISE = 2 };

static choir_status_t check(const choir_dataset_synthetic_t* config) {
  int64_t bytes = 0;
  int64_t end = 0;
  if (config->seed < 0 || config->first < 0 || config->count < 1 ||
      config->channels < 1 || config->height < 1 || config->width < 1 ||
      config->class_count < 1 || config->class_count > INT32_MAX ||
      __builtin_add_overflow(config->first, config->count, &end) ||
      __builtin_mul_overflow(config->channels, config->height, &bytes) ||
      __builtin_mul_overflow(bytes, config->width, &bytes) ||
      bytes > INT32_MAX ||
      __builtin_mul_overflow(bytes, config->count, &bytes)) {
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "synthetic: seed %lld, first %lld, (count, channels, height, width) "
        "(%lld, %lld, %lld, %lld), class_count %lld; seed and first from 0, "
        "the others from 1, an image below 2^31 bytes and all below 2^63 are "
        "needed",
        (long long)config->seed, (long long)config->first,
        (long long)config->count, (long long)config->channels,
        (long long)config->height, (long long)config->width,
        (long long)config->class_count);
  }
  return NULL;
}

static void draw_image(const choir_dataset_synthetic_t* config, int64_t index,
                       int32_t label, uint8_t* pixel) {
  const choir_random_key_t levels = {(uint64_t)config->seed, STREAM_LEVELS, 0};
  const choir_random_key_t noise = {(uint64_t)config->seed, STREAM_NOISE, 0};
  uint32_t words[4] = {0};
  uint32_t row[GRID];
  uint32_t drawn = 0;  // bytes of noise
  for (int64_t c = 0; c < config->channels; ++c) {
    for (int64_t y = 0; y < config->height; ++y) {
      const int64_t block = c * GRID + y * GRID / config->height;
      choir_random_block(levels, (uint64_t)label, (uint32_t)block, row);
      for (int64_t x = 0; x < config->width; ++x, ++drawn) {
        if (drawn % 16 == 0) {
          choir_random_block(noise, (uint64_t)index, drawn / 16, words);
        }
        const uint32_t level = row[x * GRID / config->width] & SEVEN_BITS;
        const uint32_t byte =
            words[drawn / 4 % 4] >> (8 * (drawn % 4)) & SEVEN_BITS;
        *pixel++ = (uint8_t)(LEAST + level + byte - NOISE_HALF);
      }
    }
  }
}

choir_status_t choir_dataset_create_synthetic(
    const choir_dataset_synthetic_t* config, choir_dataset_t** out_dataset) {
  *out_dataset = NULL;
  CHOIR_TRY(check(config));
  const int64_t shape[] = {config->channels, config->height, config->width};
  uint8_t* pixels;
  int32_t* labels;
  CHOIR_TRY(choir__dataset_create_blank(config->count, shape,
                                        config->class_count, &pixels, &labels,
                                        out_dataset));
  const int64_t image_bytes = choir_dataset_image_bytes(*out_dataset);
  for (int64_t i = 0; i < config->count; ++i) {
    const int64_t index = config->first + i;
    labels[i] = (int32_t)(index % config->class_count);
    draw_image(config, index, labels[i], pixels + i * image_bytes);
  }
  return NULL;
}
