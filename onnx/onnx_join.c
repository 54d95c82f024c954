// SPDX-License-Identifier: Apache-2.0
// A MatMul by a matrix and the Add of a vector are how files hold a layer. They
// run as one op, which spares a pass over the result, where the Add alone reads
// what is between them.
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_internal.h"

static const choir__onnx_operator_t layer = {.name = "MatMul and Add",
                                             .call = choir__onnx_layer,
                                             .where = CHOIR__ONNX_ANY};

enum { READ = 1, READ_AGAIN = 2 };

static void note_reads(const choir__onnx_node_t* node, uint8_t* flags) {
  bool has_bodies = false;
  for (size_t k = 0; k < node->proto->n_attribute; ++k)
    has_bodies |= node->bodies[k] != NULL;
  for (int32_t k = 0; k < node->in_count; ++k)
    if (node->inputs[k] >= 0)
      flags[node->inputs[k]] |=
          flags[node->inputs[k]] & READ ? READ_AGAIN : READ;
  if (has_bodies) (void)choir__onnx_visit_reads(node, flags, 0, READ_AGAIN);
}

// A float initialiser of so many dimensions; NULL: it is none.
static const choir_view_t* constant_at(const choir__onnx_graph_t* graph,
                                       int32_t place, int32_t ndim) {
  if (place < 0 || !graph->places[place].constant) return NULL;
  const choir_view_t* view = choir_tensor_view(graph->places[place].constant);
  return choir_dtype_is_float(view->dtype) && view->ndim == ndim ? view : NULL;
}

static choir_status_t join(choir_onnx_t* onnx,
                           const choir__onnx_node_t* product,
                           choir__onnx_node_t* sum, int32_t side) {
  const int32_t places[] = {product->inputs[0], product->inputs[1],
                            sum->inputs[1 - side]};
  const choir_view_t* w = constant_at(onnx->graph, places[1], 2);
  const choir_view_t* b = constant_at(onnx->graph, places[2], 1);
  if (places[0] < 0 || !w || !b || b->shape[0] != w->shape[1]) return NULL;
  choir__onnx_node_t* node = choir_arena_alloc(onnx->arena, sizeof *node);
  int32_t* inputs = choir_arena_alloc(onnx->arena, sizeof places);
  if (!node || !inputs)
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for the graph");
  memcpy(inputs, places, sizeof places);
  *node = *product;
  node->op = &layer;
  node->inputs = inputs;
  node->in_count = 3;
  node->outputs = sum->outputs;
  sum->joined = node;
  sum->between = sum->inputs[side];
  return NULL;
}

static bool is_called(const choir__onnx_node_t* node, const char* name,
                      int32_t in_count) {
  return node->op && !*node->op->domain && strcmp(node->op->name, name) == 0 &&
         node->in_count == in_count && node->out_count == 1;
}

choir_status_t choir__onnx_join_layers(choir_onnx_t* onnx) {
  choir__onnx_graph_t* graph = onnx->graph;
  // A Gradient runs nodes again, one by one.
  for (int32_t i = 0; i < graph->node_count; ++i)
    if (graph->nodes[i].slice) return NULL;
  const size_t room = (size_t)graph->place_count + 1;
  uint8_t* flags = calloc(room, sizeof *flags);
  const choir__onnx_node_t** products = calloc(room, sizeof(void*));
  choir_status_t status = NULL;
  if (!flags || !products)
    status = CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for the graph");
  for (int32_t i = 0; !status && i < graph->node_count; ++i)
    note_reads(&graph->nodes[i], flags);
  for (int32_t i = 0; !status && i < graph->node_count; ++i) {
    choir__onnx_node_t* node = &graph->nodes[i];
    if (is_called(node, "MatMul", 2) && node->outputs[0] >= 0 &&
        !(flags[node->outputs[0]] & READ_AGAIN))
      products[node->outputs[0]] = node;
    if (!is_called(node, "Add", 2)) continue;
    for (int32_t side = 0; !status && side < 2; ++side)
      if (node->inputs[side] >= 0 && products[node->inputs[side]])
        status = join(onnx, products[node->inputs[side]], node, side);
  }
  free(flags);
  free(products);
  return status;
}
