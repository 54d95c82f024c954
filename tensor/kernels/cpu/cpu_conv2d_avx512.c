// SPDX-License-Identifier: Apache-2.0
// The loops of cpu_conv2d_avx512.h, built for AVX-512. A register tile is a
// constant number of filters (channels) by pixels (taps): each function below
// is inlined once for every size, so that the tile stays in registers.
#include "tensor/kernels/cpu/cpu_conv2d_avx512.h"

#if defined(__AVX512F__)

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define LANES CHOIR__CONV_LANES
#define BODY static inline __attribute__((always_inline))
// Before loops of a constant few: gcc has to take them apart early for an
// array of sums to be registers all along.
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

// ---- Sixteen rows of sixteen elements to columns ----

BODY void transpose(__m512 r[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int k = 0; k < 2; k++) {
      const __m512d a = _mm512_castps_pd(t[i + k]);
      const __m512d b = _mm512_castps_pd(t[i + k + 2]);
      r[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // r[4 g + c]: columns c, c+4, c+8, c+12 of rows 4g .. 4g+3.
  for (int c = 0; c < 4; c++) {
    t[c] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88);
    t[c + 4] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
    t[c + 8] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88);
    t[c + 12] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
  }
  for (int c = 0; c < 4; c++) {
    r[c] = _mm512_shuffle_f32x4(t[c], t[c + 8], 0x88);
    r[c + 4] = _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0x88);
    r[c + 8] = _mm512_shuffle_f32x4(t[c], t[c + 8], 0xdd);
    r[c + 12] = _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0xdd);
  }
}

// `count` elements of up to sixteen samples to vectors.
static void rows_in(const float* src, int64_t sample_stride, int64_t samples,
                    int64_t count, float* vectors) {
  const __m512 zero = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t left = count - i;
    const __mmask16 mask =
        left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
    __m512 r[16];
    for (int s = 0; s < 16; s++)
      r[s] = s < samples
                 ? _mm512_maskz_loadu_ps(mask, src + s * sample_stride + i)
                 : zero;
    transpose(r);
    const int64_t n = left < 16 ? left : 16;
    if (n == 16) {
      for (int k = 0; k < 16; k++)
        _mm512_store_ps(vectors + (i + k) * LANES, r[k]);
    } else {
      float rest[16 * LANES] __attribute__((aligned(64)));
      for (int k = 0; k < 16; k++) _mm512_store_ps(rest + k * LANES, r[k]);
      memcpy(vectors + i * LANES, rest, (size_t)(n * LANES) * sizeof(float));
    }
  }
}

// The way back.
static void rows_out(const float* vectors, int64_t count, float* dst,
                     int64_t sample_stride, int64_t samples, bool accumulate) {
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t left = count - i;
    const __mmask16 mask =
        left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
    __m512 r[16];
    for (int k = 0; k < 16; k++)
      r[k] = k < left ? _mm512_load_ps(vectors + (i + k) * LANES)
                      : _mm512_setzero_ps();
    transpose(r);
    for (int s = 0; s < 16 && s < samples; s++) {
      float* to = dst + s * sample_stride + i;
      if (accumulate)
        r[s] = _mm512_add_ps(r[s], _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, r[s]);
    }
  }
}

static int64_t samples_in(const choir__conv_t* conv, int64_t block) {
  const int64_t left = conv->samples - block * LANES;
  return left < LANES ? left : LANES;
}

void choir__conv_pack_x(const choir__conv_t* conv, int64_t block,
                        float* vectors) {
  const choir__conv_image_t* x = &conv->x;
  const int64_t side = conv->padding[1] * x->channels * LANES;
  const int64_t row = x->width * x->channels;
  const int64_t padded = row * LANES + 2 * side;
  const float* src = x->data + block * LANES * x->sample_stride;
  const int64_t samples = samples_in(conv, block);
  float* to = vectors;
  memset(to, 0, (size_t)(conv->padding[0] * padded) * sizeof(float));
  to += conv->padding[0] * padded;
  if (side == 0 && x->row_stride == row) {
    // Rows follow one another in both: one long row.
    rows_in(src, x->sample_stride, samples, row * x->height, to);
    to += x->height * padded;
  } else {
    for (int64_t r = 0; r < x->height; r++, to += padded) {
      memset(to, 0, (size_t)side * sizeof(float));
      rows_in(src + r * x->row_stride, x->sample_stride, samples, row,
              to + side);
      memset(to + side + row * LANES, 0, (size_t)side * sizeof(float));
    }
  }
  memset(to, 0, (size_t)(conv->padding[0] * padded) * sizeof(float));
}

