// SPDX-License-Identifier: Apache-2.0
// Losses, and counting hits. A row is the classes of one sample.
#include <math.h>

#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_rows.h"

typedef struct rows_s {
  const float* x;  // (rows, columns)
  float* y;
  int64_t x_stride, y_stride;
  int64_t columns;
  const void* labels;
  choir_dtype_t label_dtype;
  int64_t label_stride;
  float factor;
  bool accumulate;
} rows_t;

// ---- Operands ----

static bool dense_rows(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 && choir__rows_fit(view);
}

static bool labels_fit(const choir_view_t* labels, int64_t rows) {
  return (labels->dtype == CHOIR_DTYPE_I32 ||
          labels->dtype == CHOIR_DTYPE_I64) &&
         labels->ndim == 1 && labels->shape[0] == rows;
}

static int64_t label_at(const rows_t* task, int64_t row) {
  const int64_t at = row * task->label_stride;
  return task->label_dtype == CHOIR_DTYPE_I32
             ? ((const int32_t*)task->labels)[at]
             : ((const int64_t*)task->labels)[at];
}

static void take_labels(const choir_view_t* labels, rows_t* task) {
  task->labels = choir__view_data(labels);
  task->label_dtype = labels->dtype;
  task->label_stride = labels->strides[0];
}

static choir_status_t check_labels(const choir_record_t* record,
                                   const rows_t* task, int64_t rows) {
  for (int64_t r = 0; r < rows; r++) {
    const int64_t label = label_at(task, r);
    if (label < 0 || label >= task->columns)
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "%s: label %lld at row %lld; needs 0 .. %lld",
                         record->operation->name, (long long)label,
                         (long long)r, (long long)(task->columns - 1));
  }
  return NULL;
}

// ---- softmax_cross_entropy: loss and p ----

static bool softmax_cross_entropy_supports(const choir_record_t* record) {
  const choir_view_t* x = choir_record_src(record, 0);
  return !record->accumulate && x->ndim == 2 && dense_rows(x) &&
         labels_fit(choir_record_src(record, 1), x->shape[0]) &&
         choir_record_dst(record, 0)->dtype == CHOIR_DTYPE_F32 &&
         dense_rows(choir_record_dst(record, 1));
}

static void softmax_range(void* context, int64_t begin, int64_t end) {
  choir__cpu_softmax_rows(context, begin, end);
}

static choir_status_t softmax_cross_entropy_run(const choir_record_t* record,
                                                choir_stream_t* stream) {
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* p = choir_record_dst(record, 1);
  const int64_t rows = x->shape[0];
  rows_t task = {.x = choir__view_f32(x),
                 .y = choir__view_f32(p),
                 .x_stride = x->strides[0],
                 .y_stride = p->strides[0],
                 .columns = x->shape[1]};
  take_labels(choir_record_src(record, 1), &task);
  CHOIR_TRY(check_labels(record, &task, rows));
  choir__rows_t softmax = {.x = task.x,
                           .y = task.y,
                           .x_stride = task.x_stride,
                           .y_stride = task.y_stride,
                           .columns = task.columns};
  choir__cpu_parallel(choir__cpu_threads(stream), rows,
                      choir__row_grain(task.columns), softmax_range, &softmax);
  // -log p by way of the exponents, as p itself may be 0. In double: the mean
  // is one number a batch and decides what a user sees.
  double loss = 0;
  for (int64_t r = 0; r < rows; r++) {
    const float* row = task.x + r * task.x_stride;
    const int64_t label = label_at(&task, r);
    const float chosen = task.y[r * task.y_stride + label];
    if (chosen > 1e-30f) {
      loss -= log((double)chosen);
      continue;
    }
    double most = row[0], sum = 0;
    for (int64_t c = 1; c < task.columns; c++)
      most = (double)row[c] > most ? (double)row[c] : most;
    for (int64_t c = 0; c < task.columns; c++)
      sum += exp((double)row[c] - most);
    loss += (most - (double)row[label]) + log(sum);
  }
  *choir__view_f32(choir_record_dst(record, 0)) = (float)(loss / (double)rows);
  return NULL;
}

// Sources p, labels, dy (1): dx = dy / n (p - [c == label]).
static bool cross_entropy_like_grad_supports(const choir_record_t* record) {
  const choir_view_t* p = choir_record_src(record, 0);
  return p->ndim == 2 && dense_rows(p) &&
         labels_fit(choir_record_src(record, 1), p->shape[0]) &&
         choir_record_src(record, 2)->dtype == CHOIR_DTYPE_F32 &&
         dense_rows(choir_record_dst(record, 0));
}

