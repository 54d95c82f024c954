// SPDX-License-Identifier: Apache-2.0
// Index maps on the CPU: the ops that move elements, in all dtypes, and the
// gradients that add them up again. Threads share out the destination, and each
// of its elements is made by one of them alone, so that bits do not depend on
// their number.
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_moves.h"
#include "tensor/kernels/dtype_traits.h"
#include "tensor/kernels/index_axes.h"
#include "tensor/ops/index_map.h"

// ---- Elements of a row: moved, added, summed up ----

#define MOVE(bytes, type)                                          \
  static void move_##bytes(void* dst, int64_t to, const void* src, \
                           int64_t from, int64_t count) {          \
    type* y = dst;                                                 \
    const type* x = src;                                           \
    if (to == 1 && from == 1) {                                    \
      memcpy(y, x, (size_t)count * sizeof(type));                  \
    } else if (from == 0 && to == 1) {                             \
      const type value = *x;                                       \
      for (int64_t i = 0; i < count; ++i) y[i] = value;            \
    } else if (from == 0) {                                        \
      const type value = *x;                                       \
      for (int64_t i = 0; i < count; ++i) y[i * to] = value;       \
    } else {                                                       \
      for (int64_t i = 0; i < count; ++i) y[i * to] = x[i * from]; \
    }                                                              \
  }
MOVE(1, uint8_t)
MOVE(2, uint16_t)
MOVE(4, uint32_t)
MOVE(8, uint64_t)

#define ADD(DTYPE, type, sum)                                     \
  static void add_##DTYPE(void* dst, int64_t to, const void* src, \
                          int64_t from, int64_t count) {          \
    for (int64_t i = 0; i < count; ++i) {                         \
      type* y = (type*)dst + i * to;                              \
      const type x = ((const type*)src)[i * from];                \
      *y = sum;                                                   \
    }                                                             \
  }
#define ADD_FLOAT(DTYPE)                                 \
  ADD(DTYPE, choir__##DTYPE##_t,                         \
      choir__##DTYPE##_store(choir__##DTYPE##_load(*y) + \
                             choir__##DTYPE##_load(x)))
CHOIR__FLOATS(ADD_FLOAT)
ADD(I32, uint32_t, *y + x)
ADD(I64, uint64_t, *y + x)
ADD(U8, uint8_t, (uint8_t)(*y + x))
ADD(BOOL, uint8_t, (*y | x) != 0)

choir__move_fn_t choir__cpu_move(choir_dtype_t dtype, bool accumulate) {
  static const choir__move_fn_t moves[] = {
      [1] = move_1, [2] = move_2, [4] = move_4, [8] = move_8};
#define ADD_ROW(ENUM, name, bytes, is_float) add_##ENUM,
  static const choir__move_fn_t adds[] = {CHOIR_DTYPE_LIST(ADD_ROW)};
  return accumulate ? adds[dtype] : moves[choir_dtype_bytes(dtype)];
}

// sums[i * to] += src[i * from].
typedef void (*sum_fn_t)(double* sums, int64_t to, const void* src,
                         int64_t from, int64_t count);
// dst[i * to] = sums[i], or += it before the one rounding.
typedef void (*round_fn_t)(void* dst, int64_t to, const double* sums,
                           int64_t count, bool accumulate);

#define SUM_AND_ROUND(DTYPE)                                               \
  CHOIR__BODY void sum_##DTYPE##_body(double* sums, int64_t to,            \
                                      const void* src, int64_t from,       \
                                      int64_t count) {                     \
    const choir__##DTYPE##_t* x = src;                                     \
    if (to == 1 && from == 1) {                                            \
      CHOIR__INDEPENDENT                                                   \
      for (int64_t i = 0; i < count; ++i)                                  \
        sums[i] += (double)choir__##DTYPE##_load(x[i]);                    \
    } else {                                                               \
      for (int64_t i = 0; i < count; ++i)                                  \
        sums[i * to] += (double)choir__##DTYPE##_load(x[i * from]);        \
    }                                                                      \
  }                                                                        \
  CHOIR__ISA_VARIANTS(sum_##DTYPE,                                         \
                      (double* sums, int64_t to, const void* src,          \
                       int64_t from, int64_t count),                       \
                      (sums, to, src, from, count))                        \
  CHOIR__BODY void round_##DTYPE##_body(void* dst, int64_t to,             \
                                        const double* sums, int64_t count, \
                                        bool accumulate) {                 \
    choir__##DTYPE##_t* y = dst;                                           \
    if (accumulate) {                                                      \
      for (int64_t i = 0; i < count; ++i)                                  \
        y[i * to] = choir__##DTYPE##_round(                                \
            sums[i] + (double)choir__##DTYPE##_load(y[i * to]));           \
    } else {                                                               \
      for (int64_t i = 0; i < count; ++i)                                  \
        y[i * to] = choir__##DTYPE##_round(sums[i]);                       \
    }                                                                      \
  }                                                                        \
  CHOIR__ISA_VARIANTS(round_##DTYPE,                                       \
                      (void* dst, int64_t to, const double* sums,          \
                       int64_t count, bool accumulate),                    \
                      (dst, to, sums, count, accumulate))