void choir__conv_pack_y(const choir__conv_t* conv, int64_t block,
                        float* vectors) {
  const choir__conv_image_t* y = &conv->y;
  const int64_t row = y->width * y->channels;
  const float* src = y->data + block * LANES * y->sample_stride;
  const int64_t samples = samples_in(conv, block);
  if (y->row_stride == row) {
    rows_in(src, y->sample_stride, samples, row * y->height, vectors);
    return;
  }
  for (int64_t r = 0; r < y->height; r++)
    rows_in(src + r * y->row_stride, y->sample_stride, samples, row,
            vectors + r * row * LANES);
}

// ---- Forward ----

typedef struct tile_s {
  const float* x;          // the first pixel's window
  int64_t pixel_stride;    // floats from window to window
  const int32_t* offsets;  // floats from a window to a tap
  int64_t taps;
  const float* weights;  // (taps, filters)
  const float* bias;     // (filters)
  float* y;              // (pixels, all filters) vectors
  int64_t y_stride;      // floats from pixel to pixel
  bool relu;
} tile_t;

BODY void forward_tile(const tile_t* t, const int filters, const int pixels) {
  __m512 sums[CHOIR__CONV_FILTERS][CHOIR__CONV_PIXELS];
  UNROLL
  for (int f = 0; f < filters; f++) UNROLL
  for (int p = 0; p < pixels; p++) sums[f][p] = _mm512_set1_ps(t->bias[f]);
  const float* w = t->weights;
  for (int64_t k = 0; k < t->taps; k++, w += filters) {
    const float* x = t->x + t->offsets[k];
    __m512 values[CHOIR__CONV_PIXELS];
    UNROLL
    for (int p = 0; p < pixels; p++)
      values[p] = _mm512_load_ps(x + p * t->pixel_stride);
    UNROLL
    for (int f = 0; f < filters; f++) {
      const __m512 weight = _mm512_set1_ps(w[f]);
      UNROLL
      for (int p = 0; p < pixels; p++)
        sums[f][p] = _mm512_fmadd_ps(weight, values[p], sums[f][p]);
    }
  }
  // A NaN in the second operand of max stays.
  const __m512 floor = _mm512_set1_ps(t->relu ? 0.0f : -INFINITY);
  UNROLL
  for (int f = 0; f < filters; f++) UNROLL
  for (int p = 0; p < pixels; p++)
    _mm512_store_ps(t->y + p * t->y_stride + f * LANES,
                    _mm512_max_ps(floor, sums[f][p]));
}

#define FORWARD(filters, pixels)                                      \
  static __attribute__((noinline)) void forward_##filters##_##pixels( \
      const tile_t* tile) {                                           \
    forward_tile(tile, filters, pixels);                              \
  }
#define FORWARD_ROW(filters) \
  FORWARD(filters, 1)        \
  FORWARD(filters, 2)        \
  FORWARD(filters, 3)        \
  FORWARD(filters, 4)
FORWARD_ROW(1)
FORWARD_ROW(2)
FORWARD_ROW(3)
FORWARD_ROW(4)
FORWARD_ROW(5)

#define FORWARD_ENTRY(filters)                                           \
  {                                                                      \
    forward_##filters##_1, forward_##filters##_2, forward_##filters##_3, \
        forward_##filters##_4                                            \
  }
static void (*const forward_tiles[5][4])(const tile_t* tile) = {
    FORWARD_ENTRY(1), FORWARD_ENTRY(2), FORWARD_ENTRY(3), FORWARD_ENTRY(4),
    FORWARD_ENTRY(5)};

