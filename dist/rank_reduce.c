// SPDX-License-Identifier: Apache-2.0
// Reductions over ranks, in rank order: ((r0 + r1) + r2) + ... Averages are
// acc = share0 * x0; acc = fmaf(share_r, x_r, acc). Every backend calls this
// code, so all give the same bits.
//
// Data goes through a block that stays in the first-level cache (gradients
// through registers): all ranks' stretch is combined there and then written to
// every destination. So a destination may also be a source, and each element
// of memory is read once and written once for each destination.
#include <math.h>
#include <string.h>

#include "dist/comm_internal.h"
#include "dist/rank_reduce_internal.h"

static void f16_to_f32(float* dst, const uint16_t* src, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = choir_f16_to_f32(src[i]);
}
static void f16_from_f32(uint16_t* dst, const float* src, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = choir_f16_from_f32(src[i]);
}
static void bf16_to_f32(float* dst, const uint16_t* src, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = choir_bf16_to_f32(src[i]);
}
static void bf16_from_f32(uint16_t* dst, const float* src, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = choir_bf16_from_f32(src[i]);
}

static void copy_away(void* dst, const void* src, size_t bytes) {
  memcpy(dst, src, bytes);
}

#define FUSED_F32 NULL
#define AVERAGE_AND_COPY NULL
#define REDUCE_TABLE table_plain
#include "dist/rank_reduce_kernels.inc"

const choir__reduce_table_t* choir__reduce_table_plain(void) {
  return &table_plain;
}

const choir__reduce_table_t* choir__reduce_table(void) {
  const choir__reduce_table_t* fast = choir__reduce_table_avx2();
  return fast ? fast : &table_plain;
}

void choir__comm_set_shares(choir_comm_t* comm) {
  double sum = 0;
  for (int32_t r = 0; r < comm->size; ++r) sum += comm->headers[r].weight;
  for (int32_t r = 0; r < comm->size; ++r) {
    comm->sums.shares_f64[r] = comm->headers[r].weight / sum;
    comm->sums.shares[r] = (float)comm->sums.shares_f64[r];
  }
}

void choir__comm_part(int64_t count, size_t element_bytes, int32_t rank,
                      int32_t size, int64_t* out_start, int64_t* out_count) {
  int64_t grain = (int64_t)(64 / element_bytes);
  int64_t grains = (count + grain - 1) / grain;
  int64_t start = grains * rank / size * grain;
  int64_t end = grains * (rank + 1) / size * grain;
  if (start > count) start = count;
  if (end > count) end = count;
  *out_start = start;
  *out_count = end - start;
}

// ---- Averages of integers ----

__extension__ typedef __int128 wide_t;

static int64_t load_integer(const void* data, choir_dtype_t dtype, int64_t i) {
  if (dtype == CHOIR_DTYPE_I64) return ((const int64_t*)data)[i];
  if (dtype == CHOIR_DTYPE_I32) return ((const int32_t*)data)[i];
  return ((const uint8_t*)data)[i];
}

static void store_integer(void* data, choir_dtype_t dtype, int64_t i,
                          int64_t value) {
  if (dtype == CHOIR_DTYPE_I64)
    ((int64_t*)data)[i] = value;
  else if (dtype == CHOIR_DTYPE_I32)
    ((int32_t*)data)[i] = (int32_t)value;
  else
    ((uint8_t*)data)[i] = (uint8_t)value;
}

// Truncated towards zero, clamped to the type.
static int64_t scale_integer(choir_dtype_t dtype, double factor,
                             int64_t value) {
  double low = dtype == CHOIR_DTYPE_U8 ? 0 : (double)INT32_MIN;
  double high = dtype == CHOIR_DTYPE_U8 ? UINT8_MAX : (double)INT32_MAX;
  if (factor == 1) return value;  // where f64 would round
  double product = factor * (double)value;
  if (dtype == CHOIR_DTYPE_I64) {
    // 2^63 is the first that does not fit.
    if (product >= 9223372036854775808.0) return INT64_MAX;
    if (product < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)product;
  }
  if (product > high) product = high;
  if (product < low) product = low;
  return (int64_t)product;
}

static void scale_integers(choir_dtype_t dtype, double factor, void* dst,
                           const void* src, size_t count) {
  for (int64_t i = 0; i < (int64_t)count; ++i)
    store_integer(dst, dtype, i,
                  scale_integer(dtype, factor, load_integer(src, dtype, i)));
}

// The exact sum over the number of ranks, truncated towards zero.
static void average_integers(const choir_comm_t* comm,
                             const choir_collective_t* c,
                             const void* const* sources,
                             void* const* destinations,
                             int32_t destination_count, int64_t count) {
  choir_dtype_t dtype = c->dtype;
  for (int64_t i = 0; i < count; ++i) {
    wide_t sum = 0;
    for (int32_t r = 0; r < comm->size; ++r) {
      int64_t value = load_integer(sources[r], dtype, i);
      sum += c->scales ? scale_integer(dtype, c->prescale, value) : value;
    }
    int64_t value = (int64_t)(sum / comm->size);
    if (c->scales) value = scale_integer(dtype, c->postscale, value);
    for (int32_t d = 0; d < destination_count; ++d)
      store_integer(destinations[d], dtype, i, value);
  }
}

// ---- The general case ----

#define BLOCK_BYTES 2048

typedef struct reduction_s {
  const choir__reduce_table_t* table;
  choir_dtype_t dtype;      // of memory
  choir_dtype_t acc_dtype;  // of the block
  choir_reduce_t op;
} reduction_t;

