// SPDX-License-Identifier: Apache-2.0
// attention and its gradients. A block makes a tile of a result (y, dq, dk, dv
// or dmask) from tile after tile of weights, made anew in each block, so that
// memory is linear in rows and columns and every sum has one order. Forward is
// FlashAttention-2's loop (Dao, 2023, arXiv:2307.08691).
#include "tensor/kernels/cuda/cuda_attention.h"

#include "core/random_backend.h"
#include "tensor/kernels/cuda/cuda_block_reduce.cuh"
#include "tensor/kernels/element_math.h"

namespace {

typedef choir__cuda_attention_t attention_t;

constexpr uint32_t kTile = CHOIR__CUDA_ATTENTION_TILE;
constexpr uint32_t kChunk = 32;  // terms of a sum that are staged at a time
constexpr uint32_t kSide = 16;   // threads along each side of a tile
constexpr uint32_t kEach = kTile / kSide;
constexpr uint32_t kLanes = CHOIR__CUDA_THREADS / kTile;  // threads of a row
static_assert(kSide * kSide == CHOIR__CUDA_THREADS, "all threads share a tile");
// Rows in shared memory are one longer than they need to be, so that threads
// side by side meet different banks.
constexpr uint32_t kTileRow = kTile + 1;
constexpr uint32_t kChunkRow = kChunk + 1;
constexpr uint32_t kStaged = kTile * kChunkRow;

// A thread's elements of a tile.
struct Part {
  float at[kEach][kEach];
};
// visit(i, j, row, column) for each of them; unrolled, so that they stay in
// registers.
template <typename Visit>
CHOIR__GPU void each_of(uint32_t thread, const Visit& visit) {
  CHOIR__UNROLLED
  for (uint32_t i = 0; i < kEach; ++i) {
    CHOIR__UNROLLED
    for (uint32_t j = 0; j < kEach; ++j)
      visit(i, j, thread / kSide + i * kSide, thread % kSide + j * kSide);
  }
}

// ---- Products ----

struct Matrix {
  const float* data;
  int64_t row, column;  // strides
  uint32_t rows, columns;
};
CHOIR__GPU Matrix matrix_of(const choir__cuda_heads_t& x, uint32_t sample,
                            uint32_t head, uint32_t rows, uint32_t columns) {
  return {x.data + sample * x.strides[0] + head * x.strides[1], x.strides[2],
          x.strides[3], rows, columns};
}

// Part of a matrix to shared memory, 0 for what lies beyond its ends.
template <uint32_t rows, uint32_t columns>
CHOIR__GPU void stage(const Matrix& x, uint32_t row, uint32_t column,
                      uint32_t thread, float* to) {
  for (uint32_t i = thread; i < rows * columns; i += CHOIR__CUDA_THREADS) {
    const uint32_t r = row + i / columns, c = column + i % columns;
    to[i / columns * (columns + 1) + i % columns] =
        r < x.rows && c < x.columns ? x.data[r * x.row + c * x.column] : 0.0f;
  }
}

// A place that is not seen has the weight -0, which no other has. It is left
// out: times 0, a NaN of v would still count.
CHOIR__GPU bool is_unseen(float weight) {
  return choir__math_bits(weight) == INT32_MIN;
}

// sums += a b, of kChunk terms: a(i, k) is a[i row_a + k step_a], b(k, j) is
// b[k step_b + j column_b].
template <uint32_t row_a, uint32_t step_a, uint32_t step_b, uint32_t column_b,
          bool has_weights>
CHOIR__GPU void multiply(const float* a, const float* b, uint32_t thread,
                         Part* sums) {
  for (uint32_t k = 0; k < kChunk; ++k)
    each_of(thread, [&](uint32_t i, uint32_t j, uint32_t row, uint32_t column) {
      const float x = a[row * row_a + k * step_a];
      if (!has_weights || !is_unseen(x))
        sums->at[i][j] =
            fmaf(x, b[k * step_b + column * column_b], sums->at[i][j]);
    });
}

// products = a tile of x y^T.
CHOIR__GPU void multiply_rows(const Matrix& x, uint32_t row, const Matrix& y,
                              uint32_t column, float* x_part, float* y_part,
                              Part* products) {
  CHOIR__EACH_THREAD(thread) { CHOIR__MINE(products, thread) = {}; }
  for (uint32_t k = 0; k < x.columns; k += kChunk) {
    CHOIR__EACH_THREAD(thread) {
      stage<kTile, kChunk>(x, row, k, thread, x_part);
      stage<kTile, kChunk>(y, column, k, thread, y_part);
    }
    CHOIR__EACH_THREAD(thread) {
      multiply<kChunkRow, 1, 1, kChunkRow, false>(
          x_part, y_part, thread, &CHOIR__MINE(products, thread));
    }
  }
}

// sums += a tile of weights, or its transpose, times the rows of x from `row`
// on, of these the columns from `column` on.
template <bool transposes>
CHOIR__GPU void add_weighted(const float* weights, const Matrix& x,
                             uint32_t row, uint32_t column, float* x_part,
                             Part* sums) {
  constexpr uint32_t kRow = transposes ? 1 : kTileRow;
  constexpr uint32_t kStep = transposes ? kTileRow : 1;
  for (uint32_t k = 0; k < kTile; k += kChunk) {
    CHOIR__EACH_THREAD(thread) {
      stage<kChunk, kTile>(x, row + k, column, thread, x_part);
    }
    CHOIR__EACH_THREAD(thread) {
      multiply<kRow, kStep, kTileRow, 1, true>(
          weights + k * kStep, x_part, thread, &CHOIR__MINE(sums, thread));
    }
  }
}

// ---- Weights ----

// Where a tile of weights begins. Its places are numbered r and c from there.
struct Tile {
  uint32_t sample, head, row, column;
};

// What a block goes through: some samples, heads, tiles of rows and tiles of
// columns.
struct Tiles {
  uint32_t first[4], size[4];
  uint64_t count;   // of all tiles
  uint32_t column;  // of the result
};
CHOIR__GPU Tiles tiles_of(const attention_t& p, uint32_t block) {
  Tiles tiles;
  tiles.count = 1;
  tiles.column = block % p.chunks * kTile;
  block /= p.chunks;
  for (int k = 3; k >= 0; --k) {
    const uint32_t parts = (p.total[k] + p.each[k] - 1) / p.each[k];
    tiles.first[k] = block % parts * p.each[k];
    const uint32_t rest = p.total[k] - tiles.first[k];
    tiles.size[k] = rest < p.each[k] ? rest : p.each[k];
    tiles.count *= tiles.size[k];
    block /= parts;
  }
  return tiles;
}
CHOIR__GPU Tile tile_of(const Tiles& tiles, uint64_t index) {
  uint32_t at[4];
  for (int k = 3; k >= 0; --k) {
    at[k] = tiles.first[k] + static_cast<uint32_t>(index % tiles.size[k]);
    index /= tiles.size[k];
  }
  return {at[0], at[1], at[2] * kTile, at[3] * kTile};
}

CHOIR__GPU bool is_in_sight(const attention_t& p, uint32_t row,
                            uint32_t column) {
  return !p.causal || column <= row + p.offset;
}
// Whether any row of the tile may see any column of it.
CHOIR__GPU bool is_in_sight(const attention_t& p, const Tile& tile) {
  return is_in_sight(p, tile.row + kTile - 1, tile.column);
}

CHOIR__GPU int64_t mask_offset(const attention_t& p, const Tile& tile,
                               uint32_t r, uint32_t c) {
  return tile.sample * p.mask_strides[0] + tile.head * p.mask_strides[1] +
         (tile.row + r) * p.mask_strides[2] +
         (tile.column + c) * p.mask_strides[3];
}

CHOIR__GPU bool is_seen(const attention_t& p, const Tile& tile, uint32_t r,
                        uint32_t c) {
  if (tile.row + r >= p.rows || tile.column + c >= p.columns ||
      !is_in_sight(p, tile.row + r, tile.column + c))
    return false;
  if (!p.hides) return true;
  const int64_t at = mask_offset(p, tile, r, c);
  return p.mask_bytes == 1   ? static_cast<const uint8_t*>(p.mask)[at] != 0
         : p.mask_bytes == 4 ? static_cast<const int32_t*>(p.mask)[at] != 0
                             : static_cast<const int64_t*>(p.mask)[at] != 0;
}

// Of a place that is seen.
CHOIR__GPU float score_of(const attention_t& p, const Tile& tile, uint32_t r,
                          uint32_t c, float product) {
  const float score = p.scale * product;
  if (!p.mask || p.hides) return score;
  return score + static_cast<const float*>(p.mask)[mask_offset(p, tile, r, c)];
}

// What a weight counts as: 1 without dropout.
CHOIR__GPU float share_of(const attention_t& p, const Tile& tile, uint32_t r,
                          uint32_t c) {
  if (!p.drops) return 1;
  const uint64_t row = static_cast<uint64_t>(tile.head) * p.rows + tile.row + r;
  const uint64_t element = row * p.columns + tile.column + c;
  const uint64_t sample = p.first_sample + tile.sample;
  const uint32_t counter[4] = {static_cast<uint32_t>(element / 4), p.step,
                               static_cast<uint32_t>(sample),
                               static_cast<uint32_t>(sample >> 32)};
  uint32_t words[4];
  choir__philox(counter, p.key, words);
  return words[element % 4] >> 8 >= p.threshold ? p.factor : 0.0f;
}

CHOIR__GPU void store(const attention_t& p, const choir__cuda_heads_t& to,
                      const Tile& at, float value) {
  float* y = to.data + at.sample * to.strides[0] + at.head * to.strides[1] +
             at.row * to.strides[2] + at.column * to.strides[3];
  *y = p.accumulate ? *y + value : value;
}

// scale sums: rows of y, dq, dk or dv, from `row` on.
CHOIR__GPU void store_rows(const attention_t& p, uint32_t sample, uint32_t head,
                           uint32_t row, uint32_t rows, uint32_t column,
                           uint32_t columns, float scale, const Part* sums) {
  CHOIR__EACH_THREAD(thread) {
    each_of(thread, [&](uint32_t i, uint32_t j, uint32_t r, uint32_t c) {
      if (row + r < rows && column + c < columns)
        store(p, p.result, {sample, head, row + r, column + c},
              scale * CHOIR__MINE(sums, thread).at[i][j]);
    });
  }
}

// ---- Forward ----

// Of each row of a block: the largest score so far, the sum of all
// e^(score - largest), and the factor for sums of before, as the largest is
// another one now.
struct Rows {
  float most[kTile], sum[kTile], change[kTile];
  float largest[CHOIR__CUDA_THREADS], sums[CHOIR__CUDA_THREADS];  // of lanes
};

CHOIR__GPU float most_of(const Rows& rows, uint32_t r) {
  float most = rows.most[r];
  for (uint32_t lane = 0; lane < kLanes; ++lane)
    most = Maximum::joined(rows.largest[lane * kTile + r], most);
  return most;
}
// Where all are -inf, nothing is taken off, so that a NaN stays one.
CHOIR__GPU float base_of(float most) { return most == -INFINITY ? 0 : most; }

// A tile of scores becomes weights.
CHOIR__GPU void go_on(const attention_t& p, const Tile& tile, float* weights,
                      Rows* rows) {
  CHOIR__EACH_THREAD(thread) {
    float most = -INFINITY;
    for (uint32_t c = thread / kTile; c < kTile; c += kLanes)
      most = Maximum::joined(weights[thread % kTile * kTileRow + c], most);
    rows->largest[thread] = most;
  }
  CHOIR__EACH_THREAD(thread) {
    const uint32_t r = thread % kTile;
    const float base = base_of(most_of(*rows, r));
    float sum = 0;
    for (uint32_t c = thread / kTile; c < kTile; c += kLanes) {
      float* weight = weights + r * kTileRow + c;
      const bool seen = is_seen(p, tile, r, c);
      const float power = seen ? choir__math_exp(*weight - base) : 0.0f;
      sum += power;
      *weight = seen ? power * share_of(p, tile, r, c) : -0.0f;
    }
    rows->sums[thread] = sum;
  }
  CHOIR__EACH_THREAD(r) {
    if (r < kTile) {
      const float most = most_of(*rows, r);
      rows->change[r] = choir__math_exp(rows->most[r] - base_of(most));
      rows->most[r] = most;
      float sum = rows->sum[r] * rows->change[r];
      for (uint32_t lane = 0; lane < kLanes; ++lane)
        sum += rows->sums[lane * kTile + r];
      rows->sum[r] = sum;
    }
  }
}

// ---- Backward ----

enum Result { DQ, DK, DV, DMASK };

// Of a place that is seen, with p the weight, m what it counts as and
// e = sum(dy y): p m for dv, else ds = p (m dy v^T - e).
template <Result result>
CHOIR__GPU float slope_of(const attention_t& p, const Tile& tile, uint32_t r,
                          uint32_t c, float product, float slope) {
  const choir__cuda_heads_t& sums = p.sums;
  const float sum =
      sums.data[tile.sample * sums.strides[0] + tile.head * sums.strides[1] +
                (tile.row + r) * sums.strides[2]];
  const float score = score_of(p, tile, r, c, product);
  const float weight = sum == -INFINITY ? 0 : choir__math_exp(score - sum);
  const float share = share_of(p, tile, r, c);
  if (result == DV) return share == 0 ? 0 : weight * share;
  const uint32_t row = (tile.sample * p.heads + tile.head) * p.rows + tile.row;
  return weight * ((share == 0 ? 0 : share * slope) - p.along[row + r]);
}

// These of a tile, for the product; those of the mask's gradient are added up.
template <Result result>
CHOIR__GPU void make_slopes(const attention_t& p, const Tile& tile,
                            Part* products, Part* slopes, float* weights,
                            Part* sums) {
  CHOIR__EACH_THREAD(thread) {
    each_of(thread, [&](uint32_t i, uint32_t j, uint32_t r, uint32_t c) {
      float value = -0.0f;
      if (is_seen(p, tile, r, c))
        value = 0.0f + slope_of<result>(p, tile, r, c,
                                        CHOIR__MINE(products, thread).at[i][j],
                                        CHOIR__MINE(slopes, thread).at[i][j]);
      if (result == DMASK)
        CHOIR__MINE(sums, thread).at[i][j] += value;
      else
        weights[r * kTileRow + c] = value;
    });
  }
}

// A tile of dmask: along a dimension that the mask broadcasts, its sum.
CHOIR__GPU void store_mask(const attention_t& p, const Tile& first,
                           const Part* sums, float* all) {
  const uint32_t height = p.result.strides[2] == 0 ? kTile : 1;
  const uint32_t width = p.result.strides[3] == 0 ? kTile : 1;
  CHOIR__EACH_THREAD(thread) {
    each_of(thread, [&](uint32_t i, uint32_t j, uint32_t r, uint32_t c) {
      all[r * kTileRow + c] = CHOIR__MINE(sums, thread).at[i][j];
    });
  }
  CHOIR__EACH_THREAD(thread) {
    for (uint32_t i = thread; i < kTile * kTile; i += CHOIR__CUDA_THREADS) {
      const uint32_t r = i / kTile, c = i % kTile;
      const uint32_t row = first.row + r, column = first.column + c;
      if (r % height || c % width || row >= p.rows || column >= p.columns)
        continue;
      double sum = 0;
      for (uint32_t k = r; k < r + height; ++k)
        for (uint32_t l = c; l < c + width; ++l) sum += all[k * kTileRow + l];
      store(p, p.result, {first.sample, first.head, row, column},
            static_cast<float>(sum));
    }
  }
}

template <Result result>
CHOIR__GPU void backward(const attention_t& p, uint32_t block) {
  CHOIR__SHARED float weights[kTile * kTileRow];
  CHOIR__SHARED float x_part[kStaged], y_part[kStaged];
  CHOIR__OWN(Part, products);
  CHOIR__OWN(Part, slopes);
  CHOIR__OWN(Part, sums);
  CHOIR__EACH_THREAD(thread) {
    CHOIR__MINE(sums, thread) = {};
    CHOIR__MINE(slopes, thread) = {};
  }
  const Tiles tiles = tiles_of(p, block);
  for (uint64_t i = 0; i < tiles.count; ++i) {
    const Tile tile = tile_of(tiles, i);
    if (!is_in_sight(p, tile)) continue;
    const uint32_t n = tile.sample, h = tile.head, served = h / p.group;
    const Matrix q = matrix_of(p.q, n, h, p.rows, p.depth);
    const Matrix k = matrix_of(p.k, n, served, p.columns, p.depth);
    const Matrix v = matrix_of(p.v, n, served, p.columns, p.width);
    const Matrix dy = matrix_of(p.dy, n, h, p.rows, p.width);
    multiply_rows(q, tile.row, k, tile.column, x_part, y_part, products);
    if (result != DV)
      multiply_rows(dy, tile.row, v, tile.column, x_part, y_part, slopes);
    make_slopes<result>(p, tile, products, slopes, weights, sums);
    if (result == DQ)
      add_weighted<false>(weights, k, tile.column, tiles.column, x_part, sums);
    if (result == DK)
      add_weighted<true>(weights, q, tile.row, tiles.column, x_part, sums);
    if (result == DV)
      add_weighted<true>(weights, dy, tile.row, tiles.column, x_part, sums);
  }
  const Tile first = tile_of(tiles, 0);
  const uint32_t n = first.sample, h = first.head;
  if (result == DMASK)
    store_mask(p, first, sums, weights);
  else if (result == DQ)
    store_rows(p, n, h, first.row, p.rows, tiles.column, p.depth, p.scale,
               sums);
  else
    store_rows(p, n, h / p.group, first.column, p.columns, tiles.column,
               result == DK ? p.depth : p.width, result == DK ? p.scale : 1,
               sums);
}

}  // namespace

