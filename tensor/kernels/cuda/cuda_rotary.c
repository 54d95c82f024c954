// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_rotary.h"

#include "tensor/kernels/cuda/cuda_kernels.h"

static bool supports(const choir_record_t* record) {
  const choir_view_t* x = choir_record_src(record, 0);
  const int64_t count = choir_view_count(x);
  return choir__cuda_rotary_module.image && x->dtype == CHOIR_DTYPE_F32 &&
         count > 0 && count <= INT32_MAX;
}

static choir_status_t turn(const choir_record_t* record, choir_stream_t* stream,
                           double direction) {
  static const choir_cuda_kernel_t make_table = {&choir__cuda_rotary_module,
                                                 "choir_rotary_table"};
  static const choir_cuda_kernel_t kernel = {&choir__cuda_rotary_module,
                                             "choir_rotary"};
  const choir_rotary_attrs_t* attrs = record->attrs;
  const choir_view_t *x = choir_record_src(record, 0),
                     *y = choir_record_dst(record, 0);
  const int32_t last = x->ndim - 1;
  const int64_t half = x->shape[last] / 2;
  choir__cuda_rotary_t params = {.x = choir__cuda_data(x),
                                 .y = choir__cuda_data(y),
                                 .x_half = half * x->strides[last],
                                 .y_half = half * y->strides[last],
                                 .rows = (uint32_t)x->shape[last - 1],
                                 .half = (uint32_t)half,
                                 .pairs = (uint32_t)(choir_view_count(x) / 2),
                                 .theta = attrs->theta,
                                 .offset = (double)attrs->offset,
                                 .direction = direction,
                                 .accumulate = record->accumulate};
  for (int32_t k = 0; k <= last; ++k)
    choir__cuda_dims_add(&params.dims, k == last ? half : x->shape[k],
                         x->strides[k], y->strides[k]);
  choir__cuda_dims_end(&params.dims);
  const uint32_t places = params.rows * params.half;
  void* table = NULL;
  CHOIR_TRY(choir__cuda_scratch(stream, 2 * sizeof(float) * places, &table));
  params.table = table;
  CHOIR_TRY(choir__cuda_launch_threads(stream, &make_table, places, &params));
  return choir__cuda_launch_threads(stream, &kernel, params.pairs, &params);
}

static choir_status_t rotary_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  return turn(record, stream, 1);
}
static choir_status_t rotary_grad_run(const choir_record_t* record,
                                      choir_stream_t* stream) {
  return turn(record, stream, -1);
}

CHOIR__CUDA_OP_KERNEL(ROTARY, rotary, "cuda", rotary_run, supports)
CHOIR__CUDA_OP_KERNEL(ROTARY_GRAD, rotary_grad, "cuda", rotary_grad_run,
                      supports)