void choir__conv_forward(const choir__conv_t* conv, int64_t block,
                         const float* x_vectors, float* row) {
  const choir__conv_image_t* y = &conv->y;
  const int64_t filters = y->channels;
  const int64_t filter_blocks =
      choir__conv_blocks(filters, CHOIR__CONV_FILTERS);
  const int64_t pixel_blocks = choir__conv_blocks(y->width, CHOIR__CONV_PIXELS);
  const int64_t pixel = conv->x.channels * LANES;
  const int64_t padded_row = (conv->x.width + 2 * conv->padding[1]) * pixel;
  tile_t tile = {.pixel_stride = conv->stride[1] * pixel,
                 .offsets = conv->offsets,
                 .taps = conv->taps,
                 .y_stride = filters * LANES,
                 .relu = conv->relu};
  for (int64_t oy = 0; oy < y->height; oy++) {
    for (int64_t pb = 0; pb < pixel_blocks; pb++) {
      const int64_t ox = choir__conv_block_start(y->width, pixel_blocks, pb);
      const int64_t pixels =
          choir__conv_block_start(y->width, pixel_blocks, pb + 1) - ox;
      tile.x = x_vectors + oy * conv->stride[0] * padded_row +
               ox * tile.pixel_stride;
      for (int64_t fb = 0; fb < filter_blocks; fb++) {
        const int64_t f = choir__conv_block_start(filters, filter_blocks, fb);
        const int64_t n =
            choir__conv_block_start(filters, filter_blocks, fb + 1) - f;
        tile.weights = conv->weights + f * conv->taps;
        tile.bias = conv->bias + f;
        tile.y = row + (ox * filters + f) * LANES;
        forward_tiles[n - 1][pixels - 1](&tile);
      }
    }
    rows_out(row, y->width * filters,
             y->data + block * LANES * y->sample_stride + oy * y->row_stride,
             y->sample_stride, samples_in(conv, block), conv->accumulate);
  }
}

// ---- Forward and the pooling of 2 x 2 windows ----
//
// A register tile is one window: its four sums never see memory.

typedef struct pool_tile_s {
  const float* x;          // the window's first pixel
  int64_t row_stride;      // floats to the pixel below
  int64_t pixel_stride;    // floats to the pixel on the right
  const int32_t* offsets;  // floats from a pixel to a tap
  int64_t taps;
  const float* weights;  // (taps, filters)
  const float* bias;     // (filters)
  float* y;              // (filters) vectors
  uint8_t* winners;      // (filters) times sixteen
  bool relu;
} pool_tile_t;

BODY void pool_tile(const pool_tile_t* t, const int filters) {
  __m512 sums[CHOIR__CONV_FILTERS][4];
  UNROLL
  for (int f = 0; f < filters; f++) UNROLL
  for (int p = 0; p < 4; p++) sums[f][p] = _mm512_set1_ps(t->bias[f]);
  const float* w = t->weights;
  for (int64_t k = 0; k < t->taps; k++, w += filters) {
    const float* x = t->x + t->offsets[k];
    const __m512 values[4] = {
        _mm512_load_ps(x), _mm512_load_ps(x + t->pixel_stride),
        _mm512_load_ps(x + t->row_stride),
        _mm512_load_ps(x + t->row_stride + t->pixel_stride)};
    UNROLL
    for (int f = 0; f < filters; f++) {
      const __m512 weight = _mm512_set1_ps(w[f]);
      UNROLL
      for (int p = 0; p < 4; p++)
        sums[f][p] = _mm512_fmadd_ps(weight, values[p], sums[f][p]);
    }
  }
  const __m512 floor = _mm512_set1_ps(t->relu ? 0.0f : -INFINITY);
  UNROLL
  for (int f = 0; f < filters; f++) {
    // A NaN in the second operand of max stays.
    __m512 best = _mm512_max_ps(floor, sums[f][0]);
    __m512i place = _mm512_setzero_si512();
    UNROLL
    for (int p = 1; p < 4; p++) {
      const __m512 value = _mm512_max_ps(floor, sums[f][p]);
      // The first of equals wins, and NaN counts as larger than all.
      const __mmask16 wins = _mm512_mask_cmp_ps_mask(
          _mm512_cmp_ps_mask(best, best, _CMP_ORD_Q), value, best, _CMP_NLE_UQ);
      best = _mm512_mask_mov_ps(best, wins, value);
      place = _mm512_mask_mov_epi32(place, wins, _mm512_set1_epi32(p));
    }
    _mm512_store_ps(t->y + f * LANES, best);
    _mm_store_si128((__m128i*)(t->winners + f * LANES),
                    _mm512_cvtepi32_epi8(place));
  }
}

