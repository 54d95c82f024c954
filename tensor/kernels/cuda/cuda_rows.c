// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_rows.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/nest.h"

#define KERNEL(name)                                                          \
  static const choir_cuda_kernel_t name##_kernel = {&choir__cuda_rows_module, \
                                                    "choir_" #name};
KERNEL(softmax)
KERNEL(log_softmax)
KERNEL(softmax_grad)
KERNEL(log_softmax_grad)
KERNEL(norm)
KERNEL(norm_grad)
KERNEL(norm_sums)
KERNEL(softmax_cross_entropy)
KERNEL(softmax_cross_entropy_grad)
KERNEL(cross_entropy)
KERNEL(cross_entropy_grad)
KERNEL(count_correct)
KERNEL(mse_loss)
KERNEL(rows_mean)
KERNEL(rows_count)
#undef KERNEL

// ---- Operands ----

// f32 whose last dimension is dense; more than two dimensions without gaps.
static bool is_rows(const choir_view_t* view) {
  if (view->dtype != CHOIR_DTYPE_F32 || view->ndim < 1 ||
      choir_view_count(view) > INT32_MAX)
    return false;
  if (view->ndim != 2) return choir_view_is_contiguous(view);
  return view->strides[1] == 1 || view->shape[1] == 1;
}
static int64_t columns_of(const choir_view_t* view) {
  return view->shape[view->ndim - 1];
}
static int64_t stride_of(const choir_view_t* view) {
  return view->ndim == 2 ? view->strides[0] : columns_of(view);
}

static bool are_labels(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_I32 || view->dtype == CHOIR_DTYPE_I64;
}

// As choir_softmax and its like take it, from the shape of x.
static choir__cuda_rows_t rows_of(const choir_record_t* record) {
  const choir_view_t* x = choir_record_src(record, 0);
  const int64_t columns = columns_of(x);
  uint32_t members = 1;
  while (members < CHOIR__CUDA_THREADS && 2 * members < columns) members *= 2;
  return (choir__cuda_rows_t){
      .x = choir__cuda_data(x),
      .x_stride = stride_of(x),
      .rows = (uint32_t)(columns ? choir_view_count(x) / columns : 0),
      .columns = (uint32_t)columns,
      .members = members,
      .accumulate = record->accumulate};
}

static void take_labels(const choir_record_t* record,
                        choir__cuda_rows_t* rows) {
  const choir_view_t* labels = choir_record_src(record, 1);
  rows->labels = choir__cuda_data(labels);
  rows->labels_are_i64 = labels->dtype == CHOIR_DTYPE_I64;
  rows->label_stride = labels->strides[0];
}

static void take_result(const choir_record_t* record, int32_t index,
                        choir__cuda_rows_t* rows) {
  const choir_view_t* y = choir_record_dst(record, index);
  rows->y = choir__cuda_data(y);
  rows->y_stride = stride_of(y);
}

// ---- Launches ----

// One value of each row by the first kernel, from `threads` threads, their sum
// by the second.
static choir_status_t launch_two(const choir_record_t* record,
                                 choir_stream_t* stream,
                                 const choir_cuda_kernel_t* first,
                                 uint32_t threads,
                                 const choir_cuda_kernel_t* second,
                                 choir__cuda_rows_t* rows) {
  const choir_view_t* y = choir_record_dst(record, 0);
  rows->result = choir__cuda_data(y);
  if (rows->rows > 0) {
    void* values = NULL;
    CHOIR_TRY(
        choir__cuda_scratch(stream, rows->rows * sizeof(double), &values));
    rows->values = values;
    CHOIR_TRY(choir__cuda_launch_threads(stream, first, threads, rows));
  }
  return choir__cuda_launch_threads(stream, second, 1, rows);
}

// ---- softmax, log_softmax and their gradients ----

static bool softmax_supports(const choir_record_t* record) {
  const choir_view_t* y = choir_record_dst(record, 0);
  if (!choir__cuda_rows_module.image || choir_view_count(y) == 0) return false;
  for (int32_t i = 0; i < record->src_count; ++i)
    if (!is_rows(choir_record_src(record, i))) return false;
  return is_rows(y);
}

static choir_status_t softmax_any_run(const choir_record_t* record,
                                      choir_stream_t* stream,
                                      const choir_cuda_kernel_t* kernel) {
  choir__cuda_rows_t rows = rows_of(record);
  take_result(record, 0, &rows);
  if (record->src_count == 2) {
    rows.dy = choir__cuda_data(choir_record_src(record, 1));
    rows.dy_stride = stride_of(choir_record_src(record, 1));
  }
  return choir__cuda_launch_threads(stream, kernel, rows.rows * rows.members,
                                    &rows);
}

