// SPDX-License-Identifier: Apache-2.0
// Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient
// Compression for Distributed Optimization", NeurIPS 2019 (algorithm 1 with
// error feedback and warm start). Of a gradient matrix M, with what was not
// sent before, ranks average P = M Q, make its columns orthonormal, average
// Q = M^T P, and take P Q^T for the mean of their M. Both averages are linear,
// so that weights of ranks go through.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/random.h"
#include "dist/strategies/strategy_internal.h"

CHOIR_STRATEGY_CONFIG(power_sgd, "powerSGD", CHOIR_POWER_SGD_FIELDS,
                      "gradients as products of thin matrices");

// P and Q together are at most this part of a matrix, or it is sent whole.
enum { LEAST_GAIN = 2 };
// Of a column beside those before it; less is rounding.
static const float least_rest = 1e-5f;

// A parameter in a bucket: a matrix as it lies in memory, or sent whole.
typedef struct block_s {
  int64_t offset;  // in the bucket
  int64_t rows;
  int64_t columns;
  bool is_whole;
  int64_t p;  // in the first message: P [rank][rows], or the block
  int64_t q;  // in the second message, and in the state: Q [rank][columns]
} block_t;

typedef struct part_s {  // of a bucket
  block_t* blocks;
  int64_t first_count;  // elements of the two messages
  int64_t second_count;
  choir_buffer_t* first;
  choir_buffer_t* second;
  choir_tensor_t* tensors[2];  // states: what was not sent, and the Q
  float* residual;
  float* q;
  char names[2][48];
} part_t;

typedef struct power_sgd_s {
  choir_strategy_t base;  // first
  part_t* parts;          // [bucket_count]
} power_sgd_t;

static int64_t rank_of(const choir_strategy_t* strategy) {
  return strategy->config.as_power_sgd.rank;
}

// ---- Arithmetic: of one order, so that all ranks get the same bits ----

static float dot(const float* a, const float* b, int64_t count) {
  enum { LANES = 16 };
  float lanes[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int k = 0; k < LANES; ++k) lanes[k] += a[i + k] * b[i + k];
  for (; i < count; ++i) lanes[0] += a[i] * b[i];
  float sum = 0;
  for (int k = 0; k < LANES; ++k) sum += lanes[k];
  return sum;
}

static void add_scaled(float* a, float factor, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] += factor * b[i];
}

static void take_out(float* column, const float* p, int64_t k, int64_t rows) {
  for (int64_t l = 0; l < k; ++l) {
    const float* other = p + l * rows;
    add_scaled(column, -dot(other, column, rows), other, rows);
  }
}

// Gram and Schmidt's, one column after the other; twice, as what is left after
// the first time may be rounding errors that are not orthogonal. A column that
// is nothing else, as where the matrix has a lower rank, becomes 0.
static void make_orthonormal(float* p, int64_t rank, int64_t rows) {
  for (int64_t k = 0; k < rank; ++k) {
    float* column = p + k * rows;
    const float before = sqrtf(dot(column, column, rows));
    take_out(column, p, k, rows);
    take_out(column, p, k, rows);
    const float norm = sqrtf(dot(column, column, rows));
    const bool is_lost = norm <= least_rest * before;  // not of a NaN
    for (int64_t i = 0; i < rows; ++i)
      column[i] = is_lost ? 0 : column[i] / norm;
  }
}

// ---- A step ----

typedef struct work_s {
  const part_t* part;
  const choir_strategy_bucket_t* bucket;
  int64_t rank;
  float* first;
  float* second;
} work_t;

static work_t work_on(choir_strategy_t* strategy, int32_t index) {
  const part_t* part = &((power_sgd_t*)strategy)->parts[index];
  return (work_t){.part = part,
                  .bucket = &strategy->buckets[index],
                  .rank = rank_of(strategy),
                  .first = choir_buffer_data(part->first),
                  .second = choir_buffer_data(part->second)};
}

static void run_blocks(choir_strategy_t* strategy, int32_t index,
                       void (*run)(const work_t*, const block_t*)) {
  const work_t work = work_on(strategy, index);
  for (int32_t i = 0; i < work.bucket->piece_count; ++i)
    run(&work, &work.part->blocks[i]);
}

static float* matrix_of(const work_t* work, const block_t* block) {
  return (float*)work->bucket->grads + block->offset;
}

// The matrix with what was not sent before, and P.
static void encode_block(const work_t* work, const block_t* block) {
  const int64_t count = block->rows * block->columns;
  float* matrix = matrix_of(work, block);
  if (block->is_whole) {
    memcpy(work->first + block->p, matrix, (size_t)count * sizeof(float));
    return;
  }
  add_scaled(matrix, 1, work->part->residual + block->offset, count);
  for (int64_t k = 0; k < work->rank; ++k)
    for (int64_t i = 0; i < block->rows; ++i)
      work->first[block->p + k * block->rows + i] =
          dot(matrix + i * block->columns,
              work->part->q + block->q + k * block->columns, block->columns);
}

