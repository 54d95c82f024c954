// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/flat_shared.h"

#include <string.h>

#include "dist/comm_shared_def.h"

int64_t choir__flat_count(const choir_strategy_t* strategy) {
  int64_t count = 0;
  for (int32_t b = 0; b < strategy->bucket_count; ++b)
    count += strategy->buckets[b].count;
  return count;
}

void choir__flat_visit(const choir_strategy_t* strategy, int64_t begin,
                       int64_t end, choir__flat_visit_t visit, void* self) {
  int64_t start = 0;  // of the bucket
  for (int32_t b = 0; b < strategy->bucket_count && start < end; ++b) {
    const choir_strategy_bucket_t* bucket = &strategy->buckets[b];
    for (int32_t p = 0; p < bucket->piece_count; ++p) {
      const choir_strategy_piece_t* piece = &bucket->pieces[p];
      const int64_t first = start + piece->offset;
      const int64_t from = first > begin ? first : begin;
      const int64_t last = first + piece->count;
      const int64_t to = last < end ? last : end;
      if (from >= to) continue;
      const choir__flat_piece_t part = {(float*)piece->value + (from - first),
                                        from, to - from};
      visit(self, &part);
    }
    start += bucket->count;
  }
}

typedef struct copy_s {
  int64_t begin;
  float* dst;
  const float* src;
} copy_t;

static void read_piece(void* self, const choir__flat_piece_t* piece) {
  const copy_t* copy = self;
  memcpy(copy->dst + (piece->at - copy->begin), piece->value,
         (size_t)piece->count * sizeof(float));
}

static void write_piece(void* self, const choir__flat_piece_t* piece) {
  const copy_t* copy = self;
  memcpy(piece->value, copy->src + (piece->at - copy->begin),
         (size_t)piece->count * sizeof(float));
}

void choir__flat_read(const choir_strategy_t* strategy, int64_t begin,
                      int64_t end, float* dst) {
  copy_t copy = {.begin = begin, .dst = dst};
  choir__flat_visit(strategy, begin, end, read_piece, &copy);
}

void choir__flat_write(const choir_strategy_t* strategy, int64_t begin,
                       int64_t end, const float* src) {
  copy_t copy = {.begin = begin, .src = src};
  choir__flat_visit(strategy, begin, end, write_piece, &copy);
}

choir_status_t choir__flat_average(const choir_strategy_t* strategy,
                                   const choir_step_values_t* step,
                                   int64_t begin, int64_t end, int64_t chunk,
                                   float* data) {
  for (int64_t i = begin; i < end; i += chunk) {
    const int64_t count = end - i < chunk ? end - i : chunk;
    memset(data, 0, (size_t)count * sizeof(float));
    choir__flat_read(strategy, i, i + count, data);
    choir_collective_t average = {.kind = CHOIR_COLLECTIVE_ALL_REDUCE,
                                  .op = CHOIR_REDUCE_AVERAGE,
                                  .dtype = CHOIR_DTYPE_F32,
                                  .count = count,
                                  .src = data,
                                  .dst = data,
                                  .weight = 1,
                                  .name = "chunk of parameters"};
    choir__comm_set_step(&average, step);
    CHOIR_TRY(choir_comm_run(strategy->comm, &average));
    choir__flat_write(strategy, i, i + count, data);
  }
  return NULL;
}
