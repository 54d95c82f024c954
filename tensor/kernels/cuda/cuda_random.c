// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_random.h"

#include <math.h>

#include "core/random.h"
#include "tensor/kernels/cuda/cuda_dims.h"
#include "tensor/kernels/cuda/cuda_kernels.h"

// `x`: NULL, or a source of the shape of y.
static choir__cuda_random_t start(const choir_record_t* record,
                                  const choir_view_t* x, choir_random_key_t key,
                                  int64_t first_sample, int64_t samples) {
  const choir_view_t* y = choir_record_dst(record, 0);
  choir__cuda_random_t params = {
      .x = x ? choir__cuda_data(x) : NULL,
      .y = choir__cuda_data(y),
      .step = key.step,
      .samples = (uint32_t)samples,
      .first_sample = (uint64_t)first_sample,
      .sample_size = (uint32_t)(choir_view_count(y) / samples),
      .accumulate = record->accumulate};
  choir_random_philox_key(key, params.key);
  const choir_view_t* from = x ? x : y;
  for (int32_t k = 0; k < y->ndim; ++k)
    choir__cuda_dims_add(&params.dims, y->shape[k], from->strides[k],
                         y->strides[k]);
  choir__cuda_dims_end(&params.dims);
  params.by_groups = choir_view_is_contiguous(y) &&
                     choir_view_is_contiguous(from) &&
                     choir__cuda_is_group(params.y) &&
                     (!x || choir__cuda_is_group(params.x)) &&
                     params.sample_size % CHOIR__CUDA_GROUP == 0;
  return params;
}

static choir_status_t launch(choir_stream_t* stream,
                             const choir_cuda_kernel_t* kernel,
                             const choir__cuda_random_t* params) {
  const uint64_t groups = (uint64_t)choir__cuda_quotient_up(params->sample_size,
                                                            CHOIR__CUDA_GROUP) *
                          params->samples;
  return choir__cuda_launch_threads(stream, kernel, groups, params);
}

static bool random_supports(const choir_record_t* record) {
  const choir_view_t* y = choir_record_dst(record, 0);
  const int64_t count = choir_view_count(y);
  return choir__cuda_random_module.image && y->dtype == CHOIR_DTYPE_F32 &&
         count > 0 && count <= INT32_MAX;
}

static bool dropout_supports(const choir_record_t* record) {
  return random_supports(record) &&
         choir_record_src(record, 0)->dtype == CHOIR_DTYPE_F32;
}

static choir_status_t random_run(const choir_record_t* record,
                                 choir_stream_t* stream,
                                 const choir_cuda_kernel_t* kernel,
                                 double range) {
  const choir_random_attrs_t* attrs = record->attrs;
  const choir_view_t* y = choir_record_dst(record, 0);
  const choir_random_key_t key = {
      (uint64_t)attrs->seed, (uint32_t)attrs->stream, (uint32_t)attrs->step};
  choir__cuda_random_t params =
      start(record, NULL, key, attrs->first_sample,
            attrs->whole_tensor || y->ndim == 0 ? 1 : y->shape[0]);
  params.low = (float)attrs->low;
  params.range = (float)range;
  return launch(stream, kernel, &params);
}

static choir_status_t random_uniform_run(const choir_record_t* record,
                                         choir_stream_t* stream) {
  static const choir_cuda_kernel_t kernel = {&choir__cuda_random_module,
                                             "choir_random_uniform"};
  const choir_random_attrs_t* attrs = record->attrs;
  return random_run(record, stream, &kernel, attrs->high - attrs->low);
}
static choir_status_t random_normal_run(const choir_record_t* record,
                                        choir_stream_t* stream) {
  static const choir_cuda_kernel_t kernel = {&choir__cuda_random_module,
                                             "choir_random_normal"};
  const choir_random_attrs_t* attrs = record->attrs;
  return random_run(record, stream, &kernel, attrs->high);
}

static choir_status_t dropout_run(const choir_record_t* record,
                                  choir_stream_t* stream) {
  static const choir_cuda_kernel_t kernel = {&choir__cuda_random_module,
                                             "choir_dropout"};
  const choir_dropout_attrs_t* attrs = record->attrs;
  const choir_view_t* y = choir_record_dst(record, 0);
  const choir_random_key_t key = {
      (uint64_t)attrs->seed, (uint32_t)attrs->stream, (uint32_t)attrs->step};
  choir__cuda_random_t params =
      start(record, choir_record_src(record, 0), key, attrs->first_sample,
            y->ndim == 0 ? 1 : y->shape[0]);
  // u >= ratio for u = (word >> 8) 2^-24, in integers.
  params.threshold = (uint32_t)ceil(attrs->ratio * 0x1p24);
  params.factor = (float)(1 / (1 - attrs->ratio));
  return launch(stream, &kernel, &params);
}

#define KERNEL(OP, name, supports_name) \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, supports_name)
KERNEL(RANDOM_UNIFORM, random_uniform, random_supports)
KERNEL(RANDOM_NORMAL, random_normal, random_supports)
KERNEL(DROPOUT, dropout, dropout_supports)