CHOIR__FLOATS(SUM_AND_ROUND)

static const sum_fn_t sums_of[CHOIR_DTYPE_COUNT] = {
#define SUM_ROW(DTYPE) [CHOIR_DTYPE_##DTYPE] = sum_##DTYPE,
    CHOIR__FLOATS(SUM_ROW)};
static const round_fn_t rounds_of[CHOIR_DTYPE_COUNT] = {
#define ROUND_ROW(DTYPE) [CHOIR_DTYPE_##DTYPE] = round_##DTYPE,
    CHOIR__FLOATS(ROUND_ROW)};

// ---- One record ----

// A place in all dimensions but the last, which is a row, and where operands
// have it, from their first elements.
typedef struct spot_s {
  int64_t index[CHOIR__INDEX_AXES];
  int64_t at[CHOIR__INDEX_OPERANDS];
} spot_t;

static void spot_move(const choir__index_axes_t* axes, spot_t* spot, int32_t k,
                      int64_t steps) {
  spot->index[k] += steps;
  for (int32_t i = 0; i < CHOIR__INDEX_OPERANDS; ++i)
    spot->at[i] += steps * axes->strides[k][i];
}

static spot_t spot_of(const choir__index_axes_t* axes, int64_t row) {
  spot_t spot = {{0}, {0}};
  for (int32_t k = axes->ndim - 2; k >= 0; --k) {
    spot_move(axes, &spot, k, row % axes->shape[k]);
    row /= axes->shape[k];
  }
  return spot;
}

static void spot_next(const choir__index_axes_t* axes, spot_t* spot) {
  for (int32_t k = axes->ndim - 2; k >= 0; --k) {
    if (spot->index[k] + 1 < axes->shape[k]) {
      spot_move(axes, spot, k, 1);
      return;
    }
    spot_move(axes, spot, k, -spot->index[k]);
  }
}

// Places in a row that point to elements one after the other, or all to one,
// or from the last to the first, or nowhere.
typedef struct run_s {
  int64_t place;
  int64_t count;
  int64_t element;  // -1: nowhere
  int64_t step;
} run_t;

typedef struct task_s {
  const choir_record_t* record;
  const choir__index_map_t* map;
  choir_stream_t* stream;
  choir_allocator_t allocator;
  int64_t bytes;  // of an element
  char* places;
  char* elements;
  char* others;
  choir__move_fn_t move;
  choir__index_axes_t axes;
  int32_t row;       // the last of them
  int64_t row_size;  // and its size
  const int64_t* steps;
  int64_t place_step;  // of the row, where it is summed up
  int64_t window;      // elements of a row that are summed up at a time
  // Few elements are pointed to: all become zeros first, which memset writes
  // without reading memory before.
  bool is_sparse;
  // Of a row with a rule.
  run_t* runs;
  int64_t run_count;
  // For each index, in row-major order: where its place lies, and the next one
  // that points to the same element, -1: none; or (PULL_LAST) its value, -1: a
  // later one points there.
  int64_t* offsets;
  int64_t* next;
  int64_t index_count;
  // The first index of each list, or (PULL_LAST, PUT) the last; -1: none.
  int64_t* heads;
  int64_t head_count;
} task_t;

