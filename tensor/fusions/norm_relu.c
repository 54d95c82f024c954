// SPDX-License-Identifier: Apache-2.0
#include "tensor/fusion_def.h"

// batch_norm (, add), relu -> batch_norm_relu, where the batch_norm was:
//
//   z, mean, var = batch_norm(x, scale, bias)
//   (s = z + residual)
//   y = relu(s)
//
// The averages for evaluation are records between these, so mean and var must
// not come later; y comes earlier, which nobody minds who does not use it yet.
// Its kernels take x and y of one dtype alone, which z and s have then too:
// they are rounded to it.

const choir_fusion_t choir__fusion_norm_relu[] = {
    {.node_count = 2,
     .nodes = {{.op = CHOIR_OP_RELU}, {.op = CHOIR_OP_BATCH_NORM}},
     .op = CHOIR_OP_BATCH_NORM_RELU,
     .place = 1,
     .src_count = 3,
     .dst_count = 3,
     .operands = {{1, 0}, {1, 1}, {1, 2}, {0, ~0}, {1, ~1}, {1, ~2}}},
    {.node_count = 3,
     .nodes = {{.op = CHOIR_OP_RELU},
               {.op = CHOIR_OP_ADD},
               {.op = CHOIR_OP_BATCH_NORM,
                .reader = 1,
                .source = CHOIR_EITHER}},
     .op = CHOIR_OP_BATCH_NORM_RELU,
     .place = 2,
     .src_count = 4,
     .dst_count = 3,
     .operands =
         {{2, 0}, {2, 1}, {2, 2}, {1, CHOIR_OTHER}, {0, ~0}, {2, ~1}, {2, ~2}}},
    {.node_count = 0}};