static choir_status_t encode(choir_strategy_t* strategy, int32_t index,
                             const choir_step_values_t* values,
                             choir_stream_t* stream) {
  (void)values;
  (void)stream;
  run_blocks(strategy, index, encode_block);
  return NULL;
}

// P of all ranks to orthonormal columns, and Q.
static void turn_block(const work_t* work, const block_t* block) {
  if (block->is_whole) return;
  float* p = work->first + block->p;
  float* q = work->second + block->q;
  const float* matrix = matrix_of(work, block);
  make_orthonormal(p, work->rank, block->rows);
  memset(q, 0, (size_t)(work->rank * block->columns) * sizeof(float));
  for (int64_t k = 0; k < work->rank; ++k)
    for (int64_t i = 0; i < block->rows; ++i)
      add_scaled(q + k * block->columns, p[k * block->rows + i],
                 matrix + i * block->columns, block->columns);
}

static choir_status_t turn(choir_strategy_t* strategy, int32_t index,
                           const choir_step_values_t* values,
                           choir_stream_t* stream) {
  (void)values;
  (void)stream;
  run_blocks(strategy, index, turn_block);
  return NULL;
}

// The mean of the matrices, and what it lacks of this one. A rank without
// samples has sent nothing, and keeps what it had.
static void decode_block(const work_t* work, const block_t* block,
                         bool has_sent) {
  const int64_t count = block->rows * block->columns;
  float* matrix = matrix_of(work, block);
  if (block->is_whole) {
    memcpy(matrix, work->first + block->p, (size_t)count * sizeof(float));
    return;
  }
  float* residual = work->part->residual + block->offset;
  memcpy(residual, matrix, (size_t)count * sizeof(float));
  memset(matrix, 0, (size_t)count * sizeof(float));
  for (int64_t i = 0; i < block->rows; ++i)
    for (int64_t k = 0; k < work->rank; ++k)
      add_scaled(matrix + i * block->columns,
                 work->first[block->p + k * block->rows + i],
                 work->second + block->q + k * block->columns, block->columns);
  if (has_sent) add_scaled(residual, -1, matrix, count);
}

// The next step begins where this one ended; a column without an end begins
// where it began.
static void keep_q(const work_t* work, const block_t* block) {
  if (block->is_whole) return;
  for (int64_t k = 0; k < work->rank; ++k) {
    const int64_t at = block->q + k * block->columns;
    const float* end = work->second + at;
    if (dot(end, end, block->columns) != 0)
      memcpy(work->part->q + at, end, (size_t)block->columns * sizeof(float));
  }
}

static choir_status_t decode(choir_strategy_t* strategy, int32_t index,
                             const choir_step_values_t* values,
                             choir_stream_t* stream) {
  (void)stream;
  const work_t work = work_on(strategy, index);
  for (int32_t i = 0; i < work.bucket->piece_count; ++i)
    decode_block(&work, &work.part->blocks[i], values->sample_count > 0);
  run_blocks(strategy, index, keep_q);
  return NULL;
}

static choir_status_t average(choir_strategy_t* strategy, int32_t index,
                              float* data, int64_t count,
                              choir_stream_t* stream) {
  const choir_collective_t average = {
      .kind = CHOIR_COLLECTIVE_ALL_REDUCE,
      .op = CHOIR_REDUCE_AVERAGE,
      .dtype = CHOIR_DTYPE_F32,
      .count = count,
      .src = data,
      .dst = data,
      .weight = (double)strategy->values.sample_count,
      .weight_is_samples = true,
      .name = strategy->buckets[index].name};
  return choir__strategy_submit_collective(strategy, strategy->host, stream,
                                           &average);
}

static choir_status_t exchange(choir_strategy_t* strategy, int32_t index,
                               choir_stream_t* stream) {
  const work_t work = work_on(strategy, index);
  CHOIR_TRY(choir__strategy_submit(strategy, CHOIR_STRATEGY_ENCODE, encode,
                                   index, stream));
  CHOIR_TRY(
      average(strategy, index, work.first, work.part->first_count, stream));
  if (work.part->second_count > 0) {
    CHOIR_TRY(choir__strategy_submit(strategy, CHOIR_STRATEGY_ENCODE, turn,
                                     index, stream));
    CHOIR_TRY(
        average(strategy, index, work.second, work.part->second_count, stream));
  }
  return choir__strategy_submit(strategy, CHOIR_STRATEGY_DECODE, decode, index,
                                stream);
}

// ---- Life ----