static choir_status_t allocate(const task_t* task, int64_t count, size_t bytes,
                               void** out_memory) {
  return choir_allocate(task->allocator, (size_t)count * bytes + 1, "index map",
                        out_memory);
}

static choir_status_t allocate_integers(const task_t* task, int64_t count,
                                        int64_t** out_integers) {
  void* memory = NULL;
  CHOIR_TRY(allocate(task, count, sizeof(int64_t), &memory));
  *out_integers = memory;
  return NULL;
}

static void deallocate(const task_t* task, void* memory, int64_t count,
                       size_t bytes) {
  if (memory)
    choir_deallocate(task->allocator, memory, (size_t)count * bytes + 1);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Measures the run that begins at run->place; returns where the next begins.
static int64_t measure_run(const task_t* task, int64_t places, run_t* run) {
  const choir__index_rule_t* rule = &task->axes.rules[task->row];
  run->element = choir__rule_element(rule, run->place);
  run->step = 0;
  for (run->count = 1; run->place + run->count < places; ++run->count) {
    const int64_t element = choir__rule_element(rule, run->place + run->count);
    const int64_t step = element - run->element;
    if ((element < 0) != (run->element < 0)) break;
    if (run->count == 1 && step * step <= 1) run->step = step;
    if (step != run->step * run->count) break;
  }
  return run->place + run->count;
}

static choir_status_t take_runs(task_t* task, int64_t places) {
  if (task->axes.rules[task->row].each == 0) return NULL;
  run_t run = {.place = 0};
  for (; run.place < places; ++task->run_count)
    run.place = measure_run(task, places, &run);
  void* memory = NULL;
  CHOIR_TRY(allocate(task, task->run_count, sizeof(run_t), &memory));
  task->runs = memory;
  int64_t next = 0;
  for (int64_t i = 0; i < task->run_count; ++i) {
    task->runs[i].place = next;
    next = measure_run(task, places, &task->runs[i]);
  }
  return NULL;
}

// Returns how many elements the axes have.
static int64_t take_row(task_t* task) {
  task->row = task->axes.ndim - 1;
  task->row_size = task->axes.shape[task->row];
  task->steps = task->axes.strides[task->row];
  return choir__index_axes_count(&task->axes);
}

// ---- The destination has the places ----

static int64_t index_at(const task_t* task, int64_t offset) {
  const choir__index_map_t* map = task->map;
  if (task->next) return task->next[offset];
  if (!map->has_indices) return 0;
  const int64_t index =
      choir__integer_load(choir__buffer_place(map->indices.buffer),
                          map->indices.dtype, map->indices.offset + offset);
  return index < 0 ? index + map->axis_size : index;
}

// Where the spot's row begins in the elements; -1: it points nowhere.
static int64_t row_of(const task_t* task, const spot_t* spot) {
  int64_t offset = spot->at[CHOIR__AT_ELEMENT];
  for (int32_t k = 0; k < task->row; ++k) {
    const choir__index_rule_t* rule = &task->axes.rules[k];
    if (rule->each == 0) continue;
    const int64_t element = choir__rule_element(rule, spot->index[k]);
    if (element < 0) return -1;
    offset += element * task->axes.rule_stride[k];
  }
  return offset;
}

// `count` places from `place` of the row on, from elements `step` apart.
static void pull_run(const task_t* task, const spot_t* spot, int64_t place,
                     int64_t count, int64_t element, int64_t step) {
  const int64_t to = task->steps[CHOIR__AT_PLACE];
  const int64_t at = spot->at[CHOIR__AT_PLACE] + place * to;
  const bool is_none = element < 0;
  task->move(task->places + at * task->bytes, to,
             is_none ? task->others : task->elements + element * task->bytes,
             is_none ? 0 : step, count);
}

static void pull_row(const task_t* task, const spot_t* spot, int64_t begin,
                     int64_t end) {
  const int64_t axis_stride = task->map->axis_stride;
  const int64_t step = task->steps[CHOIR__AT_ELEMENT];
  const int64_t index_step = task->steps[CHOIR__AT_INDEX];
  const int64_t row = row_of(task, spot);
  if (row >= 0 && index_step != 0) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index =
          index_at(task, spot->at[CHOIR__AT_INDEX] + i * index_step);
      pull_run(task, spot, i, 1,
               index < 0 ? -1 : row + index * axis_stride + i * step, 0);
    }
    return;
  }
  const int64_t index =
      row < 0 ? -1 : index_at(task, spot->at[CHOIR__AT_INDEX]);
  const int64_t first = row + index * axis_stride;
  if (index < 0 || !task->runs) {
    pull_run(task, spot, begin, end - begin,
             index < 0 ? -1 : first + begin * step, step);
    return;
  }
  const int64_t stride = task->axes.rule_stride[task->row];
  for (int64_t r = 0; r < task->run_count; ++r) {
    const run_t* run = &task->runs[r];
    const int64_t low = run->place > begin ? run->place : begin;
    const int64_t high = smaller(run->place + run->count, end);
    const int64_t element = run->element + (low - run->place) * run->step;
    if (low < high)
      pull_run(task, spot, low, high - low,
               run->element < 0 ? -1 : first + element * stride,
               run->step * stride);
  }
}

