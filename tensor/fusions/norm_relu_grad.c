// SPDX-License-Identifier: Apache-2.0
#include "tensor/fusion_def.h"

// (add,) relu_grad, batch_norm_grad -> batch_norm_relu_grad or
// batch_norm_add_relu_grad, where the batch_norm_grad was:
//
//   (dy = dy1 + dy2)
//   g = relu_grad(y, dy)
//   dx, dscale, dbias = batch_norm_grad(x, scale, mean, var, g)
//
// When nobody else wants g and y = batch_norm_relu(x, scale, bias), the first,
// which neither reads y nor writes g; else the second, which has g as a result.

static bool same_epsilon(const choir_record_t* const* records,
                         void* out_attrs) {
  const choir_batch_norm_attrs_t* backward = records[0]->attrs;
  const choir_batch_norm_attrs_t* forward = records[2]->attrs;
  *(choir_batch_norm_attrs_t*)out_attrs = *backward;
  return forward->epsilon == backward->epsilon;
}

#define NORM_GRAD \
  { .op = CHOIR_OP_BATCH_NORM_GRAD }
#define RELU_GRAD \
  { .op = CHOIR_OP_RELU_GRAD, .source = 4 }
// y, and that it was made from what the gradient is of.
#define FORWARD                                                               \
  {                                                                           \
    .op = CHOIR_OP_BATCH_NORM_RELU, .reader = 1, .source = 0, .src_count = 3, \
    .stays = true                                                             \
  }
#define ADD \
  { .op = CHOIR_OP_ADD, .reader = 1, .source = 1 }
#define OF_FORWARD             \
  .same_count = 4,             \
  .same = {{{2, 0}, {0, 0}},   \
           {{2, 1}, {0, 1}},   \
           {{2, ~1}, {0, 2}},  \
           {{2, ~2}, {0, 3}}}, \
  .op = CHOIR_OP_BATCH_NORM_RELU_GRAD, .dst_count = 3, .attrs = same_epsilon
#define ITSELF .op = CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD, .dst_count = 4
#define RESULTS \
  {0, ~0}, {0, ~1}, { 0, ~2 }

const choir_fusion_t choir__fusion_norm_relu_grad[] = {
    {.node_count = 4,
     .nodes = {NORM_GRAD, RELU_GRAD, FORWARD, ADD},
     OF_FORWARD,
     .src_count = 7,
     .operands =
         {{0, 0}, {0, 1}, {2, 2}, {0, 2}, {0, 3}, {3, 0}, {3, 1}, RESULTS}},
    {.node_count = 3,
     .nodes = {NORM_GRAD, RELU_GRAD, FORWARD},
     OF_FORWARD,
     .src_count = 6,
     .operands = {{0, 0}, {0, 1}, {2, 2}, {0, 2}, {0, 3}, {1, 1}, RESULTS}},
    {.node_count = 3,
     .nodes = {NORM_GRAD, RELU_GRAD, ADD},
     ITSELF,
     .src_count = 7,
     .operands = {{0, 0},
                  {0, 1},
                  {0, 2},
                  {0, 3},
                  {1, 0},
                  {2, 0},
                  {2, 1},
                  RESULTS,
                  {1, ~0}}},
    {.node_count = 2,
     .nodes = {NORM_GRAD, RELU_GRAD},
     ITSELF,
     .src_count = 6,
     .operands =
         {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 1}, RESULTS, {1, ~0}}},
    {.node_count = 0}};