// ---- layer_norm, rms_norm and their gradients ----

static bool norm_supports(const choir_record_t* record) {
  if (!choir__cuda_rows_module.image) return false;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i)
    if (!is_rows(&record->operands[i])) return false;
  return choir_view_count(choir_record_src(record, 0)) > 0;
}

static choir__cuda_rows_t norm_rows_of(const choir_record_t* record,
                                       bool centred) {
  const choir_layer_norm_attrs_t* attrs = record->attrs;
  choir__cuda_rows_t rows = rows_of(record);
  take_result(record, 0, &rows);
  rows.scale = choir__cuda_data(choir_record_src(record, 1));
  rows.epsilon = attrs->epsilon;
  rows.centred = centred;
  return rows;
}

static choir_status_t norm_run(const choir_record_t* record,
                               choir_stream_t* stream, bool centred) {
  choir__cuda_rows_t rows = norm_rows_of(record, centred);
  if (centred) rows.bias = choir__cuda_data(choir_record_src(record, 2));
  return choir__cuda_launch_threads(stream, &norm_kernel,
                                    rows.rows * rows.members, &rows);
}

static choir_status_t norm_grad_run(const choir_record_t* record,
                                    choir_stream_t* stream, bool centred) {
  choir__cuda_rows_t rows = norm_rows_of(record, centred);
  rows.dy = choir__cuda_data(choir_record_src(record, 2));
  rows.dy_stride = stride_of(choir_record_src(record, 2));
  rows.dscale = choir__cuda_data(choir_record_dst(record, 1));
  if (centred) rows.dbias = choir__cuda_data(choir_record_dst(record, 2));
  void* values = NULL;
  CHOIR_TRY(
      choir__cuda_scratch(stream, 2 * rows.rows * sizeof(double), &values));
  rows.values = values;
  CHOIR_TRY(choir__cuda_launch_threads(stream, &norm_grad_kernel,
                                       rows.rows * rows.members, &rows));
  return choir__cuda_launch_threads(stream, &norm_sums_kernel, rows.columns,
                                    &rows);
}

// ---- Losses on labels ----

static bool labelled_supports(const choir_record_t* record) {
  return choir__cuda_rows_module.image &&
         is_rows(choir_record_src(record, 0)) &&
         choir_record_src(record, 0)->shape[1] > 0 &&
         are_labels(choir_record_src(record, 1));
}

static bool softmax_cross_entropy_supports(const choir_record_t* record) {
  return labelled_supports(record) && is_rows(choir_record_dst(record, 1));
}

// x, labels -> one number.
static choir__cuda_rows_t labelled_rows_of(const choir_record_t* record) {
  choir__cuda_rows_t rows = rows_of(record);
  rows.divisor = rows.rows ? rows.rows : 1;
  take_labels(record, &rows);
  return rows;
}

static choir_status_t softmax_cross_entropy_run(const choir_record_t* record,
                                                choir_stream_t* stream) {
  choir__cuda_rows_t rows = labelled_rows_of(record);
  take_result(record, 1, &rows);
  return launch_two(record, stream, &softmax_cross_entropy_kernel,
                    rows.rows * rows.members, &rows_mean_kernel, &rows);
}

static choir_status_t cross_entropy_run(const choir_record_t* record,
                                        choir_stream_t* stream) {
  choir__cuda_rows_t rows = labelled_rows_of(record);
  return launch_two(record, stream, &cross_entropy_kernel, rows.rows,
                    &rows_mean_kernel, &rows);
}

static choir_status_t count_correct_run(const choir_record_t* record,
                                        choir_stream_t* stream) {
  choir__cuda_rows_t rows = labelled_rows_of(record);
  return launch_two(record, stream, &count_correct_kernel,
                    rows.rows * rows.members, &rows_count_kernel, &rows);
}

// p, labels, dy -> dx: a thread for each element.
static bool labelled_grad_supports(const choir_record_t* record) {
  return labelled_supports(record) &&
         choir_record_src(record, 2)->dtype == CHOIR_DTYPE_F32 &&
         is_rows(choir_record_dst(record, 0));
}

