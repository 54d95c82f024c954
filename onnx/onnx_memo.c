// SPDX-License-Identifier: Apache-2.0
// What is known before the step (shapes, masks) is mostly the same in each
// forward: a node of the file's graph that is computed on the host gives again
// what it gave, where its inputs are what they were.
#include <string.h>

#include "onnx/onnx_internal.h"

struct choir__onnx_memo_s {
  choir__onnx_memo_t* next;  // of all
  bool is_set;
  bool is_training;
  int32_t in_count, out_count;
  choir_tensor_t** inputs;  // retained, as all that follow; NULL: absent
  choir_tensor_t** outputs;
  choir_tensor_t** moved;  // on the step's device, once needed
  int32_t* types;          // of outputs
};

enum { SMALL = 256 };  // bytes that are compared

static void clear(choir__onnx_memo_t* memo) {
  for (int32_t i = 0; i < memo->in_count; ++i)
    choir_tensor_release(memo->inputs[i]);
  for (int32_t i = 0; i < memo->out_count; ++i) {
    choir_tensor_release(memo->outputs[i]);
    choir_tensor_release(memo->moved[i]);
    memo->outputs[i] = memo->moved[i] = NULL;
  }
  for (int32_t i = 0; i < memo->in_count; ++i) memo->inputs[i] = NULL;
  memo->is_set = false;
}

void choir__onnx_forget(choir_onnx_t* onnx) {
  for (choir__onnx_memo_t* memo = onnx->memos; memo; memo = memo->next)
    clear(memo);
  onnx->memos = NULL;
}

static bool make(choir_onnx_t* onnx, choir__onnx_node_t* node) {
  choir__onnx_memo_t* memo = choir_arena_alloc(onnx->arena, sizeof *memo);
  const size_t ins = (size_t)node->in_count, outs = (size_t)node->out_count;
  choir_tensor_t** tensors =
      choir_arena_alloc(onnx->arena, sizeof(void*) * (ins + 2 * outs + 1));
  int32_t* types = choir_arena_alloc(onnx->arena, sizeof(int32_t) * (outs + 1));
  if (!memo || !tensors || !types) return false;
  memset(tensors, 0, sizeof(void*) * (ins + 2 * outs + 1));
  *memo = (choir__onnx_memo_t){.next = onnx->memos,
                               .in_count = node->in_count,
                               .out_count = node->out_count,
                               .inputs = tensors,
                               .outputs = tensors + ins,
                               .moved = tensors + ins + outs,
                               .types = types};
  onnx->memos = node->memo = memo;
  return true;
}

choir_status_t choir__onnx_make_memos(choir_onnx_t* onnx) {
  for (int32_t i = 0; i < onnx->graph->node_count; ++i) {
    choir__onnx_node_t* node = &onnx->graph->nodes[i];
    if (node->op->where == CHOIR__ONNX_ANY && !make(onnx, node))
      return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for the graph");
  }
  return NULL;
}

static bool is_same(choir_tensor_t* now, choir_tensor_t* before) {
  if (now == before) return true;
  if (!now || !before) return false;
  const choir_view_t *a = choir_tensor_view(now),
                     *b = choir_tensor_view(before);
  const size_t bytes =
      (size_t)choir_view_count(a) * choir_dtype_bytes(a->dtype);
  if (bytes > SMALL || a->dtype != b->dtype || !choir_view_same_shape(a, b))
    return false;
  char x[SMALL], y[SMALL];
  choir_status_t status = choir_tensor_read(now, x, bytes);
  if (!status) status = choir_tensor_read(before, y, bytes);
  const bool is_read = !status;
  choir_status_free(status);
  return is_read && memcmp(x, y, bytes) == 0;
}

static choir_tensor_t* tensor_of(const choir__onnx_value_t* value) {
  return value->var ? choir_var_tensor(value->var) : NULL;
}

bool choir__onnx_recall(choir__onnx_run_t* run, const choir__onnx_node_t* node,
                        choir__onnx_value_t* const* inputs,
                        choir__onnx_value_t* outputs) {
  choir__onnx_memo_t* memo = node->memo;
  if (!memo->is_set || memo->is_training != run->is_training) return false;
  for (int32_t i = 0; i < memo->in_count; ++i)
    if (!is_same(tensor_of(inputs[i]), memo->inputs[i])) return false;
  for (int32_t i = 0; i < memo->out_count; ++i) {
    if (!memo->outputs[i]) continue;
    outputs[i] = (choir__onnx_value_t){
        .var = choir_scope_input(run->known, memo->outputs[i]),
        .kept = &memo->moved[i],
        .type = memo->types[i],
        .is_known = true};
    if (!outputs[i].var) return false;
  }
  return true;
}

void choir__onnx_remember(choir__onnx_run_t* run,
                          const choir__onnx_node_t* node,
                          choir__onnx_value_t* const* inputs,
                          choir__onnx_value_t* outputs) {
  choir__onnx_memo_t* memo = node->memo;
  clear(memo);
  for (int32_t i = 0; i < memo->out_count; ++i)
    if (outputs[i].is_sequence || (outputs[i].var && !tensor_of(&outputs[i])))
      return;
  for (int32_t i = 0; i < memo->in_count; ++i) {
    memo->inputs[i] = tensor_of(inputs[i]);
    if (memo->inputs[i]) choir_tensor_retain(memo->inputs[i]);
  }
  for (int32_t i = 0; i < memo->out_count; ++i) {
    memo->outputs[i] = tensor_of(&outputs[i]);
    if (memo->outputs[i]) choir_tensor_retain(memo->outputs[i]);
    memo->types[i] = outputs[i].type;
    outputs[i].kept = &memo->moved[i];
  }
  memo->is_training = run->is_training;
  memo->is_set = true;
}
