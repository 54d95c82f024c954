// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_ATTENTION_H_
#define CHOIR_TENSOR_OPS_ATTENTION_H_

#include "tensor/op_def.h"

#ifdef __cplusplus
extern "C" {
#endif

// For kernels: the sizes of a record of attention or its gradient.
typedef struct choir__attention_s {
  int64_t batch;
  int64_t heads;     // of q
  int64_t kv_heads;  // of k and v, each of which serves heads / kv_heads of q
  int64_t rows;      // t, of q
  int64_t columns;   // s, of k and v
  int64_t depth;     // d, of q and k
  int64_t width;     // of v
  bool causal;
  int64_t offset;
  double scale;
  const choir_attention_attrs_t* drop;  // for what is dropped
  const choir_view_t* mask;             // NULL: none
  int64_t mask_strides[4];  // along (n, h, t, s); 0 where it broadcasts
  bool hides;               // the mask is a bool or a whole number
} choir__attention_t;

choir__attention_t choir__attention_of(const choir_record_t* record);

// A mask's strides, of at most 4 dimensions, along (n, h, t, s).
void choir__attention_spread(const choir_view_t* mask, int64_t strides[4]);

// Row i sees columns 0 .. choir__attention_seen(...) - 1: never fewer than the
// row before.
static inline int64_t choir__attention_seen(const choir__attention_t* a,
                                            int64_t i) {
  if (!a->causal) return a->columns;
  const int64_t seen = i + a->offset + 1;
  return seen < 0 ? 0 : seen < a->columns ? seen : a->columns;
}

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_OPS_ATTENTION_H_
