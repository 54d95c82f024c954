// SPDX-License-Identifier: Apache-2.0
// Softmax, norms of rows, losses, and counting hits. Some threads share a row,
// and a block takes as many rows as it has threads for. A loss is one value of
// each row, added up in double by a second kernel.
#include "tensor/kernels/cuda/cuda_rows.h"

#include "tensor/kernels/cuda/cuda_block_reduce.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"
#include "tensor/kernels/element_math.h"

namespace {

typedef choir__cuda_rows_t rows_t;

// The row and the place in it of a thread.
struct RowThread {
  uint32_t own;  // row of the block
  uint32_t lane;
  uint32_t row;
  bool is_taken;
};
CHOIR__GPU RowThread row_thread_of(const rows_t& p, uint32_t block,
                                   uint32_t thread) {
  const uint32_t own = thread / p.members;
  const uint32_t row = block * (CHOIR__CUDA_THREADS / p.members) + own;
  return {own, thread % p.members, row, row < p.rows};
}

// The value of a row, from its members' share of the columns: value(row,
// column) of each. At parts[row of the block] then.
template <typename Kind, typename Value>
CHOIR__GPU void gather_rows(const rows_t& p, uint32_t block,
                            typename Kind::Total* parts, const Value& value) {
  const uint32_t rows = CHOIR__CUDA_THREADS / p.members;
  CHOIR__EACH_THREAD(thread) {
    const RowThread self = row_thread_of(p, block, thread);
    typename Kind::Piece piece = Kind::none();
    for (uint32_t c = self.lane; self.is_taken && c < p.columns; c += p.members)
      Kind::take(&piece, value(self, c), c);
    parts[self.lane * rows + self.own] = Kind::total(piece);
  }
  block_reduce<Kind>(parts, p.members, rows);
}

// Sets y of each column to value(row, column), or adds it.
template <typename Value>
CHOIR__GPU void write_rows(const rows_t& p, uint32_t block,
                           const Value& value) {
  CHOIR__EACH_THREAD(thread) {
    const RowThread self = row_thread_of(p, block, thread);
    for (uint32_t c = self.lane; self.is_taken && c < p.columns;
         c += p.members) {
      float* y = p.y + self.row * p.y_stride + c;
      const float given = value(self, c);
      *y = p.accumulate ? *y + given : given;
    }
  }
}

// ---- Rows' values ----

struct Elements {
  const rows_t& p;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    return p.x[self.row * p.x_stride + c];
  }
};

// e^(x - largest)
struct Powers {
  const rows_t& p;
  const float* most;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    return choir__math_exp(p.x[self.row * p.x_stride + c] - most[self.own]);
  }
};

struct Probabilities {
  Powers powers;
  const double* sums;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    return powers(self, c) / static_cast<float>(sums[self.own]);
  }
};

struct Logarithms {
  Powers powers;
  const double* sums;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const rows_t& p = powers.p;
    return p.x[self.row * p.x_stride + c] - powers.most[self.own] -
           choir__math_log(static_cast<float>(sums[self.own]));
  }
};

// Of the gradient's sum: y dy, or dy alone.
template <bool is_log>
struct Weights {
  const rows_t& p;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const float dy = p.dy[self.row * p.dy_stride + c];
    return is_log ? dy : p.x[self.row * p.x_stride + c] * dy;
  }
};

template <bool is_log>
struct Gradients {
  const rows_t& p;
  const double* sums;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const float y = p.x[self.row * p.x_stride + c];
    const float dy = p.dy[self.row * p.dy_stride + c];
    const float sum = static_cast<float>(sums[self.own]);
    return is_log ? dy - choir__math_exp(y) * sum : y * (dy - sum);
  }
};

// ---- Norms ----

struct Differences {
  const rows_t& p;
  const double* sums;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const double mean = p.centred ? sums[self.own] / p.columns : 0.0;
    return p.x[self.row * p.x_stride + c] - static_cast<float>(mean);
  }
};

struct Squares {
  Differences differences;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const float d = differences(self, c);
    return d * d;
  }
};