static void lay_out(const choir_strategy_t* strategy,
                    const choir_strategy_bucket_t* bucket, part_t* part) {
  const int64_t rank = rank_of(strategy);
  for (int32_t i = 0; i < bucket->piece_count; ++i) {
    const choir_strategy_piece_t* piece = &bucket->pieces[i];
    block_t* block = &part->blocks[i];
    *block = (block_t){.offset = piece->offset,
                       .rows = piece->rows,
                       .columns = piece->count / piece->rows,
                       .p = part->first_count,
                       .q = part->second_count};
    block->is_whole =
        LEAST_GAIN * rank * (block->rows + block->columns) > piece->count;
    part->first_count += block->is_whole ? piece->count : rank * block->rows;
    part->second_count += block->is_whole ? 0 : rank * block->columns;
  }
}

// Any start will do that is the same on all ranks and has no column of zeros.
static void fill_q(part_t* part) {
  uint64_t seed = CHOIR_HASH_START;
  for (int64_t i = 0; i < part->second_count; ++i) {
    seed = choir_hash_bytes(seed, &i, sizeof(i));
    part->q[i] = (float)(seed >> 40) / (float)(1 << 23) - 1;
  }
}

static choir_status_t make_states(choir_strategy_t* strategy, int32_t index,
                                  part_t* part) {
  void* data = NULL;
  CHOIR_TRY(choir__strategy_make_state(strategy, CHOIR_DTYPE_F32,
                                       strategy->buckets[index].count,
                                       &part->tensors[0], &data));
  part->residual = data;
  CHOIR_TRY(choir__strategy_make_state(
      strategy, CHOIR_DTYPE_F32, part->second_count, &part->tensors[1], &data));
  part->q = data;
  fill_q(part);
  snprintf(part->names[0], sizeof(part->names[0]), "powerSGD/residual/%d",
           index);
  snprintf(part->names[1], sizeof(part->names[1]), "powerSGD/q/%d", index);
  return NULL;
}

static choir_status_t make_part(choir_strategy_t* strategy, int32_t index) {
  const choir_strategy_bucket_t* bucket = &strategy->buckets[index];
  part_t* part = &((power_sgd_t*)strategy)->parts[index];
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(strategy->allocator,
                           (size_t)bucket->piece_count * sizeof(block_t),
                           "matrices of a bucket", &memory));
  part->blocks = memory;
  lay_out(strategy, bucket, part);
  const int64_t counts[] = {part->first_count, part->second_count};
  choir_buffer_t** buffers[] = {&part->first, &part->second};
  for (int k = 0; k < 2; ++k)
    CHOIR_TRY(choir_comm_buffer_create(
        strategy->comm, strategy->host,
        (size_t)(counts[k] > 0 ? counts[k] : 1) * sizeof(float), buffers[k]));
  if (part->second_count == 0) return NULL;  // all blocks are whole
  return make_states(strategy, index, part);
}

static choir_status_t attach(choir_strategy_t* strategy) {
  power_sgd_t* self = (power_sgd_t*)strategy;
  CHOIR_TRY(choir__strategy_need_f32(strategy));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(strategy->allocator,
                           (size_t)strategy->bucket_count * sizeof(part_t),
                           "buckets of matrices", &memory));
  self->parts = memory;
  for (int32_t b = 0; b < strategy->bucket_count; ++b)
    CHOIR_TRY(make_part(strategy, b));
  return NULL;
}

static void detach(choir_strategy_t* strategy) {
  power_sgd_t* self = (power_sgd_t*)strategy;
  for (int32_t b = 0; self->parts && b < strategy->bucket_count; ++b) {
    part_t* part = &self->parts[b];
    choir_deallocate(
        strategy->allocator, part->blocks,
        (size_t)strategy->buckets[b].piece_count * sizeof(block_t));
    choir_buffer_release(part->first);
    choir_buffer_release(part->second);
    for (int i = 0; i < 2; ++i) choir_tensor_release(part->tensors[i]);
  }
  choir_deallocate(strategy->allocator, self->parts,
                   (size_t)strategy->bucket_count * sizeof(part_t));
  self->parts = NULL;
}

static size_t states(const choir_strategy_t* strategy,
                     choir_named_tensor_t* out_states) {
  const power_sgd_t* self = (const power_sgd_t*)strategy;
  size_t count = 0;
  for (int32_t b = 0; self->parts && b < strategy->bucket_count; ++b)
    for (int i = 0; i < 2 && self->parts[b].tensors[i]; ++i, ++count)
      if (out_states)
        out_states[count] =
            (choir_named_tensor_t){.name = self->parts[b].names[i],
                                   .tensor = self->parts[b].tensors[i]};
  return count;
}

const choir_strategy_def_t choir_strategy_def_power_sgd = {
    .config = &config_def,
    .bytes = sizeof(power_sgd_t),
    .attach = attach,
    .detach = detach,
    .exchange = exchange,
    .states = states,
};
