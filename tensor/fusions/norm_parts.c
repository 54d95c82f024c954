// SPDX-License-Identifier: Apache-2.0
#include "tensor/fusion_def.h"

// Batch norms over all ranks, or of micro-shards (model/sync_batch_norm.c):
//
//   z, mean, var = batch_norm(x, scale, bias)            z is read by nobody
//   dz, dscale, dbias = batch_norm_grad(x, scale, mean, var, dy)   nor is dz
//   dx = dy factor + batch_norm_infer(x, scale, bias, mean, var)

static bool epsilon_of_infer(const choir_record_t* const* records,
                             void* out_attrs) {
  *(choir_batch_norm_attrs_t*)out_attrs =
      *(const choir_batch_norm_attrs_t*)records[1]->attrs;
  return true;
}

const choir_fusion_t choir__fusion_norm_parts[] = {
    {.node_count = 1,
     .nodes = {{.op = CHOIR_OP_BATCH_NORM}},
     .op = CHOIR_OP_BATCH_NORM_MOMENTS,
     .src_count = 1,
     .dst_count = 2,
     .operands = {{0, 0}, {0, ~1}, {0, ~2}}},
    {.node_count = 1,
     .nodes = {{.op = CHOIR_OP_BATCH_NORM_GRAD}},
     .op = CHOIR_OP_BATCH_NORM_GRAD_SUMS,
     .src_count = 4,
     .dst_count = 2,
     .operands = {{0, 0}, {0, 2}, {0, 3}, {0, 4}, {0, ~1}, {0, ~2}}},
    {.node_count = 3,
     .nodes = {{.op = CHOIR_OP_ADD},
               {.op = CHOIR_OP_BATCH_NORM_INFER, .source = 1},
               {.op = CHOIR_OP_MUL, .source = 0}},
     .op = CHOIR_OP_BATCH_NORM_INFER_ADD,
     .src_count = 7,
     .dst_count = 1,
     .operands =
         {{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 0}, {2, 1}, {0, ~0}},
     .attrs = epsilon_of_infer},
    {.node_count = 0}};