// The normalised row: what the differences from the rounded mean have of a mean
// is taken off as well.
struct Normals {
  Differences differences;
  const double* rests;
  const double* squares;
  CHOIR__GPU_METHOD double rest(const RowThread& self) const {
    const rows_t& p = differences.p;
    return p.centred ? rests[self.own] / p.columns : 0.0;
  }
  CHOIR__GPU_METHOD double factor(const RowThread& self) const {
    const rows_t& p = differences.p;
    const double variance =
        squares[self.own] / p.columns - rest(self) * rest(self);
    return 1.0 / sqrt(variance + p.epsilon);
  }
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    return (differences(self, c) - static_cast<float>(rest(self))) *
           static_cast<float>(factor(self));
  }
};

struct Norms {
  Normals normals;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const rows_t& p = normals.differences.p;
    const float y = normals(self, c) * p.scale[c];
    return p.bias ? y + p.bias[c] : y;
  }
};

// dy scale, and that times the normalised row.
template <bool is_along>
struct NormWeights {
  Normals normals;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const rows_t& p = normals.differences.p;
    const float g = p.dy[self.row * p.dy_stride + c] * p.scale[c];
    return is_along ? g * normals(self, c) : g;
  }
};

struct NormGradients {
  NormWeights<false> weights;
  const double* across;
  const double* along;
  CHOIR__GPU_METHOD float operator()(const RowThread& self, uint32_t c) const {
    const Normals& normals = weights.normals;
    const rows_t& p = normals.differences.p;
    const double mean = p.centred ? across[self.own] / p.columns : 0.0;
    const float mean_along = static_cast<float>(along[self.own] / p.columns);
    return (weights(self, c) - static_cast<float>(mean) -
            normals(self, c) * mean_along) *
           static_cast<float>(normals.factor(self));
  }
};

// ---- Labels ----

CHOIR__GPU uint32_t label_of(const rows_t& p, uint32_t row) {
  const int64_t at = row * p.label_stride;
  const int64_t label = p.labels_are_i64
                            ? static_cast<const int64_t*>(p.labels)[at]
                            : static_cast<const int32_t*>(p.labels)[at];
  if (label >= 0 && label < p.columns) return static_cast<uint32_t>(label);
  CHOIR__FAIL();
  return 0;
}

// ---- Kernels ----

// Largest elements and sums of powers.
CHOIR__GPU void find_sums(const rows_t& p, uint32_t block, float* most,
                          double* sums) {
  gather_rows<Maximum>(p, block, most, Elements{p});
  gather_rows<Sum>(p, block, sums, Powers{p, most});
}

template <bool is_log>
CHOIR__GPU void softmax_grad(const rows_t& p, uint32_t block) {
  CHOIR__SHARED double sums[CHOIR__CUDA_THREADS];
  gather_rows<Sum>(p, block, sums, Weights<is_log>{p});
  write_rows(p, block, Gradients<is_log>{p, sums});
}

CHOIR__GPU Normals find_moments(const rows_t& p, uint32_t block, double* sums,
                                double* rests, double* squares) {
  const Differences differences{p, sums};
  gather_rows<Sum>(p, block, sums, Elements{p});
  gather_rows<Sum>(p, block, rests, differences);
  gather_rows<Sum>(p, block, squares, Squares{differences});
  return Normals{differences, rests, squares};
}

// The sum of all rows' values.
CHOIR__GPU void add_up(const rows_t& p, double* parts) {
  CHOIR__EACH_THREAD(thread) {
    double sum = 0;
    for (uint32_t r = thread; r < p.rows; r += CHOIR__CUDA_THREADS)
      sum += p.values[r];
    parts[thread] = sum;
  }
  block_reduce<Sum>(parts, CHOIR__CUDA_THREADS, 1);
}

CHOIR__GPU float square_of(float x) { return x * x; }

}  // namespace