// y and sums.
CHOIR__BLOCK_KERNEL(choir_attention, choir__cuda_attention_t) {
  CHOIR__SHARED float weights[kTile * kTileRow];
  CHOIR__SHARED float x_part[kStaged], y_part[kStaged];
  CHOIR__SHARED Rows rows;
  CHOIR__OWN(Part, products);
  CHOIR__OWN(Part, sums);
  CHOIR__EACH_THREAD(thread) {
    CHOIR__MINE(sums, thread) = {};
    if (thread < kTile) rows.most[thread] = -INFINITY;
    if (thread < kTile) rows.sum[thread] = 0;
  }
  const attention_t& p = params;
  const Tiles tiles = tiles_of(p, CHOIR__BLOCK);
  const Tile first = tile_of(tiles, 0);
  const uint32_t n = first.sample, h = first.head;
  const float nothing = p.mask ? NAN : 0;  // of a row that sees nothing
  const Matrix q = matrix_of(p.q, n, h, p.rows, p.depth);
  const Matrix k = matrix_of(p.k, n, h / p.group, p.columns, p.depth);
  const Matrix v = matrix_of(p.v, n, h / p.group, p.columns, p.width);
  for (uint64_t at = 0; at < tiles.count; ++at) {
    const Tile tile = tile_of(tiles, at);
    if (!is_in_sight(p, tile)) continue;
    multiply_rows(q, tile.row, k, tile.column, x_part, y_part, products);
    CHOIR__EACH_THREAD(thread) {
      each_of(thread, [&](uint32_t i, uint32_t j, uint32_t r, uint32_t c) {
        weights[r * kTileRow + c] =
            is_seen(p, tile, r, c)
                ? score_of(p, tile, r, c,
                           CHOIR__MINE(products, thread).at[i][j])
                : -INFINITY;
      });
    }
    go_on(p, tile, weights, &rows);
    CHOIR__EACH_THREAD(thread) {
      each_of(thread, [&](uint32_t i, uint32_t j, uint32_t r, uint32_t) {
        CHOIR__MINE(sums, thread).at[i][j] *= rows.change[r];
      });
    }
    add_weighted<false>(weights, v, tile.column, tiles.column, x_part, sums);
  }
  CHOIR__EACH_THREAD(thread) {
    each_of(thread, [&](uint32_t i, uint32_t j, uint32_t r, uint32_t) {
      float* y = &CHOIR__MINE(sums, thread).at[i][j];
      *y = rows.sum[r] == 0 ? nothing : *y / rows.sum[r];
    });
    if (thread < kTile && first.row + thread < p.rows && tiles.column == 0)
      store(p, p.sums, {n, h, first.row + thread, 0},
            rows.sum[thread] == 0 && p.mask
                ? NAN
                : rows.most[thread] + choir__math_log(rows.sum[thread]));
  }
  store_rows(p, n, h, first.row, p.rows, tiles.column, p.width, 1, sums);
}