CHOIR__BODY void scaled_rows_body(const rows_t* task, int64_t begin,
                                  int64_t end) {
  for (int64_t r = begin; r < end; r++) {
    const float* p = task->x + r * task->x_stride;
    float* dx = task->y + r * task->y_stride;
    const int64_t label = label_at(task, r);
    if (task->accumulate) {
      const float before = dx[label];
      CHOIR__INDEPENDENT
      for (int64_t c = 0; c < task->columns; c++) dx[c] += task->factor * p[c];
      dx[label] = before + task->factor * (p[label] - 1.0f);
    } else {
      CHOIR__INDEPENDENT
      for (int64_t c = 0; c < task->columns; c++) dx[c] = task->factor * p[c];
      dx[label] = task->factor * (p[label] - 1.0f);
    }
  }
}
CHOIR__ISA_VARIANTS(scaled_rows,
                    (const rows_t* task, int64_t begin, int64_t end),
                    (task, begin, end))
static void scaled_range(void* context, int64_t begin, int64_t end) {
  scaled_rows(context, begin, end);
}

static rows_t grad_rows_of(const choir_record_t* record) {
  const choir_view_t* p = choir_record_src(record, 0);
  const choir_view_t* dx = choir_record_dst(record, 0);
  rows_t task = {.x = choir__view_f32(p),
                 .y = choir__view_f32(dx),
                 .x_stride = p->strides[0],
                 .y_stride = dx->strides[0],
                 .columns = p->shape[1],
                 .accumulate = record->accumulate};
  task.factor =
      *choir__view_f32(choir_record_src(record, 2)) / (float)p->shape[0];
  take_labels(choir_record_src(record, 1), &task);
  return task;
}

static choir_status_t softmax_cross_entropy_grad_run(
    const choir_record_t* record, choir_stream_t* stream) {
  const int64_t rows = choir_record_src(record, 0)->shape[0];
  rows_t task = grad_rows_of(record);
  CHOIR_TRY(check_labels(record, &task, rows));
  choir__cpu_parallel(choir__cpu_threads(stream), rows,
                      choir__row_grain(task.columns), scaled_range, &task);
  return NULL;
}

// ---- cross_entropy on probabilities ----

static bool cross_entropy_supports(const choir_record_t* record) {
  const choir_view_t* p = choir_record_src(record, 0);
  return p->ndim == 2 && dense_rows(p) &&
         labels_fit(choir_record_src(record, 1), p->shape[0]) &&
         choir_record_dst(record, 0)->dtype == CHOIR_DTYPE_F32;
}

static choir_status_t cross_entropy_run(const choir_record_t* record,
                                        choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* p = choir_record_src(record, 0);
  const int64_t rows = p->shape[0];
  rows_t task = {.x = choir__view_f32(p),
                 .x_stride = p->strides[0],
                 .columns = p->shape[1]};
  take_labels(choir_record_src(record, 1), &task);
  CHOIR_TRY(check_labels(record, &task, rows));
  double loss = 0;
  for (int64_t r = 0; r < rows; r++)
    loss -= log((double)task.x[r * task.x_stride + label_at(&task, r)]);
  loss /= (double)rows;
  float* y = choir__view_f32(choir_record_dst(record, 0));
  *y = (float)(record->accumulate ? (double)*y + loss : loss);
  return NULL;
}

// dx = -dy / (n p) at the label, 0 elsewhere.
static choir_status_t cross_entropy_grad_run(const choir_record_t* record,
                                             choir_stream_t* stream) {
  (void)stream;
  const int64_t rows = choir_record_src(record, 0)->shape[0];
  const rows_t task = grad_rows_of(record);
  CHOIR_TRY(check_labels(record, &task, rows));
  for (int64_t r = 0; r < rows; r++) {
    float* dx = task.y + r * task.y_stride;
    const int64_t label = label_at(&task, r);
    for (int64_t c = 0; c < task.columns && !task.accumulate; c++) dx[c] = 0;
    dx[label] -= task.factor / task.x[r * task.x_stride + label];
  }
  return NULL;
}

// ---- mse_loss over operands of one dense layout ----

#define MSE_CHUNK 4096

CHOIR__BODY void squares_body(const float* x, const float* t, int64_t n,
                              double* out) {
  float lanes[16] = {0};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < 16; k++)
      lanes[k] += (x[i + k] - t[i + k]) * (x[i + k] - t[i + k]);
  double sum = 0;
  for (int k = 0; k < 16; k++) sum += (double)lanes[k];
  for (; i < n; i++) sum += (double)((x[i] - t[i]) * (x[i] - t[i]));
  *out = sum;
}
CHOIR__ISA_VARIANTS(squares,
                    (const float* x, const float* t, int64_t n, double* out),
                    (x, t, n, out))