#define POOL(filters)                                                          \
  static                                                                       \
      __attribute__((noinline)) void pool_##filters(const pool_tile_t* tile) { \
    pool_tile(tile, filters);                                                  \
  }
POOL(1)
POOL(2)
POOL(3)
POOL(4)
POOL(5)
static void (*const pool_tiles[5])(const pool_tile_t* tile) = {
    pool_1, pool_2, pool_3, pool_4, pool_5};

// `count` times sixteen bytes to rows of bytes.
static void bytes_out(const uint8_t* bytes, int64_t count, uint8_t* dst,
                      int64_t sample_stride, int64_t samples) {
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t n = count - i < 16 ? count - i : 16;
    __m128i r[16], t[16];
    for (int k = 0; k < 16; k++)
      r[k] = k < n ? _mm_load_si128((const __m128i*)(bytes + (i + k) * LANES))
                   : _mm_setzero_si128();
    // Four times the even shuffle of the first eight rows with the last eight
    // is the transposition.
    for (int pass = 0; pass < 2; pass++) {
      for (int k = 0; k < 8; k++) {
        t[2 * k] = _mm_unpacklo_epi8(r[k], r[k + 8]);
        t[2 * k + 1] = _mm_unpackhi_epi8(r[k], r[k + 8]);
      }
      for (int k = 0; k < 8; k++) {
        r[2 * k] = _mm_unpacklo_epi8(t[k], t[k + 8]);
        r[2 * k + 1] = _mm_unpackhi_epi8(t[k], t[k + 8]);
      }
    }
    const __mmask16 mask = (__mmask16)(0xffffu >> (16 - n));
    for (int s = 0; s < 16 && s < samples; s++)
      _mm_mask_storeu_epi8(dst + s * sample_stride + i, mask, r[s]);
  }
}

void choir__conv_forward_pool(const choir__conv_t* conv, int64_t block,
                              const float* x_vectors, float* row,
                              uint8_t* winner_row) {
  const choir__conv_image_t* y = &conv->y;
  const int64_t filters = y->channels;
  const int64_t filter_blocks =
      choir__conv_blocks(filters, CHOIR__CONV_FILTERS);
  const int64_t pixel = conv->x.channels * LANES;
  const int64_t padded_row = (conv->x.width + 2 * conv->padding[1]) * pixel;
  pool_tile_t tile = {.row_stride = conv->stride[0] * padded_row,
                      .pixel_stride = conv->stride[1] * pixel,
                      .offsets = conv->offsets,
                      .taps = conv->taps,
                      .relu = conv->relu};
  for (int64_t oy = 0; oy < y->height; oy++) {
    for (int64_t ox = 0; ox < y->width; ox++) {
      tile.x =
          x_vectors + 2 * oy * tile.row_stride + 2 * ox * tile.pixel_stride;
      for (int64_t fb = 0; fb < filter_blocks; fb++) {
        const int64_t f = choir__conv_block_start(filters, filter_blocks, fb);
        const int64_t n =
            choir__conv_block_start(filters, filter_blocks, fb + 1) - f;
        tile.weights = conv->weights + f * conv->taps;
        tile.bias = conv->bias + f;
        tile.y = row + (ox * filters + f) * LANES;
        tile.winners = winner_row + (ox * filters + f) * LANES;
        pool_tiles[n - 1](&tile);
      }
    }
    const int64_t samples = samples_in(conv, block);
    rows_out(row, y->width * filters,
             y->data + block * LANES * y->sample_stride + oy * y->row_stride,
             y->sample_stride, samples, false);
    bytes_out(winner_row, y->width * filters,
              conv->winners + block * LANES * conv->winner_sample_stride +
                  oy * conv->winner_row_stride,
              conv->winner_sample_stride, samples);
  }
}

// ---- Gradient of the data ----
//
// Four pixels of dy touch 3 + kernel_width columns of dx. All of them stay in
// registers while rows of the kernel and filters go by; nothing outside the
// image is multiplied.

typedef struct grad_tile_s {
  const float* dy;       // the first pixel of the first valid kernel row
  int64_t dy_row;        // floats from there to the next kernel row's
  int64_t pixel_stride;  // floats
  int64_t filters;
  int64_t rows;          // valid kernel rows
  const float* weights;  // (rows, filters, kernel_width, channels)
  float* dx;             // the first column
  int64_t dx_stride;     // floats from column to column
} grad_tile_t;

