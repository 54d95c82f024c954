// SPDX-License-Identifier: Apache-2.0
// rotary and its gradient. The cosines and sines of 32 rows are made once and
// serve all heads of these rows.
#include <math.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"

enum { TABLE_ROWS = 32 };

// Of pairs of columns: by what each turns from a row to the next.
typedef struct speeds_s {
  double *angles, *cosines, *sines;
} speeds_t;

typedef struct call_s {
  const choir_view_t *x, *y;
  int64_t rows, half, heads;
  double first;  // position of the first row
  speeds_t speeds;
  bool accumulate;
} call_t;

// Some rows of a head, each dense.
typedef struct block_s {
  const float* x;
  float* y;
  int64_t x_stride, y_stride;
  int64_t rows, half;
  const float* table;  // for each row its cosines, then its sines
  bool accumulate;
} block_t;

CHOIR__BODY void turn_rows_body(const block_t* block) {
  const int64_t half = block->half;
  for (int64_t r = 0; r < block->rows; r++) {
    const float* x = block->x + r * block->x_stride;
    float* y = block->y + r * block->y_stride;
    const float* cosines = block->table + r * 2 * half;
    const float* sines = cosines + half;
    if (block->accumulate) {
      CHOIR__INDEPENDENT
      for (int64_t j = 0; j < half; j++) {
        y[j] += x[j] * cosines[j] - x[j + half] * sines[j];
        y[j + half] += x[j + half] * cosines[j] + x[j] * sines[j];
      }
    } else {
      CHOIR__INDEPENDENT
      for (int64_t j = 0; j < half; j++) {
        y[j] = x[j] * cosines[j] - x[j + half] * sines[j];
        y[j + half] = x[j + half] * cosines[j] + x[j] * sines[j];
      }
    }
  }
}
CHOIR__ISA_VARIANTS(turn_rows, (const block_t* block), (block))

// To a row of the table, from what is then turned on.
CHOIR__BODY void put_row_body(const call_t* call, double* cosines,
                              double* sines, float* row) {
  const int64_t half = call->half;
  const double* turn_cosines = call->speeds.cosines;
  const double* turn_sines = call->speeds.sines;
  CHOIR__INDEPENDENT
  for (int64_t j = 0; j < half; j++) {
    const double c = cosines[j], s = sines[j];
    row[j] = (float)c;
    row[half + j] = (float)s;
    cosines[j] = c * turn_cosines[j] - s * turn_sines[j];
    sines[j] = s * turn_cosines[j] + c * turn_sines[j];
  }
}
CHOIR__ISA_VARIANTS(put_row,
                    (const call_t* call, double* cosines, double* sines,
                     float* row),
                    (call, cosines, sines, row))

// The first row by the C library, the others by turning on, in double: 31 turns
// leave far more digits than f32 has, and cost a few products each. Behind the
// table there is room for a row of double.
static void make_table(const call_t* call, int64_t first, int64_t rows,
                       float* table) {
  const int64_t half = call->half;
  double* cosines = (double*)(void*)(table + TABLE_ROWS * 2 * half);
  double* sines = cosines + half;
  for (int64_t j = 0; j < half; j++) {
    const double angle = (call->first + (double)first) * call->speeds.angles[j];
    cosines[j] = cos(angle);
    sines[j] = sin(angle);
  }
  for (int64_t r = 0; r < rows; r++)
    put_row(call, cosines, sines, table + r * 2 * half);
}

// Where the rows of a head of a sample begin: all dimensions but the last two.
static float* head_at(const choir_view_t* view, int64_t sample, int64_t head) {
  int64_t offset = view->ndim > 2 ? sample * view->strides[0] : 0;
  for (int32_t k = view->ndim - 3; k > 0; k--) {
    offset += head % view->shape[k] * view->strides[k];
    head /= view->shape[k];
  }
  return choir__view_f32(view) + offset;
}

// Items are samples, for one table after the other, so that a thread makes each
// table once for all its samples.
static void turn_range(void* context, void* scratch, int64_t begin,
                       int64_t end) {
  const call_t* call = context;
  const int32_t row_axis = call->x->ndim - 2;
  const int64_t samples = call->x->ndim > 2 ? call->x->shape[0] : 1;
  block_t block = {.x_stride = call->x->strides[row_axis],
                   .y_stride = call->y->strides[row_axis],
                   .half = call->half,
                   .table = scratch,
                   .accumulate = call->accumulate};
  for (int64_t item = begin; item < end; item++) {
    const int64_t sample = item % samples;
    const int64_t first = item / samples * TABLE_ROWS;
    if (item == begin || sample == 0) {
      const int64_t rest = call->rows - first;
      block.rows = rest < TABLE_ROWS ? rest : TABLE_ROWS;
      make_table(call, first, block.rows, scratch);
    }
    for (int64_t head = 0; head < call->heads; head++) {
      block.x = head_at(call->x, sample, head) + first * block.x_stride;
      block.y = head_at(call->y, sample, head) + first * block.y_stride;
      turn_rows(&block);
    }
  }
}

static bool supports(const choir_record_t* record) {
  const choir_view_t* x = choir_record_src(record, 0);
  const int32_t last = x->ndim - 1;
  return choir__all_f32(record) && choir_view_count(x) > 0 &&
         x->strides[last] == 1 &&
         choir_record_dst(record, 0)->strides[last] == 1;
}

static choir_status_t turn(const choir_record_t* record, choir_stream_t* stream,
                           double direction) {
  const choir_rotary_attrs_t* attrs = record->attrs;
  const choir_view_t* x = choir_record_src(record, 0);
  const int64_t rows = x->shape[x->ndim - 2];
  const int64_t columns = x->shape[x->ndim - 1], half = columns / 2;
  const int64_t samples = x->ndim > 2 ? x->shape[0] : 1;
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes = (size_t)(3 * half) * sizeof(double);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(pool, bytes, record->operation->name, &memory));
  double* angles = memory;
  const speeds_t speeds = {angles, angles + half, angles + 2 * half};
  for (int64_t j = 0; j < half; j++) {
    angles[j] = pow(attrs->theta, -2 * (double)j / (double)columns) * direction;
    speeds.cosines[j] = cos(angles[j]);
    speeds.sines[j] = sin(angles[j]);
  }
  call_t call = {.x = x,
                 .y = choir_record_dst(record, 0),
                 .rows = rows,
                 .half = half,
                 .heads = choir_view_count(x) / (samples * rows * columns),
                 .first = (double)attrs->offset,
                 .speeds = speeds,
                 .accumulate = record->accumulate};
  const int64_t grain = CHOIR__CPU_GRAIN / (TABLE_ROWS * columns * call.heads);
  const choir_status_t status = choir__cpu_parallel_scratch(
      stream, (rows + TABLE_ROWS - 1) / TABLE_ROWS * samples, grain,
      (size_t)columns * (TABLE_ROWS * sizeof(float) + sizeof(double)),
      turn_range, &call);
  choir_deallocate(pool, memory, bytes);
  return status;
}

static choir_status_t rotary_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  return turn(record, stream, 1);
}
static choir_status_t rotary_grad_run(const choir_record_t* record,
                                      choir_stream_t* stream) {
  return turn(record, stream, -1);
}

const choir_op_kernel_t choir__cpu_rotary =
    CHOIR_OP_KERNEL(CHOIR_OP_ROTARY, "rotary", "cpu", rotary_run, supports);
const choir_op_kernel_t choir__cpu_rotary_grad = CHOIR_OP_KERNEL(
    CHOIR_OP_ROTARY_GRAD, "rotary_grad", "cpu", rotary_grad_run, supports);