// The stretch of a source as acc_dtype, converted into `scratch` if need be.
static const void* as_acc_dtype(const reduction_t* reduction, const void* src,
                                float* scratch, size_t count) {
  if (reduction->dtype == CHOIR_DTYPE_F16)
    reduction->table->f16_to_f32(scratch, src, count);
  else if (reduction->dtype == CHOIR_DTYPE_BF16)
    reduction->table->bf16_to_f32(scratch, src, count);
  else
    return src;
  return scratch;
}

// `factor` times `src` of acc_dtype, into `dst`, which is other memory.
static void scale_block(const reduction_t* reduction, double factor, void* dst,
                        const void* src, size_t count) {
  choir__combine_t scale = reduction->table->scale[reduction->acc_dtype];
  if (scale)
    scale(dst, src, factor, count);
  else
    scale_integers(reduction->acc_dtype, factor, dst, src, count);
}

static void start_block(const reduction_t* reduction, void* block,
                        const void* src, double share, size_t count) {
  if (reduction->op == CHOIR_REDUCE_AVERAGE) {
    reduction->table->scale[reduction->acc_dtype](block, src, share, count);
  } else if (reduction->dtype == CHOIR_DTYPE_BOOL) {
    for (size_t i = 0; i < count; ++i)
      ((uint8_t*)block)[i] = ((const uint8_t*)src)[i] != 0;
  } else {
    memcpy(block, src, count * choir_dtype_bytes(reduction->acc_dtype));
  }
}

// Ranks per call of a fused loop: they fit on the stack.
#define MAX_FUSED 64

static bool reduce_fused(choir_comm_t* comm, choir__fused_t fused,
                         bool averages, const void* const* sources,
                         void* const* destinations, int32_t destination_count,
                         int64_t count) {
  if (!fused || comm->size > MAX_FUSED || destination_count > MAX_FUSED)
    return false;
  const float* src[MAX_FUSED];
  float* dst[MAX_FUSED];
  float shares[MAX_FUSED];
  int32_t source_count = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (averages && comm->headers[r].weight == 0) continue;
    src[source_count] = sources[r];
    shares[source_count++] = comm->sums.shares[r];
  }
  for (int32_t d = 0; d < destination_count; ++d) dst[d] = destinations[d];
  fused(src, averages ? shares : NULL, source_count, dst, destination_count,
        (size_t)count);
  return true;
}

void choir__comm_reduce(choir_comm_t* comm,
                        const choir_comm_operation_t* operation,
                        const void* const* sources, void* const* destinations,
                        int32_t destination_count, int64_t count) {
  const choir_collective_t* c = &operation->collective;
  bool averages = c->op == CHOIR_REDUCE_AVERAGE;
  bool scales = c->scales && c->dtype != CHOIR_DTYPE_BOOL;
  if (averages && !choir_dtype_is_float(c->dtype)) {
    average_integers(comm, c, sources, destinations, destination_count, count);
    return;
  }
  reduction_t reduction = {.table = choir__reduce_table(),
                           .dtype = c->dtype,
                           .acc_dtype = c->dtype,
                           .op = c->op};
  if (!scales && c->dtype == CHOIR_DTYPE_F32 &&
      (averages || c->op == CHOIR_REDUCE_SUM) &&
      reduce_fused(comm, reduction.table->fused_f32, averages, sources,
                   destinations, destination_count, count))
    return;
  bool is_half = c->dtype == CHOIR_DTYPE_F16 || c->dtype == CHOIR_DTYPE_BF16;
  if (is_half) reduction.acc_dtype = CHOIR_DTYPE_F32;
  choir__combine_t combine =
      reduction.table->combine[reduction.acc_dtype][c->op];
  _Alignas(64) unsigned char block[BLOCK_BYTES];
  _Alignas(64) float scratch[BLOCK_BYTES / sizeof(float)];
  _Alignas(64) uint16_t halves[BLOCK_BYTES / sizeof(float)];
  _Alignas(64) unsigned char scaled[BLOCK_BYTES];
  size_t e = operation->element_bytes;
  int64_t block_count =
      BLOCK_BYTES / (int64_t)choir_dtype_bytes(reduction.acc_dtype);
  for (int64_t done = 0; done < count; done += block_count) {
    size_t n =
        (size_t)(count - done < block_count ? count - done : block_count);
    bool empty = true;
    for (int32_t r = 0; r < comm->size; ++r) {
      // Weight 0 adds nothing, not even 0 * NaN.
      if (averages && comm->headers[r].weight == 0) continue;
      double share = 0;
      if (averages)
        share = c->dtype == CHOIR_DTYPE_F64 ? comm->sums.shares_f64[r]
                                            : (double)comm->sums.shares[r];
      const void* src = as_acc_dtype(
          &reduction, (const char*)sources[r] + (size_t)done * e, scratch, n);
      if (scales) {
        scale_block(&reduction, c->prescale, scaled, src, n);
        src = scaled;
      }
      if (empty)
        start_block(&reduction, block, src, share, n);
      else
        combine(block, src, share, n);
      empty = false;
    }
    const void* result = block;
    if (scales) {
      scale_block(&reduction, c->postscale, scaled, block, n);
      result = scaled;
    }
    if (is_half) {
      if (c->dtype == CHOIR_DTYPE_F16)
        reduction.table->f16_from_f32(halves, result, n);
      else
        reduction.table->bf16_from_f32(halves, result, n);
      result = halves;
    }
    for (int32_t d = 0; d < destination_count; ++d)
      memcpy((char*)destinations[d] + (size_t)done * e, result, n * e);
  }
}