// Up to `most` whole rows of the dimension before the last, each from where an
// index says; 0: it does not. While one is moved the memory is asked for the
// next, which no processor foresees.
static int64_t pull_rows(const task_t* task, spot_t* spot, int64_t most) {
  enum { LINE = 64, MOST_LINES = 24 };
  const int32_t k = task->row - 1;
  const int64_t row = row_of(task, spot), bytes = task->bytes;
  if (most < 1 || k < 0 || row < 0 || !task->map->has_indices || task->runs ||
      task->steps[CHOIR__AT_INDEX] != 0 || task->axes.rules[k].each > 0)
    return 0;
  const int64_t* steps = task->axes.strides[k];
  const int64_t axis_stride = task->map->axis_stride;
  const int64_t count = smaller(most, task->axes.shape[k] - spot->index[k]);
  const int64_t length =
      smaller(task->row_size * task->steps[CHOIR__AT_ELEMENT] * bytes,
              MOST_LINES * LINE);
  int64_t index = index_at(task, spot->at[CHOIR__AT_INDEX]);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t element =
        index < 0 ? -1
                  : row + r * steps[CHOIR__AT_ELEMENT] + index * axis_stride;
    if (r + 1 < count) {
      index = index_at(
          task, spot->at[CHOIR__AT_INDEX] + (r + 1) * steps[CHOIR__AT_INDEX]);
      const char* next =
          task->elements + (row + (r + 1) * steps[CHOIR__AT_ELEMENT] +
                            (index < 0 ? 0 : index) * axis_stride) *
                               bytes;
      for (int64_t i = 0; i < length; i += LINE) __builtin_prefetch(next + i);
    }
    const int64_t at = spot->at[CHOIR__AT_PLACE] + r * steps[CHOIR__AT_PLACE];
    const int64_t to = task->steps[CHOIR__AT_PLACE];
    if (element < 0)
      task->move(task->places + at * bytes, to, task->others, 0,
                 task->row_size);
    else
      task->move(task->places + at * bytes, to,
                 task->elements + element * bytes,
                 task->steps[CHOIR__AT_ELEMENT], task->row_size);
  }
  spot_move(&task->axes, spot, k, count - 1);
  return count;
}

static void pull_range(void* context, int64_t begin, int64_t end) {
  const task_t* task = context;
  spot_t spot = spot_of(&task->axes, begin / task->row_size);
  while (begin < end) {
    const int64_t first = begin % task->row_size;
    const int64_t rows =
        first > 0 ? 0 : pull_rows(task, &spot, (end - begin) / task->row_size);
    if (rows > 0) {
      spot_next(&task->axes, &spot);
      begin += rows * task->row_size;
      continue;
    }
    const int64_t last = smaller(task->row_size, first + end - begin);
    pull_row(task, &spot, first, last);
    spot_next(&task->axes, &spot);
    begin += last - first;
  }
}

