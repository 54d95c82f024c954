// SPDX-License-Identifier: Apache-2.0
#include <stdatomic.h>
#include <string.h>

#include "core/clock.h"
#include "tensor/kernels/cpu/cpu_internal.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

// ---- Instruction sets ----

static choir__isa_t detect_isa(void) {
#if defined(__x86_64__)
  // So that one variable of the environment limits all kernels.
  const choir__isa_t allowed = choir__dnnl_isa();
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && allowed == CHOIR__ISA_AVX512)
    return CHOIR__ISA_AVX512;
  if (avx2 && allowed >= CHOIR__ISA_AVX2) return CHOIR__ISA_AVX2;
#endif
  return CHOIR__ISA_BASE;
}

// -1: not looked up yet. Racing threads store the same value.
static atomic_int isa_in_force = -1;

choir__isa_t choir__isa(void) {
  int isa = atomic_load_explicit(&isa_in_force, memory_order_relaxed);
  if (isa < 0) {
    isa = (int)detect_isa();
    atomic_store_explicit(&isa_in_force, isa, memory_order_relaxed);
  }
  return (choir__isa_t)isa;
}

choir__isa_t choir__isa_limit(choir__isa_t isa) {
  const choir__isa_t best = detect_isa();
  const choir__isa_t chosen = isa < best ? isa : best;
  atomic_store_explicit(&isa_in_force, (int)chosen, memory_order_relaxed);
  return chosen;
}

bool choir__has_fma(void) {
#if defined(__x86_64__)
  return choir__isa() >= CHOIR__ISA_AVX2;
#else
  return true;
#endif
}

// ---- Threads ----

int32_t choir__cpu_threads(choir_stream_t* stream) {
  const int32_t threads = choir_device_threads(choir_stream_device(stream));
  if (threads <= 1) return 1;
  // A forked child has none of its parent's threads, and the OpenMP runtime
  // would wait for them for ever.
  return choir_process_is_forked_child() ? 1 : threads;
}

typedef void (*range_fn_t)(void* context, void* scratch, int64_t begin,
                           int64_t end);

static int64_t parts_of(int32_t threads, int64_t count, int64_t grain) {
  const int64_t most = count / (grain > 1 ? grain : 1);
  return most < threads ? most : threads;
}

// A part's scratch memory is `stride` bytes behind the one before.
static void run_parts(int64_t parts, int64_t count, range_fn_t fn,
                      void* context, char* scratch, size_t stride) {
  if (count <= 0) return;
#if defined(_OPENMP)
  if (parts > 1) {
    choir_threads_started();
#pragma omp parallel num_threads((int)parts)
    {
      const int64_t part = omp_get_thread_num();
      const int64_t given = omp_get_num_threads();
      fn(context, scratch ? scratch + (size_t)part * stride : NULL,
         count * part / given, count * (part + 1) / given);
    }
    return;
  }
#else
  (void)parts;
  (void)stride;
#endif
  fn(context, scratch, 0, count);
}

typedef struct plain_range_s {
  void (*fn)(void* context, int64_t begin, int64_t end);
  void* context;
} plain_range_t;

static void plain_range(void* context, void* scratch, int64_t begin,
                        int64_t end) {
  const plain_range_t* range = context;
  (void)scratch;
  range->fn(range->context, begin, end);
}

void choir__cpu_parallel(int32_t threads, int64_t count, int64_t grain,
                         void (*fn)(void* context, int64_t begin, int64_t end),
                         void* context) {
  plain_range_t range = {fn, context};
  run_parts(parts_of(threads, count, grain), count, plain_range, &range, NULL,
            0);
}

choir_status_t choir__cpu_parallel_scratch(choir_stream_t* stream,
                                           int64_t count, int64_t grain,
                                           size_t bytes, range_fn_t fn,
                                           void* context) {
  const int64_t parts = parts_of(choir__cpu_threads(stream), count, grain);
  const size_t stride = (bytes + 63) / 64 * 64;
  const size_t all = (size_t)(parts > 1 ? parts : 1) * stride;
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  void* scratch = NULL;
  if (all > 0) {
    scratch = pool.alloc(pool.self, all, 64);
    if (!scratch)
      return CHOIR_ERROR(OUT_OF_MEMORY,
                         "scratch memory of %lld thread(s): no %zu bytes",
                         (long long)(parts > 1 ? parts : 1), all);
  }
  run_parts(parts, count, fn, context, scratch, stride);
  if (scratch) pool.free(pool.self, scratch, all, 64);
  return NULL;
}

// ---- Operands ----

bool choir__all_f32(const choir_record_t* record) {
  for (int32_t i = 0; i < record->src_count + record->dst_count; i++)
    if (record->operands[i].dtype != CHOIR_DTYPE_F32) return false;
  return true;
}

typedef struct nest_task_s {
  const choir__nest_t* nest;
  void* const* data;
  const size_t* sizes;
  void (*fn)(const choir__plane_t* plane);
  const void* params;
  int32_t split;  // the dimension that the range is of
} nest_task_t;

// Elements of 16 bits are computed strip by strip, while the next strip of the
// sources comes from memory. A long formula has so many instructions for each
// element that few loads are within what the processor looks ahead: without
// that gelu_grad took more than twice as long. Loops of f32 wait for memory
// anyway, and sums of two of them are a tenth slower in strips.
enum { STRIP = 512, CACHE_LINE = 64 };  // elements, bytes