static bool mse_loss_supports(const choir_record_t* record) {
  const choir_view_t* views[] = {choir_record_src(record, 0),
                                 choir_record_src(record, 1)};
  choir__nest_t nest;
  return choir__all_f32(record) && choir__nest_make(views, 2, &nest) &&
         nest.count > 0 && nest.ndim == 2 && nest.shape[0] == 1 &&
         nest.strides[0][1] == 1 && nest.strides[1][1] == 1;
}

static choir_status_t mse_loss_run(const choir_record_t* record,
                                   choir_stream_t* stream) {
  (void)stream;
  const float* x = choir__view_f32(choir_record_src(record, 0));
  const float* t = choir__view_f32(choir_record_src(record, 1));
  const int64_t count = choir_view_count(choir_record_src(record, 0));
  double loss = 0;
  for (int64_t i = 0; i < count; i += MSE_CHUNK) {
    double part;
    squares(x + i, t + i, count - i < MSE_CHUNK ? count - i : MSE_CHUNK, &part);
    loss += part;
  }
  loss /= (double)count;
  float* y = choir__view_f32(choir_record_dst(record, 0));
  *y = (float)(record->accumulate ? (double)*y + loss : loss);
  return NULL;
}

// ---- count_correct ----
//
// A row's largest element is its first NaN, or the first of the largest.

// Whether one of n elements is not below `value`, or, if it may be as large, is
// above it. A NaN is both.
CHOIR__BODY void find_larger_body(const float* x, int64_t n, float value,
                                  bool may_equal, int32_t* out_found) {
  int32_t found = 0;
  if (may_equal) {
    CHOIR__INDEPENDENT
    for (int64_t j = 0; j < n; j++) found |= !(x[j] <= value);
  } else {
    CHOIR__INDEPENDENT
    for (int64_t j = 0; j < n; j++) found |= !(x[j] < value);
  }
  *out_found = found;
}
CHOIR__ISA_VARIANTS(find_larger,
                    (const float* x, int64_t n, float value, bool may_equal,
                     int32_t* out_found),
                    (x, n, value, may_equal, out_found))

static bool has_larger(const float* x, int64_t n, float value, bool may_equal) {
  enum { SOME = 1024 };  // then it is time to see whether one was found
  int32_t found = 0;
  for (int64_t j = 0; j < n && !found; j += SOME)
    find_larger(x + j, n - j < SOME ? n - j : SOME, value, may_equal, &found);
  return found;
}

static bool is_largest(const float* row, int64_t columns, int64_t place) {
  const float value = row[place];
  if (value != value) return !has_larger(row, place, INFINITY, true);
  return !has_larger(row, place, value, false) &&
         !has_larger(row + place + 1, columns - place - 1, value, true);
}

static bool count_correct_supports(const choir_record_t* record) {
  const choir_view_t* x = choir_record_src(record, 0);
  return x->ndim == 2 && dense_rows(x) &&
         labels_fit(choir_record_src(record, 1), x->shape[0]) &&
         choir_record_dst(record, 0)->dtype == CHOIR_DTYPE_I64;
}

static choir_status_t count_correct_run(const choir_record_t* record,
                                        choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* x = choir_record_src(record, 0);
  rows_t task = {.x = choir__view_f32(x),
                 .x_stride = x->strides[0],
                 .columns = x->shape[1]};
  take_labels(choir_record_src(record, 1), &task);
  CHOIR_TRY(check_labels(record, &task, x->shape[0]));
  int64_t correct = 0;
  for (int64_t r = 0; r < x->shape[0]; r++)
    correct += is_largest(task.x + r * task.x_stride, task.columns,
                          label_at(&task, r));
  int64_t* y = choir__view_data(choir_record_dst(record, 0));
  *y = record->accumulate ? *y + correct : correct;
  return NULL;
}

#define KERNEL(OP, name, supports_name)       \
  const choir_op_kernel_t choir__cpu_##name = \
      CHOIR_OP_KERNEL(CHOIR_OP_##OP, #name, "cpu", name##_run, supports_name);
KERNEL(SOFTMAX_CROSS_ENTROPY, softmax_cross_entropy,
       softmax_cross_entropy_supports)
KERNEL(SOFTMAX_CROSS_ENTROPY_GRAD, softmax_cross_entropy_grad,
       cross_entropy_like_grad_supports)
KERNEL(CROSS_ENTROPY, cross_entropy, cross_entropy_supports)
KERNEL(CROSS_ENTROPY_GRAD, cross_entropy_grad, cross_entropy_like_grad_supports)
KERNEL(MSE_LOSS, mse_loss, mse_loss_supports)
KERNEL(COUNT_CORRECT, count_correct, count_correct_supports)