BODY void grad_tile(const grad_tile_t* t, const int width, const int channels,
                    const int pixels) {
  __m512 sums[4][8];
  UNROLL
  for (int c = 0; c < channels; c++) UNROLL
  for (int x = 0; x < pixels + width - 1; x++)
    sums[c][x] = _mm512_load_ps(t->dx + x * t->dx_stride + c * LANES);
  const float* w = t->weights;
  for (int64_t r = 0; r < t->rows; r++) {
    const float* dy = t->dy + r * t->dy_row;
    for (int64_t f = 0; f < t->filters; f++, dy += LANES) {
      __m512 values[CHOIR__CONV_PIXELS];
      UNROLL
      for (int p = 0; p < pixels; p++)
        values[p] = _mm512_load_ps(dy + p * t->pixel_stride);
      UNROLL
      for (int k = 0; k < width; k++) {
        UNROLL
        for (int c = 0; c < channels; c++) {
          const __m512 weight = _mm512_set1_ps(w[k * channels + c]);
          UNROLL
          for (int p = 0; p < pixels; p++)
            sums[c][p + k] = _mm512_fmadd_ps(weight, values[p], sums[c][p + k]);
        }
      }
      w += width * channels;
    }
  }
  UNROLL
  for (int c = 0; c < channels; c++) UNROLL
  for (int x = 0; x < pixels + width - 1; x++)
    _mm512_store_ps(t->dx + x * t->dx_stride + c * LANES, sums[c][x]);
}

#define GRAD(width, channels, pixels)                                         \
  static __attribute__((noinline)) void grad_##width##_##channels##_##pixels( \
      const grad_tile_t* tile) {                                              \
    grad_tile(tile, width, channels, pixels);                                 \
  }
#define GRAD_ROW(width, channels) \
  GRAD(width, channels, 1)        \
  GRAD(width, channels, 2)        \
  GRAD(width, channels, 3)        \
  GRAD(width, channels, 4)
GRAD_ROW(3, 1)
GRAD_ROW(3, 2)
GRAD_ROW(3, 3)
GRAD_ROW(3, 4)
GRAD_ROW(5, 1)
GRAD_ROW(5, 2)
GRAD_ROW(5, 3)

#define GRAD_ENTRY(width, channels)                                  \
  {                                                                  \
    grad_##width##_##channels##_1, grad_##width##_##channels##_2,    \
        grad_##width##_##channels##_3, grad_##width##_##channels##_4 \
  }
// By kernel width (3, 5), channels, pixels.
static void (*const grad_tiles[2][4][4])(const grad_tile_t* tile) = {
    {GRAD_ENTRY(3, 1), GRAD_ENTRY(3, 2), GRAD_ENTRY(3, 3), GRAD_ENTRY(3, 4)},
    {GRAD_ENTRY(5, 1), GRAD_ENTRY(5, 2), GRAD_ENTRY(5, 3)}};

void choir__conv_grad_data(const choir__conv_t* conv, int64_t block,
                           const float* dy_vectors, float* row) {
  const choir__conv_image_t *dx = &conv->x, *dy = &conv->y;
  const int64_t width = conv->kernel[1], filters = dy->channels;
  const int64_t most = choir__conv_grad_channels(width);
  const int64_t channel_blocks = choir__conv_blocks(dx->channels, most);
  const int64_t pixel_blocks =
      choir__conv_blocks(dy->width, CHOIR__CONV_PIXELS);
  const int64_t padded_width = dy->width + width - 1;
  const int64_t dy_row = dy->width * filters * LANES;
  grad_tile_t tile = {.dy_row = -dy_row,
                      .pixel_stride = filters * LANES,
                      .filters = filters,
                      .dx_stride = dx->channels * LANES};
  for (int64_t iy = 0; iy < dx->height; iy++) {
    // Kernel row k reads row iy + padding - k of dy.
    const int64_t place = iy + conv->padding[0];
    const int64_t first = place >= dy->height ? place - dy->height + 1 : 0;
    const int64_t end =
        place + 1 < conv->kernel[0] ? place + 1 : conv->kernel[0];
    memset(row, 0,
           (size_t)(padded_width * dx->channels * LANES) * sizeof(float));
    tile.rows = end - first;
    for (int64_t cb = 0; cb < channel_blocks && tile.rows > 0; cb++) {
      const int64_t c =
          choir__conv_block_start(dx->channels, channel_blocks, cb);
      const int64_t n =
          choir__conv_block_start(dx->channels, channel_blocks, cb + 1) - c;
      tile.weights = conv->weights + c * conv->kernel[0] * filters * width +
                     first * filters * width * n;
      for (int64_t pb = 0; pb < pixel_blocks; pb++) {
        const int64_t ox = choir__conv_block_start(dy->width, pixel_blocks, pb);
        const int64_t pixels =
            choir__conv_block_start(dy->width, pixel_blocks, pb + 1) - ox;
        tile.dy =
            dy_vectors + (place - first) * dy_row + ox * tile.pixel_stride;
        tile.dx = row + (ox * dx->channels + c) * LANES;
        grad_tiles[width == 5][n - 1][pixels - 1](&tile);
      }
    }
    rows_out(row + conv->padding[1] * dx->channels * LANES,
             dx->width * dx->channels,
             dx->data + block * LANES * dx->sample_stride + iy * dx->row_stride,
             dx->sample_stride, samples_in(conv, block), conv->accumulate);
  }
}

