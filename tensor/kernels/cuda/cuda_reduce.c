// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_reduce.h"

#include "tensor/kernels/cuda/cuda_dims.h"
#include "tensor/kernels/cuda/cuda_kernels.h"

// Blocks that keep a large GPU busy; not the number that this one could run at
// a time, as that would let it choose the order of sums.
enum { ENOUGH_BLOCKS = 512 };
// Elements that a thread takes, of one column: not fewer where a lane is cut
// into chunks, and not more, as it sums them in f32.
enum { FEW_ELEMENTS = 4, MANY_ELEMENTS = 256 };

// The kernels of one kind of reduction.
typedef struct reduction_s {
  bool gives_places;  // i64; else what is reduced
  size_t total_bytes;
  choir_cuda_kernel_t rows;
  choir_cuda_kernel_t columns;
  choir_cuda_kernel_t wide;
  choir_cuda_kernel_t finish;
} reduction_t;

#define REDUCTION(name, gives_places, total_bytes)             \
  static const reduction_t name##_reduction = {                \
      gives_places,                                            \
      total_bytes,                                             \
      {&choir__cuda_reduce_module, "choir_" #name "_rows"},    \
      {&choir__cuda_reduce_module, "choir_" #name "_columns"}, \
      {&choir__cuda_reduce_module, "choir_" #name "_wide"},    \
      {&choir__cuda_reduce_module, "choir_" #name "_finish"},  \
  };
REDUCTION(sum, false, sizeof(double))
REDUCTION(max, false, sizeof(float))
REDUCTION(argmax, true, sizeof(float) + sizeof(uint32_t))
#undef REDUCTION

static uint32_t power_of_two(uint32_t least) {
  uint32_t power = 1;
  while (power < least) power *= 2;
  return power;
}

// ---- Dimensions ----

// The dimensions of x that stay, the one last that moves x least: results may
// be made in any order. `order` gets their numbers.
static int32_t order_kept(const choir_view_t* x, int64_t axis, int32_t* order) {
  int32_t count = 0;
  for (int32_t k = 0; k < x->ndim && axis >= 0; ++k) {
    if (k == axis) continue;
    int32_t at = count++;
    for (; at > 0 && x->strides[order[at - 1]] < x->strides[k]; --at)
      order[at] = order[at - 1];
    order[at] = k;
  }
  return count;
}

static void take_dims(const choir_record_t* record,
                      choir__cuda_reduce_t* params) {
  const choir_reduce_attrs_t* attrs = record->attrs;
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* y = choir_record_dst(record, 0);
  int32_t order[CHOIR_MAX_NDIM];
  const int32_t kept = order_kept(x, attrs->axis, order);
  for (int32_t i = 0; i < kept; ++i) {
    const int32_t k = order[i];
    const int32_t own = k > attrs->axis && !attrs->keep_dims ? k - 1 : k;
    choir__cuda_dims_add(&params->lanes, x->shape[k], x->strides[k],
                         y->strides[own]);
  }
  // In the order in which places count.
  for (int32_t k = 0; k < x->ndim; ++k)
    if (attrs->axis < 0 || k == attrs->axis)
      choir__cuda_dims_add(&params->lane, x->shape[k], x->strides[k], 0);
  choir__cuda_dims_end(&params->lanes);
  choir__cuda_dims_end(&params->lane);
}

// ---- Form ----

static bool all_are_groups(const choir__cuda_dims_t* dims, int32_t count) {
  for (int32_t k = 0; k < count; ++k)
    if (dims->src[k] % CHOIR__CUDA_GROUP) return false;
  return true;
}

static bool starts_group(const choir__cuda_reduce_t* params) {
  return params->half == 0 && choir__cuda_is_group(params->x);
}

// Lanes lie side by side.
static bool is_columns(const choir__cuda_reduce_t* params) {
  const choir__cuda_dims_t* lanes = &params->lanes;
  const int32_t last = lanes->ndim - 1;
  return lanes->src[last] == 1 && lanes->shape[last] > 1 &&
         params->lane.src[params->lane.ndim - 1] != 1;
}

// Cuts lanes into chunks where there are too few blocks, or lanes are too long
// for sums in f32. `unit`: elements that the members of a chunk take at a time.
static void cut(choir__cuda_reduce_t* params, uint64_t blocks, uint32_t unit) {
  const uint32_t elements = params->lane_elements;
  uint32_t chunk = MANY_ELEMENTS * unit;
  if (blocks < ENOUGH_BLOCKS) {
    const uint32_t wanted = choir__cuda_quotient_up(ENOUGH_BLOCKS, blocks);
    const uint32_t fair =
        choir__cuda_quotient_up(elements, (uint64_t)wanted * unit) * unit;
    const uint32_t least = FEW_ELEMENTS * unit;
    if (fair < chunk) chunk = fair > least ? fair : least;
  }
  params->chunks =
      elements > chunk ? choir__cuda_quotient_up(elements, chunk) : 1;
  params->chunk_elements = params->chunks > 1 ? chunk : elements;
}

// Blocks of the first pass.
static uint64_t form_columns(choir__cuda_reduce_t* params) {
  const choir__cuda_dims_t* lanes = &params->lanes;
  const int32_t last = lanes->ndim - 1;
  params->columns = lanes->shape[last];
  params->by_groups = starts_group(params) &&
                      params->columns % CHOIR__CUDA_GROUP == 0 &&
                      all_are_groups(lanes, last) &&
                      all_are_groups(&params->lane, params->lane.ndim);
  const uint32_t each = params->by_groups ? CHOIR__CUDA_GROUP : 1;
  // A warp beside each other at most: more members go across sooner.
  uint32_t wide = power_of_two(params->columns / each);
  if (wide > 32) wide = 32;
  params->members = CHOIR__CUDA_THREADS / wide;
  params->stripes = choir__cuda_quotient_up(params->columns, wide * each);
  const uint64_t blocks =
      (uint64_t)(params->lane_count / params->columns) * params->stripes;
  cut(params, blocks, params->members);
  return blocks * params->chunks;
}

static uint64_t form_rows(choir__cuda_reduce_t* params) {
  params->by_groups = params->lane.ndim == 1 && params->lane.src[0] == 1 &&
                      starts_group(params) &&
                      (params->lane_count == 1 ||
                       all_are_groups(&params->lanes, params->lanes.ndim));
  const uint32_t each = params->by_groups ? CHOIR__CUDA_GROUP : 1;
  params->members =
      power_of_two(choir__cuda_quotient_up(params->lane_elements, 4));
  if (params->members > CHOIR__CUDA_THREADS)
    params->members = CHOIR__CUDA_THREADS;
  const uint64_t blocks = choir__cuda_quotient_up(
      params->lane_count, CHOIR__CUDA_THREADS / params->members);
  cut(params, blocks, params->members * each);
  return blocks * params->chunks;
}

// Fills params but for what y and the totals are; blocks of the first pass.
static uint64_t describe(const choir_record_t* record,
                         choir__cuda_reduce_t* params) {
  const choir_view_t* x = choir_record_src(record, 0);
  take_dims(record, params);
  params->lane_count = (uint32_t)choir_view_count(choir_record_dst(record, 0));
  params->lane_elements =
      (uint32_t)(choir_view_count(x) / (int64_t)params->lane_count);
  params->x = choir__cuda_data(x);
  params->half = x->dtype == CHOIR_DTYPE_F16    ? CHOIR__CUDA_F16
                 : x->dtype == CHOIR_DTYPE_BF16 ? CHOIR__CUDA_BF16
                                                : 0;
  params->accumulate = record->accumulate;
  return is_columns(params) ? form_columns(params) : form_rows(params);
}

// ---- Kernels ----

static bool reduce_supports(const choir_record_t* record,
                            const reduction_t* reduction) {
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* y = choir_record_dst(record, 0);
  const choir_dtype_t wanted =
      reduction->gives_places ? CHOIR_DTYPE_I64 : x->dtype;
  if (!choir__cuda_reduce_module.image || !choir_dtype_is_float(x->dtype) ||
      x->dtype == CHOIR_DTYPE_F64 || y->dtype != wanted)
    return false;
  const int64_t lanes = choir_view_count(y);
  // Blocks and places are counted in 32 bits.
  return lanes > 0 && choir_view_count(x) <= INT32_MAX && lanes <= INT32_MAX;
}

static choir_status_t reduce_run(const choir_record_t* record,
                                 choir_stream_t* stream,
                                 const reduction_t* reduction, choir_op_t op) {
  const choir_view_t* y = choir_record_dst(record, 0);
  choir__cuda_reduce_t params = {0};
  const uint64_t blocks = describe(record, &params);
  params.y = choir__cuda_data(y);
  params.squares = op == CHOIR_OP_SUM_SQUARE;
  params.divisor = op == CHOIR_OP_MEAN ? (double)params.lane_elements : 1.0;
  if (params.chunks > 1)
    CHOIR_TRY(choir__cuda_scratch(
        stream,
        (size_t)params.lane_count * params.chunks * reduction->total_bytes,
        &params.totals));
  const choir_cuda_kernel_t* first = !is_columns(&params) ? &reduction->rows
                                     : params.by_groups   ? &reduction->wide
                                                          : &reduction->columns;
  CHOIR_TRY(choir__cuda_launch(stream, first, (uint32_t)blocks,
                               CHOIR__CUDA_THREADS, &params));
  if (params.chunks == 1) return NULL;
  params.members = power_of_two(params.chunks);
  if (params.members > CHOIR__CUDA_THREADS)
    params.members = CHOIR__CUDA_THREADS;
  return choir__cuda_launch(
      stream, &reduction->finish,
      choir__cuda_quotient_up(params.lane_count,
                              CHOIR__CUDA_THREADS / params.members),
      CHOIR__CUDA_THREADS, &params);
}

#define REDUCE(OP, name, reduction)                               \
  static bool name##_supports(const choir_record_t* record) {     \
    return reduce_supports(record, &reduction);                   \
  }                                                               \
  static choir_status_t name##_run(const choir_record_t* record,  \
                                   choir_stream_t* stream) {      \
    return reduce_run(record, stream, &reduction, CHOIR_OP_##OP); \
  }                                                               \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, name##_supports)
REDUCE(SUM, sum, sum_reduction)
REDUCE(MEAN, mean, sum_reduction)
REDUCE(SUM_SQUARE, sum_square, sum_reduction)
REDUCE(MAX, max, max_reduction)
REDUCE(ARGMAX, argmax, argmax_reduction)