CHOIR__BLOCK_KERNEL(choir_softmax, choir__cuda_rows_t) {
  CHOIR__SHARED float most[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double sums[CHOIR__CUDA_THREADS];
  find_sums(params, CHOIR__BLOCK, most, sums);
  write_rows(params, CHOIR__BLOCK, Probabilities{{params, most}, sums});
}

CHOIR__BLOCK_KERNEL(choir_log_softmax, choir__cuda_rows_t) {
  CHOIR__SHARED float most[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double sums[CHOIR__CUDA_THREADS];
  find_sums(params, CHOIR__BLOCK, most, sums);
  write_rows(params, CHOIR__BLOCK, Logarithms{{params, most}, sums});
}

CHOIR__BLOCK_KERNEL(choir_softmax_grad, choir__cuda_rows_t) {
  softmax_grad<false>(params, CHOIR__BLOCK);
}

CHOIR__BLOCK_KERNEL(choir_log_softmax_grad, choir__cuda_rows_t) {
  softmax_grad<true>(params, CHOIR__BLOCK);
}

CHOIR__BLOCK_KERNEL(choir_norm, choir__cuda_rows_t) {
  CHOIR__SHARED double sums[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double rests[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double squares[CHOIR__CUDA_THREADS];
  const Normals normals =
      find_moments(params, CHOIR__BLOCK, sums, rests, squares);
  write_rows(params, CHOIR__BLOCK, Norms{normals});
}

// dx, and of each row what normalises it, for choir_norm_sums.
CHOIR__BLOCK_KERNEL(choir_norm_grad, choir__cuda_rows_t) {
  CHOIR__SHARED double sums[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double rests[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double squares[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double across[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double along[CHOIR__CUDA_THREADS];
  const Normals normals =
      find_moments(params, CHOIR__BLOCK, sums, rests, squares);
  const NormWeights<false> weights{normals};
  gather_rows<Sum>(params, CHOIR__BLOCK, across, weights);
  gather_rows<Sum>(params, CHOIR__BLOCK, along, NormWeights<true>{normals});
  write_rows(params, CHOIR__BLOCK, NormGradients{weights, across, along});
  CHOIR__EACH_THREAD(thread) {
    const RowThread self = row_thread_of(params, CHOIR__BLOCK, thread);
    if (self.is_taken && self.lane == 0) {
      const double mean =
          params.centred ? sums[self.own] / params.columns : 0.0;
      params.values[2 * self.row] =
          static_cast<double>(static_cast<float>(mean)) + normals.rest(self);
      params.values[2 * self.row + 1] = normals.factor(self);
    }
  }
}

// dscale and dbias of a column.
CHOIR__KERNEL(choir_norm_sums, choir__cuda_rows_t) {
  const uint32_t c = CHOIR__THREAD;
  if (c >= params.columns) return;
  double dscale = 0, dbias = 0;
  for (uint32_t r = 0; r < params.rows; ++r) {
    const double* moments = params.values + 2 * static_cast<int64_t>(r);
    const float dy = params.dy[r * params.dy_stride + c];
    const float x = params.x[r * params.x_stride + c];
    dscale += dy * ((x - moments[0]) * moments[1]);
    dbias += dy;
  }
  float* to = params.dscale + c;
  *to = static_cast<float>(params.accumulate ? *to + dscale : dscale);
  if (!params.dbias) return;
  to = params.dbias + c;
  *to = static_cast<float>(params.accumulate ? *to + dbias : dbias);
}

// -log p by way of the exponents, as p itself may be 0.
CHOIR__BLOCK_KERNEL(choir_softmax_cross_entropy, choir__cuda_rows_t) {
  CHOIR__SHARED float most[CHOIR__CUDA_THREADS];
  CHOIR__SHARED double sums[CHOIR__CUDA_THREADS];
  find_sums(params, CHOIR__BLOCK, most, sums);
  write_rows(params, CHOIR__BLOCK, Probabilities{{params, most}, sums});
  CHOIR__EACH_THREAD(thread) {
    const RowThread self = row_thread_of(params, CHOIR__BLOCK, thread);
    if (self.is_taken && self.lane == 0) {
      const uint32_t label = label_of(params, self.row);
      const double chosen = params.x[self.row * params.x_stride + label];
      params.values[self.row] = log(sums[self.own]) - (chosen - most[self.own]);
    }
  }
}

// dx = dy / rows (p - one at the label)
CHOIR__KERNEL(choir_softmax_cross_entropy_grad, choir__cuda_rows_t) {
  const uint32_t row = CHOIR__THREAD / params.columns;
  const uint32_t c = CHOIR__THREAD % params.columns;
  if (row >= params.rows) return;
  const float share = *params.dy / static_cast<float>(params.rows);
  const float p = params.x[row * params.x_stride + c];
  const float value = share * (label_of(params, row) == c ? p - 1.0f : p);
  float* dx = params.y + row * params.y_stride + c;
  *dx = params.accumulate ? *dx + value : value;
}

CHOIR__KERNEL(choir_cross_entropy, choir__cuda_rows_t) {
  const uint32_t row = CHOIR__THREAD;
  if (row >= params.rows) return;
  const uint32_t label = label_of(params, row);
  params.values[row] =
      -log(static_cast<double>(params.x[row * params.x_stride + label]));
}

// dp = -dy / (rows p) at the label, 0 elsewhere.
CHOIR__KERNEL(choir_cross_entropy_grad, choir__cuda_rows_t) {
  const uint32_t row = CHOIR__THREAD / params.columns;
  const uint32_t c = CHOIR__THREAD % params.columns;
  if (row >= params.rows) return;
  const float share = *params.dy / static_cast<float>(params.rows);
  const float p = params.x[row * params.x_stride + c];
  const float value = label_of(params, row) == c ? -share / p : 0.0f;
  float* dp = params.y + row * params.y_stride + c;
  *dp = params.accumulate ? *dp + value : value;
}

CHOIR__BLOCK_KERNEL(choir_count_correct, choir__cuda_rows_t) {
  CHOIR__SHARED Place::Total most[CHOIR__CUDA_THREADS];
  gather_rows<Place>(params, CHOIR__BLOCK, most, Elements{params});
  CHOIR__EACH_THREAD(thread) {
    const RowThread self = row_thread_of(params, CHOIR__BLOCK, thread);
    if (self.is_taken && self.lane == 0)
      params.values[self.row] =
          most[self.own].at == label_of(params, self.row) ? 1 : 0;
  }
}

// Here a row is what a block takes of x and dy, which lie densely: `columns`
// elements in all.
CHOIR__BLOCK_KERNEL(choir_mse_loss, choir__cuda_rows_t) {
  CHOIR__SHARED double parts[CHOIR__CUDA_THREADS];
  const uint32_t chunk = CHOIR__CUDA_MSE_CHUNK;
  const uint32_t begin = CHOIR__BLOCK * chunk;
  const uint32_t left = params.columns - begin;
  const uint32_t end = begin + (left < chunk ? left : chunk);
  CHOIR__EACH_THREAD(thread) {
    float sum = 0;
    uint32_t i = begin + thread * kWidth;
    for (; params.by_groups && i + kWidth <= end;
         i += CHOIR__CUDA_THREADS * kWidth) {
      const Group x = *reinterpret_cast<const Group*>(params.x + i);
      const Group t = *reinterpret_cast<const Group*>(params.dy + i);
      for (int k = 0; k < kWidth; ++k) sum += square_of(x.at[k] - t.at[k]);
    }
    for (; i < end; i += CHOIR__CUDA_THREADS * kWidth)
      for (uint32_t k = i; k < i + kWidth && k < end; ++k)
        sum += square_of(params.x[k] - params.dy[k]);
    parts[thread] = sum;
  }
  block_reduce<Sum>(parts, CHOIR__CUDA_THREADS, 1);
  CHOIR__EACH_THREAD(thread) {
    if (thread == 0) params.values[CHOIR__BLOCK] = parts[0];
  }
}

CHOIR__BLOCK_KERNEL(choir_rows_mean, choir__cuda_rows_t) {
  CHOIR__SHARED double parts[CHOIR__CUDA_THREADS];
  add_up(params, parts);
  CHOIR__EACH_THREAD(thread) {
    if (thread == 0) {
      float* y = static_cast<float*>(params.result);
      const double mean = parts[0] / params.divisor;
      *y = static_cast<float>(params.accumulate ? *y + mean : mean);
    }
  }
}

CHOIR__BLOCK_KERNEL(choir_rows_count, choir__cuda_rows_t) {
  CHOIR__SHARED double parts[CHOIR__CUDA_THREADS];
  add_up(params, parts);
  CHOIR__EACH_THREAD(thread) {
    if (thread == 0) {
      int64_t* y = static_cast<int64_t*>(params.result);
      const int64_t count = static_cast<int64_t>(parts[0]);
      *y = params.accumulate ? *y + count : count;
    }
  }
}
