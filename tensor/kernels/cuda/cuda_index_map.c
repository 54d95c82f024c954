// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cuda_index_map.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/ops/index_map.h"

#define KERNEL(symbol) \
  { &choir__cuda_index_map_module, "choir_index_" symbol }
#define PULL(DTYPE, name, bytes, is_float) KERNEL("pull_" #DTYPE),
#define MAKE(DTYPE, name, bytes, is_float) KERNEL("make_" #DTYPE),
static const choir_cuda_kernel_t clear = KERNEL("clear");
static const choir_cuda_kernel_t link = KERNEL("link");
static const choir_cuda_kernel_t pulls[] = {CHOIR_DTYPE_LIST(PULL)};
static const choir_cuda_kernel_t makes[] = {CHOIR_DTYPE_LIST(MAKE)};

static bool fits(int64_t count) { return count <= INT32_MAX; }

static bool supports(const choir_record_t* record, const choir_op_def_t* def) {
  if (!choir__cuda_index_map_module.image) return false;
  choir__index_map_t map;
  choir__index_axes_t axes;
  def->index_map(record, 0, &map);
  return fits(choir_view_count(choir_record_dst(record, 0))) &&
         fits(choir_view_count(&map.places)) &&
         fits(choir__index_axes_of_indices(&map, &axes));
}

static void* data_of(const choir_view_t* view) {
  return view->buffer ? choir__cuda_data(view) : NULL;
}

static choir_status_t launch(choir_stream_t* stream,
                             const choir_cuda_kernel_t* kernel, uint32_t count,
                             const choir__cuda_index_map_t* params) {
  if (count == 0) return NULL;
  return choir__cuda_launch_threads(stream, kernel, count, params);
}

// The lists of indices that point to each element.
static choir_status_t make_lists(const choir__index_map_t* map,
                                 choir_stream_t* stream,
                                 choir__cuda_index_map_t* params) {
  params->head_count =
      (uint32_t)choir__index_axes_of_indices(map, &params->index_axes);
  params->index_count = (uint32_t)choir__index_axes_count(&params->index_axes);
  params->lane_size = params->lane_step = 1;
  for (int32_t k = map->places.ndim - 1; k >= 0; --k) {
    if (!(map->index_dims >> k & 1u)) continue;
    const uint32_t size = (uint32_t)map->places.shape[k];
    if (map->elements.shape[k] == 1)
      params->lane_size *= size;
    else if (params->lane_size == 1)
      params->lane_step *= size;
  }
  void* scratch = NULL;
  CHOIR_TRY(choir__cuda_scratch(
      stream,
      ((size_t)params->head_count + params->index_count) * sizeof(int32_t),
      &scratch));
  params->heads = scratch;
  params->next = params->heads + params->head_count;
  CHOIR_TRY(launch(stream, &clear,
                   params->head_count > params->index_count
                       ? params->head_count
                       : params->index_count,
                   params));
  return launch(stream, &link, params->index_count, params);
}

static choir_status_t run_part(const choir_record_t* record,
                               choir_stream_t* stream,
                               const choir__index_map_t* map) {
  const choir_dtype_t dtype = choir_record_dst(record, 0)->dtype;
  const bool is_pull =
      map->kind == CHOIR__INDEX_PULL || map->kind == CHOIR__INDEX_PULL_LAST;
  choir__cuda_index_map_t params = {
      .places = data_of(&map->places),
      .elements = data_of(&map->elements),
      .others = data_of(&map->others),
      .indices = map->has_indices ? data_of(&map->indices) : NULL,
      .place_value = map->place_value,
      .other_value = map->other_value,
      .axis_size = map->axis_size,
      .axis_stride = map->axis_stride,
      .is_long = map->indices.dtype == CHOIR_DTYPE_I64,
      .is_sum = map->kind == CHOIR__INDEX_SUM,
      .accumulate = record->accumulate};
  if (map->has_indices && map->kind != CHOIR__INDEX_PULL)
    CHOIR_TRY(make_lists(map, stream, &params));
  if (is_pull)
    choir__index_axes_of_places(map, false, &params.axes);
  else
    choir__index_axes_of_elements(map, &params.axes);
  params.count = (uint32_t)choir__index_axes_count(&params.axes);
  return launch(stream, is_pull ? &pulls[dtype] : &makes[dtype], params.count,
                &params);
}

static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          const choir_op_def_t* def) {
  choir__index_map_t map = {.parts = 1};
  for (int32_t part = 0; part < map.parts; ++part) {
    def->index_map(record, part, &map);
    CHOIR_TRY(run_part(record, stream, &map));
  }
  return NULL;
}

#define CHOIR__INDEX_MAPPED(OP, name)                            \
  static bool name##_supports(const choir_record_t* record) {    \
    return supports(record, &choir_op_def_##name);               \
  }                                                              \
  static choir_status_t name##_run(const choir_record_t* record, \
                                   choir_stream_t* stream) {     \
    return run(record, stream, &choir_op_def_##name);            \
  }                                                              \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cuda", name##_run, name##_supports)
#include "tensor/kernels/kernels.def"
