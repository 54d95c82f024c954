// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_attention.h"

#include <math.h>

#include "core/random.h"
#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/ops/attention.h"

#define KERNEL(name)                                 \
  static const choir_cuda_kernel_t name##_kernel = { \
      &choir__cuda_attention_module, "choir_" #name};
KERNEL(attention)
KERNEL(attention_along)
KERNEL(attention_dq)
KERNEL(attention_dk)
KERNEL(attention_dv)
KERNEL(attention_dmask)
#undef KERNEL

// f32, but for masks of whole numbers; any strides.
static bool supports(const choir_record_t* record) {
  const int32_t count = record->src_count;
  const int32_t mask = count == 4 || count == 7 ? count - 1 : -1;
  for (int32_t i = 0; i < count + record->dst_count; ++i) {
    const choir_view_t* view = &record->operands[i];
    const int64_t elements = choir_view_count(view);
    if (elements == 0 || elements > INT32_MAX ||
        (view->dtype != CHOIR_DTYPE_F32 &&
         (i != mask || choir_dtype_is_float(view->dtype))))
      return false;
  }
  return choir__cuda_attention_module.image;
}

// Of (n, h, rows, columns), or (n, h, rows).
static choir__cuda_heads_t heads_of(const choir_view_t* view) {
  choir__cuda_heads_t heads = {.data = choir__cuda_data(view)};
  for (int32_t k = 0; k < view->ndim; ++k) heads.strides[k] = view->strides[k];
  return heads;
}

static uint32_t tiles_of(int64_t count) {
  return choir__cuda_quotient_up((uint64_t)count, CHOIR__CUDA_ATTENTION_TILE);
}

static choir__cuda_attention_t params_of(const choir_record_t* record) {
  const choir__attention_t a = choir__attention_of(record);
  const choir_attention_attrs_t* drop = a.drop;
  choir__cuda_attention_t params = {
      .q = heads_of(choir_record_src(record, 0)),
      .k = heads_of(choir_record_src(record, 1)),
      .v = heads_of(choir_record_src(record, 2)),
      .hides = a.hides,
      .heads = (uint32_t)a.heads,
      .group = (uint32_t)(a.heads / a.kv_heads),
      .rows = (uint32_t)a.rows,
      .columns = (uint32_t)a.columns,
      .depth = (uint32_t)a.depth,
      .width = (uint32_t)a.width,
      .causal = a.causal,
      .offset = a.offset,
      .scale = (float)a.scale,
      .drops = drop->dropout > 0,
      .step = (uint32_t)drop->step,
      .first_sample = (uint64_t)drop->first_sample,
      .threshold = (uint32_t)ceil(drop->dropout * 0x1p24),
      .factor = (float)(1 / (1 - drop->dropout)),
      .total = {(uint32_t)a.batch, (uint32_t)a.heads, tiles_of(a.rows),
                tiles_of(a.columns)},
      .accumulate = record->accumulate};
  choir_random_philox_key(
      (choir_random_key_t){(uint64_t)drop->seed, (uint32_t)drop->stream,
                           (uint32_t)drop->step},
      params.key);
  if (!a.mask) return params;
  params.mask = choir__cuda_data(a.mask);
  params.mask_bytes = (uint32_t)choir_dtype_bytes(a.mask->dtype);
  for (int32_t k = 0; k < 4; ++k) params.mask_strides[k] = a.mask_strides[k];
  return params;
}

// A block for each tile of a result `columns` wide, which takes so many
// samples, heads, and tiles of rows and of columns.
static choir_status_t launch(choir_stream_t* stream,
                             const choir_cuda_kernel_t* kernel,
                             choir__cuda_attention_t* params,
                             const uint32_t each[4], uint32_t columns) {
  params->chunks = tiles_of(columns);
  uint32_t blocks = params->chunks;
  for (int32_t k = 0; k < 4; ++k) {
    params->each[k] = each[k];
    blocks *= choir__cuda_quotient_up(params->total[k], each[k]);
  }
  return choir__cuda_launch(stream, kernel, blocks, CHOIR__CUDA_THREADS,
                            params);
}

static choir_status_t attention_run(const choir_record_t* record,
                                    choir_stream_t* stream) {
  choir__cuda_attention_t params = params_of(record);
  params.result = heads_of(choir_record_dst(record, 0));
  params.sums = heads_of(choir_record_dst(record, 1));
  return launch(stream, &attention_kernel, &params,
                (uint32_t[]){1, 1, 1, params.total[3]}, params.width);
}

// What both gradients begin with.
static choir_status_t grad_begin(const choir_record_t* record,
                                 choir_stream_t* stream,
                                 choir__cuda_attention_t* params) {
  *params = params_of(record);
  params->y = heads_of(choir_record_src(record, 3));
  params->sums = heads_of(choir_record_src(record, 4));
  params->dy = heads_of(choir_record_src(record, 5));
  const uint32_t rows = params->total[0] * params->heads * params->rows;
  void* along = NULL;
  CHOIR_TRY(choir__cuda_scratch(stream, rows * sizeof(float), &along));
  params->along = along;
  return choir__cuda_launch_threads(stream, &attention_along_kernel, rows,
                                    params);
}

static choir_status_t attention_grad_run(const choir_record_t* record,
                                         choir_stream_t* stream) {
  choir__cuda_attention_t p;
  CHOIR_TRY(grad_begin(record, stream, &p));
  const uint32_t of_q[] = {1, 1, 1, p.total[3]};
  const uint32_t of_kv[] = {1, p.group, p.total[2], 1};
  p.result = heads_of(choir_record_dst(record, 0));
  CHOIR_TRY(launch(stream, &attention_dq_kernel, &p, of_q, p.depth));
  p.result = heads_of(choir_record_dst(record, 1));
  CHOIR_TRY(launch(stream, &attention_dk_kernel, &p, of_kv, p.depth));
  p.result = heads_of(choir_record_dst(record, 2));
  return launch(stream, &attention_dv_kernel, &p, of_kv, p.width);
}

// Along a dimension that the mask broadcasts, one block takes all.
static choir_status_t attention_mask_grad_run(const choir_record_t* record,
                                              choir_stream_t* stream) {
  choir__cuda_attention_t p;
  CHOIR_TRY(grad_begin(record, stream, &p));
  const choir_view_t* dmask = choir_record_dst(record, 0);
  p.result = (choir__cuda_heads_t){.data = choir__cuda_data(dmask)};
  choir__attention_spread(dmask, p.result.strides);
  uint32_t each[4];
  for (int32_t k = 0; k < 4; ++k)
    each[k] = p.result.strides[k] == 0 ? p.total[k] : 1;
  return launch(stream, &attention_dmask_kernel, &p, each, 1);
}

#define KERNEL(OP, name) \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, supports)
KERNEL(ATTENTION, attention)
KERNEL(ATTENTION_GRAD, attention_grad)
KERNEL(ATTENTION_MASK_GRAD, attention_mask_grad)
