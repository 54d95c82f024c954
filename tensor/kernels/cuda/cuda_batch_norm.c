// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_batch_norm.h"

#include "tensor/kernels/cuda/cuda_kernels.h"

// As in cuda_reduce.c: blocks that keep a large GPU busy, and rows that a
// thread takes at least.
enum { ENOUGH_BLOCKS = 512, FEW_ROWS = 8 };

// (rows, channels) without gaps: samples, or pixels of channels-last images.
static bool is_pixels(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 &&
         choir_view_count(view) <= INT32_MAX &&
         (view->ndim == 2
              ? choir_view_is_contiguous(view)
              : view->ndim == 4 && choir_view_is_channels_last(view));
}
static bool is_vector(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 && choir_view_is_contiguous(view);
}

// Sources and destinations of two or more dimensions are images, the rest has
// a number for each channel.
static bool supports(const choir_record_t* record) {
  if (!choir__cuda_batch_norm_module.image) return false;
  for (int32_t i = 0; i < record->src_count + record->dst_count; ++i) {
    const choir_view_t* view = &record->operands[i];
    if (view->ndim < 2 ? !is_vector(view) : !is_pixels(view)) return false;
  }
  return true;
}

static const float* source(const choir_record_t* record, int32_t index) {
  return index < record->src_count
             ? choir__cuda_data(choir_record_src(record, index))
             : NULL;
}
static float* result(const choir_record_t* record, int32_t index) {
  return index < record->dst_count
             ? choir__cuda_data(choir_record_dst(record, index))
             : NULL;
}

static double epsilon_of(const choir_record_t* record) {
  return ((const choir_batch_norm_attrs_t*)record->attrs)->epsilon;
}

static choir__cuda_batch_norm_t start(const choir_record_t* record,
                                      double epsilon) {
  const choir_view_t* x = choir_record_src(record, 0);
  choir__cuda_batch_norm_t params = {
      .x = choir__cuda_data(x),
      .scale = source(record, 1),
      .y = result(record, 0),
      .first = result(record, 1),
      .second = result(record, 2),
      .epsilon = (float)epsilon,
      .channels = (uint32_t)x->shape[1],
      .rows = (uint32_t)(choir_view_count(x) / x->shape[1]),
      .accumulate = record->accumulate};
  uint32_t wide = 1;
  while (wide < 32 && wide < params.channels) wide *= 2;
  params.members = CHOIR__CUDA_THREADS / wide;
  params.stripes = choir__cuda_quotient_up(params.channels, wide);
  params.chunk_rows = choir__cuda_quotient_up(
      params.rows, choir__cuda_quotient_up(ENOUGH_BLOCKS, params.stripes));
  const uint32_t least = FEW_ROWS * params.members;
  if (params.chunk_rows < least) params.chunk_rows = least;
  params.chunks = choir__cuda_quotient_up(params.rows, params.chunk_rows);
  return params;
}

// The kernels of a result's elements, one or CHOIR__CUDA_GROUP to a thread.
typedef struct forms_s {
  choir_cuda_kernel_t one;
  choir_cuda_kernel_t grouped;
} forms_t;

static choir_status_t launch_elements(choir_stream_t* stream,
                                      const forms_t* forms,
                                      const choir__cuda_batch_norm_t* params) {
  const bool by_groups = params->channels % CHOIR__CUDA_GROUP == 0 &&
                         choir__cuda_is_group(params->x) &&
                         choir__cuda_is_group(params->residual) &&
                         choir__cuda_is_group(params->dy) &&
                         choir__cuda_is_group(params->dy2) &&
                         choir__cuda_is_group(params->y) &&
                         choir__cuda_is_group(params->dresidual);
  const uint32_t threads =
      params->rows * params->channels / (by_groups ? CHOIR__CUDA_GROUP : 1);
  return choir__cuda_launch_threads(
      stream, by_groups ? &forms->grouped : &forms->one, threads, params);
}

// Two sums of each channel, and what follows from them.
static choir_status_t launch_sums(choir_stream_t* stream,
                                  const choir_cuda_kernel_t* sums,
                                  const choir_cuda_kernel_t* channels,
                                  choir__cuda_batch_norm_t* params) {
  const size_t parts = (size_t)params->chunks * params->channels * 2;
  void* scratch = NULL;
  CHOIR_TRY(choir__cuda_scratch(
      stream,
      parts * sizeof(double) + (size_t)params->channels * 2 * sizeof(float),
      &scratch));
  params->parts = scratch;
  params->moments = (float*)(params->parts + parts);
  CHOIR_TRY(choir__cuda_launch(stream, sums, params->chunks * params->stripes,
                               CHOIR__CUDA_THREADS, params));
  return choir__cuda_launch(stream, channels, params->stripes,
                            CHOIR__CUDA_THREADS, params);
}

// And the elements.
static choir_status_t launch_all(choir_stream_t* stream,
                                 const choir_cuda_kernel_t* sums,
                                 const choir_cuda_kernel_t* channels,
                                 const forms_t* elements,
                                 choir__cuda_batch_norm_t* params) {
  CHOIR_TRY(launch_sums(stream, sums, channels, params));
  return launch_elements(stream, elements, params);
}

#define KERNEL(name)                                 \
  static const choir_cuda_kernel_t name##_kernel = { \
      &choir__cuda_batch_norm_module, "choir_" #name};
