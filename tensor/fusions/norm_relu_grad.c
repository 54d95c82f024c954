// SPDX-License-Identifier: Apache-2.0
#include "core/graph_backend.h"
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

// The record that wrote `view` before `node`, if it runs `op`, overwrites and
// made just this view; its node is *out_node.
static const choir_record_t* made_by(const choir_graph_t* graph,
                                     const choir_view_t* view, int32_t node,
                                     choir_op_t op, int32_t* out_node) {
  *out_node = choir_graph_writer(graph, view, node);
  if (*out_node < 0) return NULL;
  const choir_record_t* record = choir_graph_record(graph, *out_node);
  return record && choir__record_op(record) == op && !record->accumulate &&
                 choir__same_view(choir_record_dst(record, 0), view)
             ? record
             : NULL;
}

// The batch_norm_relu without residual that made y from the operands of `norm`,
// a batch_norm_grad at `node`; NULL: none.
static const choir_record_t* forward_of(const choir_graph_t* graph,
                                        const choir_view_t* y,
                                        const choir_record_t* norm,
                                        int32_t node) {
  int32_t at;
  const choir_record_t* forward =
      made_by(graph, y, node, CHOIR_OP_BATCH_NORM_RELU, &at);
  if (!forward || forward->src_count != 3) return NULL;
  const choir_batch_norm_attrs_t* a = forward->attrs;
  const choir_batch_norm_attrs_t* b = norm->attrs;
  const choir_view_t* of_forward[] = {
      choir_record_src(forward, 0), choir_record_src(forward, 1),
      choir_record_dst(forward, 1), choir_record_dst(forward, 2)};
  for (int32_t i = 0; i < 4; ++i)
    if (!choir__same_view(of_forward[i], choir_record_src(norm, i)))
      return NULL;
  if (a->epsilon != b->epsilon) return NULL;
  // Scale and bias are parameters: what the host or another stream might do to
  // them meanwhile would part them from the gradient in any case.
  const choir_view_t* kept[] = {of_forward[0], of_forward[1], of_forward[2],
                                of_forward[3], choir_record_src(forward, 2)};
  for (int32_t i = 0; i < 5; ++i)
    if (choir_graph_writer(graph, kept[i], node) > at) return NULL;
  return forward;
}

choir_status_t choir__fuse_norm_relu_grad(choir_graph_t* graph, int32_t node) {
  const choir_record_t* norm = choir_graph_record(graph, node);
  if (choir__record_op(norm) != CHOIR_OP_BATCH_NORM_GRAD || norm->accumulate)
    return NULL;
  const choir_view_t* g = choir_record_src(norm, 4);
  int32_t at;
  const choir_record_t* relu = made_by(graph, g, node, CHOIR_OP_RELU_GRAD, &at);
  if (!relu || !choir_graph_is_temporary(graph, g) ||
      choir_graph_next_use(graph, g, at) != node)
    return NULL;
  const choir_view_t* y = choir_record_src(relu, 0);
  const choir_view_t* dy[] = {choir_record_src(relu, 1), NULL};
  int32_t add;
  const choir_record_t* sum = made_by(graph, dy[0], at, CHOIR_OP_ADD, &add);
  if (sum && choir_graph_is_temporary(graph, dy[0]) &&
      choir_graph_next_use(graph, dy[0], add) == at &&
      choir_graph_next_use(graph, dy[0], at) < 0 &&
      choir_view_same_shape(choir_record_src(sum, 0), g) &&
      choir_view_same_shape(choir_record_src(sum, 1), g) &&
      choir_graph_is_unchanged(graph, choir_record_src(sum, 0), add, node) &&
      choir_graph_is_unchanged(graph, choir_record_src(sum, 1), add, node)) {
    dy[0] = choir_record_src(sum, 0);
    dy[1] = choir_record_src(sum, 1);
  } else {
    sum = NULL;
    if (!choir_graph_is_unchanged(graph, dy[0], at, node)) return NULL;
  }
  if (!choir_graph_is_unchanged(graph, y, at, node)) return NULL;

  choir_view_t operands[11];
  int32_t count = 0;
  operands[count++] = *choir_record_src(norm, 0);
  operands[count++] = *choir_record_src(norm, 1);
  const choir_record_t* forward = NULL;
  if (choir_graph_next_use(graph, g, node) < 0)
    forward = forward_of(graph, y, norm, node);
  if (forward) operands[count++] = *choir_record_src(forward, 2);
  operands[count++] = *choir_record_src(norm, 2);
  operands[count++] = *choir_record_src(norm, 3);
  if (!forward) operands[count++] = *y;
  operands[count++] = *dy[0];
  if (dy[1]) operands[count++] = *dy[1];
  const int32_t sources = count;
  for (int32_t i = 0; i < 3; ++i)
    operands[count++] = *choir_record_dst(norm, i);
  if (!forward) operands[count++] = *g;
  choir_record_t fused;
  if (!choir__fused_record(graph,
                           forward ? CHOIR_OP_BATCH_NORM_RELU_GRAD
                                   : CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD,
                           operands, sources, count - sources, norm->attrs,
                           false, norm, &fused))
    return NULL;
  CHOIR_TRY(choir_graph_put(graph, node, &fused));
  choir_graph_drop(graph, at);
  if (sum) choir_graph_drop(graph, add);
  return NULL;
}
