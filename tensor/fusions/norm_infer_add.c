// SPDX-License-Identifier: Apache-2.0
#include "tensor/fusion_def.h"

// mul, batch_norm_infer, add -> batch_norm_infer_add, where the gradient of a
// batch norm over all ranks, or of micro-shards, was
// (model/sync_batch_norm.c):
//
//   dx = dy factor + batch_norm_infer(x, scale, bias, mean, var)

static bool epsilon_of(const choir_record_t* const* records, void* out_attrs) {
  *(choir_batch_norm_attrs_t*)out_attrs =
      *(const choir_batch_norm_attrs_t*)records[1]->attrs;
  return true;
}

const choir_fusion_t choir__fusion_norm_infer_add[] = {
    {.node_count = 3,
     .nodes = {{.op = CHOIR_OP_ADD},
               {.op = CHOIR_OP_BATCH_NORM_INFER, .source = 1},
               {.op = CHOIR_OP_MUL, .source = 0}},
     .op = CHOIR_OP_BATCH_NORM_INFER_ADD,
     .src_count = 7,
     .dst_count = 1,
     .operands =
         {{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 0}, {2, 1}, {0, ~0}},
     .attrs = epsilon_of},
    {.node_count = 0}};