static choir_status_t pull(task_t* task) {
  choir__index_axes_of_places(task->map, task->next != NULL, &task->axes);
  const int64_t count = take_row(task);
  CHOIR_TRY(take_runs(task, task->row_size));
  choir__cpu_parallel(choir__cpu_threads(task->stream), count, CHOIR__CPU_GRAIN,
                      pull_range, task);
  return NULL;
}

// ---- The destination has the elements ----

// Sums of `count` elements of a row, from `first` on.
typedef struct window_s {
  const task_t* task;
  const spot_t* spot;
  double* sums;
  int64_t first;
  int64_t count;
} window_t;

// sums[to ...] += the places at `offset`, `step` sums to a place.
static void add_run(const window_t* window, int64_t to, int64_t step,
                    int64_t offset, int64_t count) {
  const task_t* task = window->task;
  sums_of[task->map->places.dtype](window->sums + to, step,
                                   task->places + offset * task->bytes,
                                   task->place_step, count);
}

// Adds what points to the row, over the dimensions from k on.
static void add_places(const window_t* window, int32_t k, int64_t offset) {
  const task_t* task = window->task;
  const int64_t step = task->place_step;
  if (k == task->row && !task->runs) {
    add_run(window, 0, 1, offset + window->first * step, window->count);
    return;
  }
  if (k == task->row) {
    for (const run_t* run = task->runs; run < task->runs + task->run_count;
         ++run)
      if (run->element >= 0)
        add_run(window, run->element, run->step, offset + run->place * step,
                run->count);
    return;
  }
  const choir__index_rule_t* rule = &task->axes.rules[k];
  const int64_t element = window->spot->index[k];
  if (rule->each == 0) {
    add_places(window, k + 1, offset);
    return;
  }
  for (int64_t p = choir__rule_next(rule, element, 0);
       p < task->axes.rule_places[k];
       p = choir__rule_next(rule, element, p + 1))
    add_places(window, k + 1, offset + p * task->axes.rule_stride[k]);
}

// The same by the lists of indices: one for all of the row, or one for each of
// its elements.
static void add_indexed(const window_t* window) {
  const task_t* task = window->task;
  const int64_t step = task->place_step;
  const int64_t list_step = task->steps[CHOIR__AT_HEAD];
  const int64_t lists = list_step == 0 ? 1 : window->count;
  for (int64_t i = 0; i < lists; ++i) {
    const int64_t k = window->first + i;
    const int64_t* head =
        task->heads + window->spot->at[CHOIR__AT_HEAD] + k * list_step;
    for (int64_t n = *head; n >= 0; n = task->next[n])
      add_run(window, i, 1,
              window->spot->at[CHOIR__AT_PLACE] + k * step + task->offsets[n],
              list_step == 0 ? window->count : 1);
  }
}

// Whether no index points to any of the window, as to most rows of a table.
static bool is_untouched(const window_t* window) {
  const task_t* task = window->task;
  return task->map->has_indices && task->steps[CHOIR__AT_HEAD] == 0 &&
         task->heads[window->spot->at[CHOIR__AT_HEAD]] < 0;
}

// Makes the window's elements, the first of which is element `at`.
static void sum_window(const window_t* window, int64_t at) {
  static const uint64_t zero = 0;
  const task_t* task = window->task;
  const bool accumulate = task->record->accumulate;
  const int64_t step = task->steps[CHOIR__AT_ELEMENT];
  void* elements = task->elements + at * task->bytes;
  if (is_untouched(window)) {
    if (!accumulate && !task->is_sparse)
      task->move(elements, step, &zero, 0, window->count);
    return;
  }
  memset(window->sums, 0, (size_t)window->count * sizeof(double));
  if (task->map->has_indices)
    add_indexed(window);
  else
    add_places(window, 0, window->spot->at[CHOIR__AT_PLACE]);
  rounds_of[task->map->elements.dtype](elements, step, window->sums,
                                       window->count, accumulate);
}

static int64_t windows_of(const task_t* task) {
  return (task->row_size + task->window - 1) / task->window;
}

