// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/graph_backend.h"
#include "tensor/fusion_def.h"

// conv2d, max_pool2d -> conv2d_max_pool2d, where the max_pool2d was, when the
// image between them is for the pooling only. (Its gradient goes by the
// winners, see autograd/rules/image_rules.c.)

choir_status_t choir__fuse_conv_pool(choir_graph_t* graph, int32_t node) {
  const choir_record_t* pool = choir_graph_record(graph, node);
  if (choir__record_op(pool) != CHOIR_OP_MAX_POOL2D) return NULL;
  const choir_view_t* image = choir_record_src(pool, 0);
  const int32_t at = choir_graph_writer(graph, image, node);
  if (at < 0 || !choir_graph_is_temporary(graph, image) ||
      choir_graph_next_use(graph, image, at) != node ||
      choir_graph_next_use(graph, image, node) >= 0)
    return NULL;
  const choir_record_t* conv = choir_graph_record(graph, at);
  if (!conv || choir__record_op(conv) != CHOIR_OP_CONV2D || conv->accumulate ||
      !choir__same_view(choir_record_dst(conv, 0), image))
    return NULL;
  choir_view_t operands[5];
  for (int32_t i = 0; i < 3; ++i) {
    operands[i] = *choir_record_src(conv, i);
    if (!choir_graph_is_unchanged(graph, &operands[i], at, node)) return NULL;
  }
  for (int32_t i = 0; i < 2; ++i) operands[3 + i] = *choir_record_dst(pool, i);
  choir_conv2d_max_pool2d_attrs_t attrs;
  memset(&attrs, 0, sizeof attrs);
  memcpy(&attrs.conv, conv->attrs, sizeof attrs.conv);
  memcpy(&attrs.pool, pool->attrs, sizeof attrs.pool);
  choir_record_t fused;
  const choir_op_kernel_t* together =
      choir__fused_record(graph, CHOIR_OP_CONV2D_MAX_POOL2D, operands, 3, 2,
                          &attrs, false, conv, &fused);
  const choir_op_kernel_t* alone =
      choir__native_kernel(choir_graph_device(graph), conv);
  // One algorithm gives the same bits.
  if (!together || !alone || strcmp(together->algorithm, alone->algorithm) != 0)
    return NULL;
  CHOIR_TRY(choir_graph_put(graph, node, &fused));
  choir_graph_drop(graph, at);
  return NULL;
}