// ---- Gradient of the weights ----

// The sums of four vectors' lanes.
BODY __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd =
      _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 low = _mm512_castpd_ps(
      _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
  const __m512 high = _mm512_castpd_ps(
      _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
  const __m512 all = _mm512_add_ps(low, high);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all),
                                    _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half),
                    _mm256_extractf128_ps(half, 1));
}

typedef struct weight_tile_s {
  const float* x;                  // the first window
  int64_t x_row;                   // floats from a row of windows to the next
  int64_t x_pixel;                 // floats from window to window
  int64_t taps[CHOIR__CONV_TAPS];  // floats from a window to each tap
  const float* dy;                 // the first filter of the first pixel
  int64_t dy_pixel;                // floats; rows follow one another
  int64_t height, width;
  float* sums;  // (filters, taps)
} weight_tile_t;

BODY void weight_tile(const weight_tile_t* t, const int filters,
                      const int taps) {
  __m512 sums[CHOIR__CONV_FILTERS * CHOIR__CONV_TAPS + 3];
  UNROLL
  for (int i = 0; i < filters * taps + 3; i++) sums[i] = _mm512_setzero_ps();
  const float* dy = t->dy;
  for (int64_t r = 0; r < t->height; r++) {
    const float* x = t->x + r * t->x_row;
    for (int64_t p = 0; p < t->width; p++) {
      __m512 values[CHOIR__CONV_TAPS];
      UNROLL
      for (int k = 0; k < taps; k++) values[k] = _mm512_load_ps(x + t->taps[k]);
      UNROLL
      for (int f = 0; f < filters; f++) {
        const __m512 slope = _mm512_load_ps(dy + f * LANES);
        UNROLL
        for (int k = 0; k < taps; k++)
          sums[f * taps + k] =
              _mm512_fmadd_ps(slope, values[k], sums[f * taps + k]);
      }
      x += t->x_pixel;
      dy += t->dy_pixel;
    }
  }
  UNROLL
  for (int i = 0; i < filters * taps; i += 4)
    _mm_storeu_ps(t->sums + i,
                  sum_lanes(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
}

#define WEIGHT(filters, taps)                                      \
  static __attribute__((noinline)) void weight_##filters##_##taps( \
      const weight_tile_t* tile) {                                 \
    weight_tile(tile, filters, taps);                              \
  }
#define WEIGHT_ROW(filters) \
  WEIGHT(filters, 1)        \
  WEIGHT(filters, 2)        \
  WEIGHT(filters, 3)        \
  WEIGHT(filters, 4)        \
  WEIGHT(filters, 5)
WEIGHT_ROW(1)
WEIGHT_ROW(2)
WEIGHT_ROW(3)
WEIGHT_ROW(4)
WEIGHT_ROW(5)

#define WEIGHT_ENTRY(filters)                                         \
  {                                                                   \
    weight_##filters##_1, weight_##filters##_2, weight_##filters##_3, \
        weight_##filters##_4, weight_##filters##_5                    \
  }
static void (*const weight_tiles[5][5])(const weight_tile_t* tile) = {
    WEIGHT_ENTRY(1), WEIGHT_ENTRY(2), WEIGHT_ENTRY(3), WEIGHT_ENTRY(4),
    WEIGHT_ENTRY(5)};

// What the register tiles of one block of filters and channels read of x and
// dy: it limits the rows of dy that are taken at a time. Some more than the
// first cache, as each tile ends with the adding up of lanes.
#define TILE_BYTES (120 * 1024)

static int64_t tile_rows(const choir__conv_t* conv) {
  const int64_t vector = LANES * (int64_t)sizeof(float);
  const int64_t dy_row = CHOIR__CONV_FILTERS * conv->y.width * vector;
  const int64_t x_row =
      CHOIR__CONV_TAPS * (conv->x.width + 2 * conv->padding[1]) * vector;
  int64_t rows = (TILE_BYTES - x_row * (conv->kernel[0] - 1)) /
                 (dy_row + x_row * conv->stride[0]);
  // Sums over few pixels are not worth the adding up of lanes.
  const int64_t least = (32 + conv->y.width - 1) / conv->y.width;
  if (rows < least) rows = least;
  return rows < conv->y.height ? rows : conv->y.height;
}

// Taps first .. first + count - 1 for one block of filters and rows of dy.
static void add_taps(const choir__conv_t* conv, weight_tile_t* tile, int64_t f,
                     int64_t filters, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; i++) tile->taps[i] = conv->offsets[first + i];
  weight_tiles[filters - 1][count - 1](tile);
  for (int64_t g = 0; g < filters; g++)
    for (int64_t i = 0; i < count; i++)
      conv->dw[(f + g) * conv->dw_filter_stride +
               conv->dw_offsets[first + i]] += tile->sums[g * count + i];
}