// Where a window begins among all elements.
static int64_t element_of(const task_t* task, int64_t window) {
  const int64_t windows = windows_of(task);
  return window / windows * task->row_size + window % windows * task->window;
}

static void sum_range(void* context, void* scratch, int64_t begin,
                      int64_t end) {
  const task_t* task = context;
  const int64_t windows = windows_of(task);
  spot_t spot = spot_of(&task->axes, begin / windows);
  window_t window = {.task = task, .spot = &spot, .sums = scratch};
  if (task->is_sparse) {
    const int64_t first = element_of(task, begin);
    memset(task->elements + first * task->bytes, 0,
           (size_t)((element_of(task, end) - first) * task->bytes));
  }
  for (; begin < end; ++begin) {
    window.first = begin % windows * task->window;
    window.count = smaller(task->window, task->row_size - window.first);
    sum_window(&window, spot.at[CHOIR__AT_ELEMENT] +
                            window.first * task->steps[CHOIR__AT_ELEMENT]);
    if ((begin + 1) % windows == 0) spot_next(&task->axes, &spot);
  }
}

static choir_status_t sum(task_t* task) {
  enum { WINDOW = 1024 };
  choir__index_axes_of_elements(task->map, &task->axes);
  const int64_t count = take_row(task), size = task->row_size;
  CHOIR_TRY(take_runs(task, task->axes.rule_places[task->row]));
  const bool has_rule = task->axes.rules[task->row].each > 0;
  task->place_step = has_rule ? task->axes.rule_stride[task->row]
                              : task->steps[CHOIR__AT_PLACE];
  task->window = has_rule ? size : smaller(size, WINDOW);
  const choir_view_t* dst = choir_record_dst(task->record, 0);
  task->is_sparse =
      task->index_count < task->head_count / 4 && !task->record->accumulate &&
      choir_view_is_contiguous(dst) && count == choir_view_count(dst);
  return choir__cpu_parallel_scratch(
      task->stream, count / size * windows_of(task),
      CHOIR__CPU_GRAIN / task->window, (size_t)task->window * sizeof(double),
      sum_range, task);
}

// As long as no index points to the elements of a row, they are one run.
static void put_range(void* context, int64_t begin, int64_t end) {
  const task_t* task = context;
  const int64_t* steps = task->steps;
  const int64_t list_step = steps[CHOIR__AT_HEAD];
  spot_t spot = spot_of(&task->axes, begin / task->row_size);
  while (begin < end) {
    const int64_t first = begin % task->row_size;
    const int64_t most = smaller(task->row_size - first, end - begin);
    const int64_t* heads =
        task->heads + spot.at[CHOIR__AT_HEAD] + first * list_step;
    int64_t count = 1;
    while (count < most && heads[0] < 0 && heads[count * list_step] < 0)
      ++count;
    const int64_t to =
        spot.at[CHOIR__AT_ELEMENT] + first * steps[CHOIR__AT_ELEMENT];
    const int64_t other =
        spot.at[CHOIR__AT_OTHER] + first * steps[CHOIR__AT_OTHER];
    task->move(task->elements + to * task->bytes, steps[CHOIR__AT_ELEMENT],
               heads[0] < 0
                   ? task->others + other * task->bytes
                   : task->places + task->offsets[heads[0]] * task->bytes,
               steps[CHOIR__AT_OTHER], count);
    begin += count;
    if (begin % task->row_size == 0) spot_next(&task->axes, &spot);
  }
}

static choir_status_t put(task_t* task) {
  choir__index_axes_of_elements(task->map, &task->axes);
  choir__cpu_parallel(choir__cpu_threads(task->stream), take_row(task),
                      CHOIR__CPU_GRAIN, put_range, task);
  return NULL;
}

// ---- Indices ----

