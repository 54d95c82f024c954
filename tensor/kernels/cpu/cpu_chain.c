// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/chain.h"
#include "tensor/kernels/chain_kernel.h"
#include "tensor/kernels/cpu/cpu_elementwise.h"

// Chains run block by block: each step's loop, that of its op, over a block,
// before the next block begins. So values stay where the processor's caches are
// fast; one that is stored lies in the destination, the others here.

enum { BLOCK = 2048 };  // elements: 8 KiB

typedef struct chain_task_s {
  const choir__chain_t* chain;
  float* data[CHOIR__CHAIN_OPERANDS];
} chain_task_t;

typedef float block_values_t[CHOIR__CHAIN_VALUES][BLOCK];

// Lets operand k of the plane be what a step takes.
static void take(const chain_task_t* task, float* const* values, int32_t place,
                 int64_t begin, int32_t k, choir__plane_t* plane) {
  const int32_t operand = place - CHOIR__CHAIN_VALUES;
  const bool is_single =
      operand >= 0 && (task->chain->singles >> operand & 1u) != 0;
  float* data = operand < 0 ? values[place]
                            : task->data[operand] + (is_single ? 0 : begin);
  plane->data[k] = (char*)data;
  plane->column_stride[k] = is_single ? 0 : 1;
}

static void run_block(const chain_task_t* task, block_values_t room,
                      int64_t begin, int64_t count) {
  float* values[CHOIR__CHAIN_VALUES] = {NULL};  // a step makes each first
  for (int32_t s = 0; s < task->chain->step_count; ++s) {
    const choir__chain_step_t* step = &task->chain->steps[s];
    choir__plane_t plane = {
        .rows = 1, .columns = count, .params = &step->params};
    take(task, values, step->left, begin, 1, &plane);
    take(task, values, step->right, begin, 2, &plane);
    float* y =
        step->store < 0 ? room[step->value] : task->data[step->store] + begin;
    plane.data[0] = (char*)y;
    plane.column_stride[0] = 1;
    choir__cpu_formula((choir__formula_t)step->formula)(&plane);
    values[step->value] = y;
  }
}

static void run_range(void* context, int64_t begin, int64_t end) {
  const chain_task_t* task = context;
  _Alignas(64) block_values_t room;
  for (; begin < end; begin += BLOCK)
    run_block(task, room, begin, end - begin < BLOCK ? end - begin : BLOCK);
}

static choir_status_t chain_run(const choir_record_t* record,
                                choir_stream_t* stream) {
  chain_task_t task = {.chain = record->attrs};
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i)
    task.data[i] = choir__view_f32(&record->operands[i]);
  choir__cpu_parallel(choir__cpu_threads(stream),
                      choir_view_count(choir_record_dst(record, 0)),
                      CHOIR__CPU_GRAIN, run_range, &task);
  return NULL;
}

#define CHAIN \
  { {.name = "chain/cpu", .run = chain_run, .cost = choir__cost_bytes}, NULL }
const choir__chain_kernel_t choir__cpu_chain = CHAIN;
const choir__chain_kernel_t choir__defined_chain = CHAIN;
