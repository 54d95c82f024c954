// SPDX-License-Identifier: Apache-2.0
#include "tensor/fusion_def.h"

#include "core/graph_backend.h"
#include "tensor/strided_internal.h"

typedef choir_status_t (*fusion_t)(choir_graph_t* graph, int32_t node);

static const fusion_t fusions[] = {
#define X(name) choir__fuse_##name,
#include "tensor/fusions/fusions.def"
#undef X
    NULL};

choir_status_t choir__graph_fuse(choir_graph_t* graph) {
  for (int i = 0; fusions[i]; ++i)
    for (int32_t node = choir_graph_node_count(graph); node-- > 0;)
      if (choir_graph_record(graph, node)) CHOIR_TRY(fusions[i](graph, node));
  return NULL;
}

const choir_op_kernel_t* choir__fused_record(
    const choir_graph_t* graph, choir_op_t op, const choir_view_t* operands,
    int32_t src_count, int32_t dst_count, const void* attrs, bool accumulate,
    const choir_record_t* like, choir_record_t* out_record) {
  const choir_op_def_t* def = choir__op_def(op);
  *out_record = (choir_record_t){
      .operation = choir__operation(op),
      .operands = operands,
      .src_count = src_count,
      .dst_count = dst_count,
      .accumulate = accumulate,
      .attrs = attrs,
      .attrs_bytes = def->attrs ? def->attrs->bytes : 0,
      .at_step = def->at_step,
      .label = like->label,
  };
  return choir__native_kernel(choir_graph_device(graph), out_record);
}

bool choir__same_view(const choir_view_t* a, const choir_view_t* b) {
  return choir__views_equal(a, b);
}