KERNEL(batch_norm_sums)
KERNEL(batch_norm_moments)
KERNEL(batch_norm_grad_sums)
KERNEL(batch_norm_gradients)
KERNEL(batch_norm_relu_grad_sums)
KERNEL(batch_norm_add_relu_grad_sums)
#undef KERNEL
#define FORMS(name)                                     \
  static const forms_t name##_forms = {                 \
      {&choir__cuda_batch_norm_module, "choir_" #name}, \
      {&choir__cuda_batch_norm_module, "choir_" #name "_grouped"}};
FORMS(batch_norm)
FORMS(batch_norm_relu)
FORMS(batch_norm_infer)
FORMS(batch_norm_grad)
FORMS(batch_norm_relu_grad)
FORMS(batch_norm_add_relu_grad)
#undef FORMS

// ---- Forward: x, scale, bias (, residual) -> y, mean, variance ----

static choir_status_t forward(const choir_record_t* record,
                              choir_stream_t* stream, const forms_t* elements) {
  choir__cuda_batch_norm_t params = start(record, epsilon_of(record));
  params.bias = source(record, 2);
  params.residual = source(record, 3);
  return launch_all(stream, &batch_norm_sums_kernel, &batch_norm_moments_kernel,
                    elements, &params);
}
static choir_status_t batch_norm_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  return forward(record, stream, &batch_norm_forms);
}
static choir_status_t batch_norm_relu_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  return forward(record, stream, &batch_norm_relu_forms);
}

static choir_status_t batch_norm_infer_run(const choir_record_t* record,
                                           choir_stream_t* stream) {
  choir__cuda_batch_norm_t params = start(record, epsilon_of(record));
  params.bias = source(record, 2);
  params.mean = source(record, 3);
  params.variance = source(record, 4);
  return launch_elements(stream, &batch_norm_infer_forms, &params);
}

// ---- Sums alone, of all samples ----

// Results are rows of vectors; here one.
static bool sums_supports(const choir_record_t* record) {
  return supports(record) && choir_record_dst(record, 0)->shape[0] == 1;
}

static choir_status_t batch_norm_moments_run(const choir_record_t* record,
                                             choir_stream_t* stream) {
  choir__cuda_batch_norm_t params = start(record, 0);
  params.first = result(record, 0);
  params.second = result(record, 1);
  return launch_sums(stream, &batch_norm_sums_kernel,
                     &batch_norm_moments_kernel, &params);
}

// x, mean, variance, dy
static choir_status_t batch_norm_sums_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  const choir_batch_norm_sums_attrs_t* attrs = record->attrs;
  choir__cuda_batch_norm_t params = start(record, attrs->epsilon);
  params.first = result(record, 0);
  params.second = result(record, 1);
  params.mean = source(record, 1);
  params.variance = source(record, 2);
  params.dy = source(record, 3);
  return launch_sums(stream, &batch_norm_grad_sums_kernel,
                     &batch_norm_gradients_kernel, &params);
}

// ---- Gradients: dx, dscale, dbias (, dresidual) ----

// x, scale, mean, variance, dy
static choir_status_t batch_norm_grad_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  choir__cuda_batch_norm_t params = start(record, epsilon_of(record));
  params.mean = source(record, 2);
  params.variance = source(record, 3);
  params.dy = source(record, 4);
  return launch_all(stream, &batch_norm_grad_sums_kernel,
                    &batch_norm_gradients_kernel, &batch_norm_grad_forms,
                    &params);
}

// x, scale, bias, mean, variance, dy (, dy2)
static choir_status_t batch_norm_relu_grad_run(const choir_record_t* record,
                                               choir_stream_t* stream) {
  choir__cuda_batch_norm_t params = start(record, epsilon_of(record));
  params.bias = source(record, 2);
  params.mean = source(record, 3);
  params.variance = source(record, 4);
  params.dy = source(record, 5);
  params.dy2 = source(record, 6);
  return launch_all(stream, &batch_norm_relu_grad_sums_kernel,
                    &batch_norm_gradients_kernel, &batch_norm_relu_grad_forms,
                    &params);
}

// x, scale, mean, variance, y, dy (, dy2)
static choir_status_t batch_norm_add_relu_grad_run(const choir_record_t* record,
                                                   choir_stream_t* stream) {
  choir__cuda_batch_norm_t params = start(record, epsilon_of(record));
  params.mean = source(record, 2);
  params.variance = source(record, 3);
  params.residual = source(record, 4);
  params.dy = source(record, 5);
  params.dy2 = source(record, 6);
  params.dresidual = result(record, 3);
  return launch_all(stream, &batch_norm_add_relu_grad_sums_kernel,
                    &batch_norm_gradients_kernel,
                    &batch_norm_add_relu_grad_forms, &params);
}

#define KERNEL(OP, name) \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, supports)
KERNEL(BATCH_NORM, batch_norm)
KERNEL(BATCH_NORM_INFER, batch_norm_infer)
CHOIR__CUDA_OP_KERNEL(BATCH_NORM_MOMENTS, batch_norm_moments, "cuda",
                      batch_norm_moments_run, sums_supports)
CHOIR__CUDA_OP_KERNEL(BATCH_NORM_SUMS, batch_norm_sums, "cuda",
                      batch_norm_sums_run, sums_supports)
KERNEL(BATCH_NORM_RELU, batch_norm_relu)
KERNEL(BATCH_NORM_GRAD, batch_norm_grad)
KERNEL(BATCH_NORM_RELU_GRAD, batch_norm_relu_grad)
KERNEL(BATCH_NORM_ADD_RELU_GRAD, batch_norm_add_relu_grad)