static choir_status_t labelled_grad_run(const choir_record_t* record,
                                        choir_stream_t* stream,
                                        const choir_cuda_kernel_t* kernel) {
  choir__cuda_rows_t rows = labelled_rows_of(record);
  rows.dy = choir__cuda_data(choir_record_src(record, 2));
  take_result(record, 0, &rows);
  return choir__cuda_launch_threads(stream, kernel, rows.rows * rows.columns,
                                    &rows);
}

static choir_status_t softmax_cross_entropy_grad_run(
    const choir_record_t* record, choir_stream_t* stream) {
  return labelled_grad_run(record, stream, &softmax_cross_entropy_grad_kernel);
}
static choir_status_t cross_entropy_grad_run(const choir_record_t* record,
                                             choir_stream_t* stream) {
  return labelled_grad_run(record, stream, &cross_entropy_grad_kernel);
}

// ---- mse_loss of operands that lie densely in the same order ----

static bool mse_loss_supports(const choir_record_t* record) {
  const choir_view_t* views[] = {choir_record_src(record, 0),
                                 choir_record_src(record, 1)};
  choir__nest_t nest;
  if (!choir__cuda_rows_module.image || views[0]->dtype != CHOIR_DTYPE_F32 ||
      !choir__nest_make(views, 2, &nest) || nest.count > INT32_MAX)
    return false;
  return nest.count == 0 ||
         (nest.ndim == 2 && nest.shape[0] == 1 && nest.strides[0][1] == 1 &&
          nest.strides[1][1] == 1);
}

static choir_status_t mse_loss_run(const choir_record_t* record,
                                   choir_stream_t* stream) {
  const uint32_t count =
      (uint32_t)choir_view_count(choir_record_src(record, 0));
  choir__cuda_rows_t rows = {
      .x = choir__cuda_data(choir_record_src(record, 0)),
      .dy = choir__cuda_data(choir_record_src(record, 1)),
      .rows = choir__cuda_quotient_up(count, CHOIR__CUDA_MSE_CHUNK),
      .columns = count,
      .divisor = count ? count : 1,
      .accumulate = record->accumulate};
  rows.by_groups =
      choir__cuda_is_group(rows.x) && choir__cuda_is_group(rows.dy);
  return launch_two(record, stream, &mse_loss_kernel,
                    rows.rows * CHOIR__CUDA_THREADS, &rows_mean_kernel, &rows);
}

// ---- Kernels ----

#define SOFTMAX(name)                                            \
  static choir_status_t name##_run(const choir_record_t* record, \
                                   choir_stream_t* stream) {     \
    return softmax_any_run(record, stream, &name##_kernel);      \
  }
SOFTMAX(softmax)
SOFTMAX(log_softmax)
SOFTMAX(softmax_grad)
SOFTMAX(log_softmax_grad)

#define NORM(name, function, centred)                            \
  static choir_status_t name##_run(const choir_record_t* record, \
                                   choir_stream_t* stream) {     \
    return function(record, stream, centred);                    \
  }
NORM(layer_norm, norm_run, true)
NORM(rms_norm, norm_run, false)
NORM(layer_norm_grad, norm_grad_run, true)
NORM(rms_norm_grad, norm_grad_run, false)

#define KERNEL(OP, name, supports_name) \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, supports_name)
KERNEL(LAYER_NORM, layer_norm, norm_supports)
KERNEL(LAYER_NORM_GRAD, layer_norm_grad, norm_supports)
KERNEL(RMS_NORM, rms_norm, norm_supports)
KERNEL(RMS_NORM_GRAD, rms_norm_grad, norm_supports)
KERNEL(SOFTMAX, softmax, softmax_supports)
KERNEL(LOG_SOFTMAX, log_softmax, softmax_supports)
KERNEL(SOFTMAX_GRAD, softmax_grad, softmax_supports)
KERNEL(LOG_SOFTMAX_GRAD, log_softmax_grad, softmax_supports)
KERNEL(SOFTMAX_CROSS_ENTROPY, softmax_cross_entropy,
       softmax_cross_entropy_supports)
KERNEL(SOFTMAX_CROSS_ENTROPY_GRAD, softmax_cross_entropy_grad,
       labelled_grad_supports)
KERNEL(CROSS_ENTROPY, cross_entropy, labelled_supports)
KERNEL(CROSS_ENTROPY_GRAD, cross_entropy_grad, labelled_grad_supports)
KERNEL(MSE_LOSS, mse_loss, mse_loss_supports)
KERNEL(COUNT_CORRECT, count_correct, labelled_supports)