// To which list each index belongs, and the last one of each.
static choir_status_t take_indices(task_t* task) {
  choir__index_axes_t axes;
  task->head_count = choir__index_axes_of_indices(task->map, &axes);
  task->index_count = choir__index_axes_count(&axes);
  CHOIR_TRY(allocate_integers(task, task->head_count, &task->heads));
  CHOIR_TRY(allocate_integers(task, task->index_count, &task->offsets));
  int64_t* lists = NULL;
  CHOIR_TRY(allocate_integers(task, task->index_count, &lists));
  for (int64_t i = 0; i < task->head_count; ++i) task->heads[i] = -1;
  const int64_t size = axes.shape[axes.ndim - 1];
  const int64_t* steps = axes.strides[axes.ndim - 1];
  spot_t spot = {{0}, {0}};
  for (int64_t n = 0; n < task->index_count; ++n) {
    const int64_t k = n % size;
    lists[n] =
        spot.at[CHOIR__AT_HEAD] + k * steps[CHOIR__AT_HEAD] +
        index_at(task, spot.at[CHOIR__AT_INDEX] + k * steps[CHOIR__AT_INDEX]);
    task->offsets[n] = spot.at[CHOIR__AT_PLACE] + k * steps[CHOIR__AT_PLACE];
    task->heads[lists[n]] = n;
    if (k + 1 == size) spot_next(&axes, &spot);
  }
  task->next = lists;
  return NULL;
}

static void link_indices(task_t* task) {
  for (int64_t i = 0; i < task->head_count; ++i) task->heads[i] = -1;
  for (int64_t n = task->index_count - 1; n >= 0; --n) {
    int64_t* head = &task->heads[task->next[n]];
    task->next[n] = *head;
    *head = n;
  }
}

static void choose_last(task_t* task) {
  for (int64_t n = 0; n < task->index_count; ++n) {
    const int64_t list = task->next[n];
    task->next[n] = task->heads[list] == n ? list % task->map->axis_size : -1;
  }
}

// ---- All of it ----

static choir_status_t run_map(task_t* task) {
  const choir__index_kind_t kind = task->map->kind;
  if (kind == CHOIR__INDEX_PULL) return pull(task);
  if (task->map->has_indices) CHOIR_TRY(take_indices(task));
  if (kind == CHOIR__INDEX_PUT) return put(task);
  if (kind == CHOIR__INDEX_PULL_LAST) {
    choose_last(task);
    return pull(task);
  }
  link_indices(task);
  return sum(task);
}

static char* start_of(const choir_view_t* view, const uint64_t* value) {
  return view->buffer ? choir__view_data(view) : (char*)value;
}

static choir_status_t run_part(const choir_record_t* record,
                               choir_stream_t* stream,
                               const choir__index_map_t* map) {
  const choir_dtype_t dtype = choir_record_dst(record, 0)->dtype;
  task_t task = {
      .record = record,
      .map = map,
      .stream = stream,
      .allocator = choir_device_allocator(choir_stream_device(stream)),
      .bytes = (int64_t)choir_dtype_bytes(dtype),
      .places = start_of(&map->places, &map->place_value),
      .elements = start_of(&map->elements, &map->other_value),
      .others = start_of(&map->others, &map->other_value),
      .move = choir__cpu_move(dtype, record->accumulate)};
  choir_status_t status = run_map(&task);
  deallocate(&task, task.runs, task.run_count, sizeof(run_t));
  deallocate(&task, task.heads, task.head_count, sizeof(int64_t));
  deallocate(&task, task.offsets, task.index_count, sizeof(int64_t));
  deallocate(&task, task.next, task.index_count, sizeof(int64_t));
  return status;
}

static choir_status_t map_run(const choir_record_t* record,
                              choir_stream_t* stream) {
  const choir_op_def_t* def = choir__op_def(choir__record_op(record));
  choir__index_map_t map = {.parts = 1};
  for (int32_t part = 0; part < map.parts; ++part) {
    def->index_map(record, part, &map);
    CHOIR_TRY(choir__index_map_check(def->name, record, &map));
    CHOIR_TRY(run_part(record, stream, &map));
  }
  return NULL;
}

static bool map_supports(const choir_record_t* record) {
  (void)record;
  return true;
}

#define CHOIR__INDEX_MAPPED(OP, name)         \
  const choir_op_kernel_t choir__cpu_##name = \
      CHOIR_OP_KERNEL(CHOIR_OP_##OP, #name, "cpu", map_run, map_supports);
#include "tensor/kernels/kernels.def"
