// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_RANK_REDUCE_INTERNAL_H_
#define CHOIR_DIST_RANK_REDUCE_INTERNAL_H_

#include "dist/comm.h"

// Inner loops of reductions. Every table gives the same bits; the one for
// AVX2 is there for speed alone (fmaf in hardware, wide loads).

// acc[i] = acc[i] op src[i]; AVERAGE: acc[i] = fma(share, src[i], acc[i]).
typedef void (*choir__combine_t)(void* acc, const void* src, double share,
                                 size_t count);

// The whole reduction of F32 by SUM (shares NULL) or AVERAGE in registers: what
// gradients are. sources[0 .. source_count) are those that count.
typedef void (*choir__fused_t)(const float* const* sources, const float* shares,
                               int32_t source_count, float* const* destinations,
                               int32_t destination_count, size_t count);

typedef struct choir__reduce_table_s {
  choir__fused_t fused_f32;  // NULL: block by block
  // F16 and BF16 have none: they are combined as F32.
  choir__combine_t combine[CHOIR_DTYPE_COUNT][CHOIR_REDUCE_COUNT];
  // acc[i] = share * src[i], for F32 and F64.
  choir__combine_t scale[CHOIR_DTYPE_COUNT];
  void (*f16_to_f32)(float* dst, const uint16_t* src, size_t count);
  void (*f16_from_f32)(uint16_t* dst, const float* src, size_t count);
  void (*bf16_to_f32)(float* dst, const uint16_t* src, size_t count);
  void (*bf16_from_f32)(uint16_t* dst, const float* src, size_t count);
  // See choir__comm_copy_away.
  void (*copy_away)(void* dst, const void* src, size_t bytes);
  // fused_f32 into one destination and copy_away in one pass. NULL: one after
  // the other.
  void (*average_and_copy)(const float* const* sources, const float* shares,
                           int32_t source_count, float* dst, size_t count,
                           float* away, const float* from, size_t away_count);
} choir__reduce_table_t;

// Plain C; the reference.
const choir__reduce_table_t* choir__reduce_table_plain(void);
// NULL where the build or the processor has no AVX2, FMA and F16C.
const choir__reduce_table_t* choir__reduce_table_avx2(void);
// The one to use.
const choir__reduce_table_t* choir__reduce_table(void);

#endif  // CHOIR_DIST_RANK_REDUCE_INTERNAL_H_