// Whether the plane is one row of more than a strip, each operand side by side
// or the same element all along.
static bool has_strips(const nest_task_t* task, const choir__plane_t* plane) {
  bool is_dense = true;
  for (int32_t i = 0; i < task->nest->operand_count; i++)
    is_dense &= plane->column_stride[i] == 0 || plane->column_stride[i] == 1;
  return is_dense && task->sizes[0] == 2 && plane->rows == 1 &&
         plane->columns > STRIP;
}

static void prefetch(const char* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(data + i);
}

static void run_strips(const nest_task_t* task, choir__plane_t plane) {
  int64_t bytes[CHOIR__NEST_OPERANDS];  // from one element to the next
  const int32_t operands = task->nest->operand_count;
  for (int32_t i = 0; i < operands; i++)
    bytes[i] = plane.column_stride[i] * (int64_t)task->sizes[i];
  for (int64_t left = plane.columns; left > 0; left -= plane.columns) {
    plane.columns = left < STRIP ? left : STRIP;
    const int64_t rest = left - plane.columns;
    for (int32_t i = 1; i < operands; i++)
      prefetch(plane.data[i] + plane.columns * bytes[i],
               (rest < STRIP ? rest : STRIP) * bytes[i]);
    task->fn(&plane);
    for (int32_t i = 0; i < operands; i++)
      plane.data[i] += plane.columns * bytes[i];
  }
}

// Runs the nest with dimension `split` cut down to begin .. end.
static void nest_range(void* context, int64_t begin, int64_t end) {
  const nest_task_t* task = context;
  const choir__nest_t* nest = task->nest;
  const int32_t operands = nest->operand_count;
  const int32_t outer = nest->ndim - 2;
  int64_t shape[CHOIR_MAX_NDIM];
  memcpy(shape, nest->shape, sizeof(shape));
  shape[task->split] = end - begin;
  choir__plane_t plane = {.rows = shape[outer],
                          .columns = shape[outer + 1],
                          .params = task->params};
  for (int32_t i = 0; i < operands; i++) {
    plane.data[i] = (char*)task->data[i] + begin *
                                               nest->strides[i][task->split] *
                                               (int64_t)task->sizes[i];
    plane.row_stride[i] = nest->strides[i][outer];
    plane.column_stride[i] = nest->strides[i][outer + 1];
  }
  int64_t index[CHOIR_MAX_NDIM] = {0};
  for (;;) {
    if (has_strips(task, &plane))
      run_strips(task, plane);
    else
      task->fn(&plane);
    int32_t k = outer - 1;
    for (; k >= 0; k--) {
      const bool carry = ++index[k] == shape[k];
      const int64_t steps = carry ? -(shape[k] - 1) : 1;
      for (int32_t i = 0; i < operands; i++)
        plane.data[i] += steps * nest->strides[i][k] * (int64_t)task->sizes[i];
      if (!carry) break;
      index[k] = 0;
    }
    if (k < 0) return;
  }
}

void choir__nest_run(const choir__nest_t* nest, void* const* data,
                     const size_t* sizes, int32_t threads,
                     void (*fn)(const choir__plane_t* plane),
                     const void* params) {
  if (nest->count == 0) return;
  // The first dimension with a choice is shared out.
  int32_t split = 0;
  while (split < nest->ndim - 1 && nest->shape[split] < threads) split++;
  nest_task_t task = {nest, data, sizes, fn, params, split};
  const int64_t inner = nest->count / nest->shape[split];
  int64_t grain = CHOIR__CPU_GRAIN / (inner > 0 ? inner : 1);
  choir__cpu_parallel(threads, nest->shape[split], grain > 1 ? grain : 1,
                      nest_range, &task);
}

// ---- Sums ----

enum { SUMS_GRAIN = 2048 };  // that a thread adds up at a time

CHOIR__BODY void add_up_body(float* to, const float* from, int64_t count) {
  CHOIR__INDEPENDENT
  for (int64_t i = 0; i < count; i++) to[i] += from[i];
}
CHOIR__ISA_VARIANTS(add_up, (float* to, const float* from, int64_t count),
                    (to, from, count))

void choir__cpu_sum_into(float* to, const float* from, int64_t count) {
  add_up(to, from, count);
}

typedef struct segment_sums_s {
  float* sums;
  int64_t segments, count;
} segment_sums_t;

static void add_segments_range(void* context, int64_t begin, int64_t end) {
  const segment_sums_t* of = context;
  const int64_t first = begin * SUMS_GRAIN;
  const int64_t last =
      end * SUMS_GRAIN < of->count ? end * SUMS_GRAIN : of->count;
  for (int64_t step = 1; step < of->segments; step *= 2)
    for (int64_t i = 0; i + step < of->segments; i += 2 * step)
      add_up(of->sums + i * of->count + first,
             of->sums + (i + step) * of->count + first, last - first);
}

void choir__cpu_add_segments(float* sums, int64_t segments, int64_t count,
                             int32_t threads) {
  segment_sums_t of = {sums, segments, count};
  choir__cpu_parallel(threads, (count + SUMS_GRAIN - 1) / SUMS_GRAIN, 1,
                      add_segments_range, &of);
}