// sum(dy y) of each row.
CHOIR__KERNEL(choir_attention_along, choir__cuda_attention_t) {
  const uint32_t row = CHOIR__THREAD;
  if (row >= params.total[0] * params.heads * params.rows) return;
  const uint32_t head = row / params.rows, n = head / params.heads;
  const Matrix y =
      matrix_of(params.y, n, head % params.heads, params.rows, params.width);
  const Matrix dy =
      matrix_of(params.dy, n, head % params.heads, params.rows, params.width);
  float sum = 0;
  for (uint32_t c = 0; c < params.width; ++c)
    sum = fmaf(dy.data[row % params.rows * dy.row + c * dy.column],
               y.data[row % params.rows * y.row + c * y.column], sum);
  params.along[row] = sum;
}

CHOIR__BLOCK_KERNEL(choir_attention_dq, choir__cuda_attention_t) {
  backward<DQ>(params, CHOIR__BLOCK);
}
CHOIR__BLOCK_KERNEL(choir_attention_dk, choir__cuda_attention_t) {
  backward<DK>(params, CHOIR__BLOCK);
}
CHOIR__BLOCK_KERNEL(choir_attention_dv, choir__cuda_attention_t) {
  backward<DV>(params, CHOIR__BLOCK);
}
CHOIR__BLOCK_KERNEL(choir_attention_dmask, choir__cuda_attention_t) {
  backward<DMASK>(params, CHOIR__BLOCK);
}
