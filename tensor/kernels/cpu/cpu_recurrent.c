// SPDX-License-Identifier: Apache-2.0
// Recurrent networks. Samples do not depend on each other, so each thread takes
// some of them through all steps and waits for no other one. W, which every
// step multiplies by, is brought once to panels.
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_panels.h"
#include "tensor/kernels/element_math.h"
#include "tensor/ops/recurrent.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SHARE_WORK = 1 << 18 };  // multiply-adds worth a thread of their own

typedef struct run_s {
  choir__recurrent_t s;
  const float* x;
  const float* b;  // gru's
  float* states;
  float* gates;
  float* mask;
  const float* dstates;
  float* dx;
  float* dinitial;
  // In the scratch memory:
  int64_t* lengths;
  float* panels;  // of W, or of its transpose
  float* dw;      // gru's; NULL: dx
} run_t;

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_recurrent_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"
#define STEP_PARAMS                                                            \
  (const run_t* run, choir__recurrent_step_t step, int64_t begin, int64_t end, \
   bool is_in)
CHOIR__ISA_SELECT(forward_step, STEP_PARAMS, (run, step, begin, end, is_in))
CHOIR__ISA_SELECT(backward_step, STEP_PARAMS, (run, step, begin, end, is_in))
CHOIR__ISA_SELECT(take, (float* y, const float* x, int64_t n), (y, x, n))

// A step of samples begin .. end - 1, in runs of those that are in their length
// and those that are after it: W is to touch only the first, as it may hold
// infinities.
static void run_step(const run_t* run, int64_t k, int64_t begin, int64_t end) {
  const choir__recurrent_step_t step = choir__recurrent_step(&run->s, k);
  while (begin < end) {
    const bool is_in = step.at < run->lengths[begin];
    int64_t next = begin + 1;
    while (next < end && (step.at < run->lengths[next]) == is_in) next++;
    (run->dinitial ? backward_step : forward_step)(run, step, begin, next,
                                                   is_in);
    begin = next;
  }
}

static void forward_range(void* context, int64_t begin, int64_t end) {
  const run_t* run = context;
  for (int64_t k = 0; k < run->s.steps; k++) run_step(run, k, begin, end);
}

static void backward_range(void* context, int64_t begin, int64_t end) {
  const run_t* run = context;
  const choir__recurrent_t* s = &run->s;
  const int64_t plane = s->batch * s->hidden, first = begin * s->hidden;
  const int64_t count = (end - begin) * s->hidden;
  for (int64_t state = 0; state < s->states; state++)
    memset(run->dinitial + state * plane + first, 0,
           (size_t)count * sizeof(float));
  for (int64_t k = s->steps - 1; k >= 0; k--) run_step(run, k, begin, end);
  for (int64_t state = 0; state < s->states; state++)
    take(run->dinitial + state * plane + first,
         run->dstates + first +
             (state * (s->steps + 1) + (s->reverse ? s->steps : 0)) * plane,
         count);
}

static choir_status_t run_all(const choir_record_t* record,
                              choir_stream_t* stream, run_t* run,
                              bool is_grad) {
  const choir__recurrent_t* s = &run->s;
  const float* w = choir__view_f32(choir_record_src(record, 2));
  const int64_t k = is_grad ? s->gates : s->hidden;
  const int64_t columns = is_grad ? s->hidden : s->gates;
  const int64_t lengths = s->batch + 8;  // keeps the panels aligned
  const int64_t panels = choir__panel_columns(columns) * k;
  const int64_t dw =
      is_grad && s->cell == CHOIR_CELL_GRU ? s->batch * s->gates : 0;
  const size_t bytes = (size_t)(lengths / 8 * 8) * sizeof(int64_t) +
                       (size_t)(panels + dw) * sizeof(float);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  char* memory = pool.alloc(pool.self, bytes, 64);
  if (!memory)
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: no %zu bytes", record->kernel->name,
                       bytes);
  run->lengths = (int64_t*)(void*)memory;
  run->panels = (float*)(void*)(run->lengths + lengths / 8 * 8);
  run->dw = dw ? run->panels + panels : NULL;
  choir_status_t status = choir__recurrent_lengths(record, s, run->lengths);
  if (!status) {
    choir__panels_pack(w, k, columns, is_grad ? 1 : s->gates,
                       is_grad ? s->gates : 1, run->panels);
    const int64_t work = s->steps * s->hidden * s->gates;
    choir__cpu_parallel(choir__cpu_threads(stream), s->batch,
                        work > 0 ? (SHARE_WORK + work - 1) / work : s->batch,
                        is_grad ? backward_range : forward_range, run);
  }
  pool.free(pool.self, memory, bytes, 64);
  return status;
}

// The lengths may lie as they like.
static bool is_dense(const choir_record_t* record) {
  for (int32_t i = 0; i < record->src_count + record->dst_count; i++) {
    const choir_view_t* view = &record->operands[i];
    if (i != 1 &&
        (view->dtype != CHOIR_DTYPE_F32 || !choir_view_is_contiguous(view)))
      return false;
  }
  return !record->accumulate;
}

static run_t run_of(const choir_record_t* record) {
  return (run_t){.s = choir__recurrent_of(record->attrs,
                                          choir_record_src(record, 0),
                                          choir_record_src(record, 2))};
}

static choir_status_t recurrent_run(const choir_record_t* record,
                                    choir_stream_t* stream) {
  run_t run = run_of(record);
  run.x = choir__view_f32(choir_record_src(record, 0));
  if (record->src_count > 4)
    run.b = choir__view_f32(choir_record_src(record, 4));
  run.states = choir__view_f32(choir_record_dst(record, 0));
  run.gates = choir__view_f32(choir_record_dst(record, 1));
  run.mask = choir__view_f32(choir_record_dst(record, 2));
  const int64_t plane = run.s.batch * run.s.hidden;
  const int64_t first = run.s.reverse ? run.s.steps : 0;
  for (int64_t k = 0; k < run.s.states; k++)
    memcpy(run.states + (k * (run.s.steps + 1) + first) * plane,
           choir__view_f32(choir_record_src(record, 3)) + k * plane,
           (size_t)plane * sizeof(float));
  return run_all(record, stream, &run, false);
}
const choir_op_kernel_t choir__cpu_recurrent = CHOIR_OP_KERNEL(
    CHOIR_OP_RECURRENT, "recurrent", "cpu", recurrent_run, is_dense);

static choir_status_t recurrent_grad_run(const choir_record_t* record,
                                         choir_stream_t* stream) {
  run_t run = run_of(record);
  run.gates = choir__view_f32(choir_record_src(record, 0));
  run.states = choir__view_f32(choir_record_src(record, 3));
  run.dstates = choir__view_f32(choir_record_src(record, 4));
  run.dx = choir__view_f32(choir_record_dst(record, 0));
  run.dinitial = choir__view_f32(choir_record_dst(record, 1));
  return run_all(record, stream, &run, true);
}
const choir_op_kernel_t choir__cpu_recurrent_grad =
    CHOIR_OP_KERNEL(CHOIR_OP_RECURRENT_GRAD, "recurrent_grad", "cpu",
                    recurrent_grad_run, is_dense);
