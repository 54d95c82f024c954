// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tensor/fusion_def.h"

// conv2d, max_pool2d -> conv2d_max_pool2d, where the max_pool2d was, when the
// image between them is for the pooling only. Its gradients are made from the
// pooled image's and the argmax indices: of four elements of the image, three
// have none.

static bool attrs(const choir_record_t* const* records, void* out_attrs) {
  choir_conv2d_max_pool2d_attrs_t* both = out_attrs;
  memcpy(&both->pool, records[0]->attrs, sizeof both->pool);
  memcpy(&both->conv, records[1]->attrs, sizeof both->conv);
  return true;
}

static const choir_gradient_t gradients[] = {
    {CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT,
     1,
     5,
     {0, ~1, 1, ~0, CHOIR_DY},
     .rows = 1 | 2 | 8 | 16},
    {CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA,
     0,
     5,
     {0, ~1, 1, ~0, CHOIR_DY},
     .rows = 0},
    {.src_count = 0}};

const choir_fusion_t choir__fusion_conv_pool[] = {
    {.node_count = 2,
     .nodes = {{.op = CHOIR_OP_MAX_POOL2D}, {.op = CHOIR_OP_CONV2D}},
     .op = CHOIR_OP_CONV2D_MAX_POOL2D,
     .src_count = 3,
     .dst_count = 2,
     .operands = {{1, 0}, {1, 1}, {1, 2}, {0, ~0}, {0, ~1}},
     .attrs = attrs,
     .same_algorithm = 1,
     .gradients = gradients},
    {.node_count = 0}};
