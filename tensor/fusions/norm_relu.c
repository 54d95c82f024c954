// SPDX-License-Identifier: Apache-2.0
#include "core/graph_backend.h"
#include "tensor/fusion_def.h"

// batch_norm (, add), relu -> batch_norm_relu, where the batch_norm was:
//
//   z, mean, var = batch_norm(x, scale, bias)
//   (s = z + residual)
//   y = relu(s)
//
// The averages for evaluation are records between these, so mean and var must
// not come later; y comes earlier, which nobody minds who does not use it yet.

// Whether `view`, written at `from`, is read at `to` and nowhere else, so that
// it need not be.
static bool is_between(const choir_graph_t* graph, const choir_view_t* view,
                       int32_t from, int32_t to) {
  return choir_graph_is_temporary(graph, view) &&
         choir_graph_next_use(graph, view, from) == to &&
         choir_graph_next_use(graph, view, to) < 0;
}

// The node of the batch_norm whose first result is `view` at `node`; -1: none.
static int32_t norm_before(const choir_graph_t* graph, const choir_view_t* view,
                           int32_t node) {
  const int32_t writer = choir_graph_writer(graph, view, node);
  if (writer < 0) return -1;
  const choir_record_t* norm = choir_graph_record(graph, writer);
  return norm && choir__record_op(norm) == CHOIR_OP_BATCH_NORM &&
                 !norm->accumulate &&
                 choir__same_view(choir_record_dst(norm, 0), view) &&
                 is_between(graph, view, writer, node)
             ? writer
             : -1;
}

choir_status_t choir__fuse_norm_relu(choir_graph_t* graph, int32_t node) {
  const choir_record_t* relu = choir_graph_record(graph, node);
  if (choir__record_op(relu) != CHOIR_OP_RELU || relu->accumulate) return NULL;
  const choir_view_t* s = choir_record_src(relu, 0);
  const choir_view_t* y = choir_record_dst(relu, 0);
  int32_t at = norm_before(graph, s, node);
  int32_t add = -1;
  const choir_view_t* residual = NULL;
  if (at < 0) {
    add = choir_graph_writer(graph, s, node);
    if (add < 0) return NULL;
    const choir_record_t* sum = choir_graph_record(graph, add);
    if (!sum || choir__record_op(sum) != CHOIR_OP_ADD || sum->accumulate ||
        !choir__same_view(choir_record_dst(sum, 0), s) ||
        !is_between(graph, s, add, node))
      return NULL;
    // The later one of two normalisations, when both sides are.
    int32_t side = 0;
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t norm = norm_before(graph, choir_record_src(sum, i), add);
      if (norm <= at) continue;
      at = norm;
      side = i;
    }
    if (at < 0) return NULL;
    residual = choir_record_src(sum, 1 - side);
    if (!choir_view_same_shape(residual, s) ||
        choir_graph_writer(graph, residual, add) >= at)
      return NULL;
  }
  if (!choir_graph_is_temporary(graph, y) ||
      choir_graph_writer(graph, y, node) >= 0 ||
      choir_graph_next_use(graph, y, at) != node)
    return NULL;
  const choir_record_t* norm = choir_graph_record(graph, at);
  choir_view_t operands[7];
  int32_t sources = 0;
  for (; sources < 3; ++sources)
    operands[sources] = *choir_record_src(norm, sources);
  if (residual) operands[sources++] = *residual;
  operands[sources] = *y;
  for (int32_t i = 1; i < 3; ++i)
    operands[sources + i] = *choir_record_dst(norm, i);
  choir_record_t fused;
  if (!choir__fused_record(graph, CHOIR_OP_BATCH_NORM_RELU, operands, sources,
                           3, norm->attrs, false, norm, &fused))
    return NULL;
  CHOIR_TRY(choir_graph_put(graph, at, &fused));
  if (add >= 0) choir_graph_drop(graph, add);
  choir_graph_drop(graph, node);
  return NULL;
}