void choir__conv_grad_weight(const choir__conv_t* conv, const float* x_vectors,
                             const float* dy_vectors, float* db, int64_t begin,
                             int64_t end) {
  const choir__conv_image_t* dy = &conv->y;
  const int64_t filters = dy->channels, channels = conv->x.channels;
  const int64_t filter_blocks =
      choir__conv_blocks(filters, CHOIR__CONV_FILTERS);
  // A run of taps that is cut into blocks, and the number of runs.
  const bool by_channel =
      channels % CHOIR__CONV_TAPS == 0 || channels > 3 * CHOIR__CONV_TAPS;
  const int64_t run = by_channel ? channels : conv->taps;
  const int64_t runs = conv->taps / run;
  const int64_t tap_blocks = choir__conv_blocks(run, CHOIR__CONV_TAPS);
  const int64_t pixel = channels * LANES;
  const int64_t x_row =
      (conv->x.width + 2 * conv->padding[1]) * pixel * conv->stride[0];
  const int64_t rows = tile_rows(conv);
  float sums[CHOIR__CONV_FILTERS * CHOIR__CONV_TAPS + 3];
  weight_tile_t tile = {.x_row = x_row,
                        .x_pixel = conv->stride[1] * pixel,
                        .dy_pixel = filters * LANES,
                        .width = dy->width,
                        .sums = sums};
  for (int64_t fb = begin; fb < end; fb++) {
    const int64_t f = choir__conv_block_start(filters, filter_blocks, fb);
    const int64_t n =
        choir__conv_block_start(filters, filter_blocks, fb + 1) - f;
    for (int64_t r = 0; r < dy->height; r += rows) {
      tile.height = dy->height - r < rows ? dy->height - r : rows;
      tile.x = x_vectors + r * x_row;
      tile.dy = dy_vectors + (r * dy->width * filters + f) * LANES;
      for (int64_t tb = 0; tb < tap_blocks; tb++) {
        const int64_t k = choir__conv_block_start(run, tap_blocks, tb);
        const int64_t m = choir__conv_block_start(run, tap_blocks, tb + 1) - k;
        for (int64_t i = 0; i < runs; i++)
          add_taps(conv, &tile, f, n, i * run + k, m);
      }
    }
    for (int64_t g = f; db && g < f + n; g++) {
      __m512 sum = _mm512_setzero_ps();
      for (int64_t p = 0; p < dy->height * dy->width; p++)
        sum = _mm512_add_ps(
            sum, _mm512_load_ps(dy_vectors + (p * filters + g) * LANES));
      db[g] += _mm512_reduce_add_ps(sum);
    }
  }
}

#else

typedef int choir__conv_avx512_is_absent_t;

#endif  // __AVX512F__
