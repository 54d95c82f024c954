// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/index_axes.h"

#include <string.h>

#include "tensor/ops/index_map.h"

_Static_assert(CHOIR__INDEX_AXES == CHOIR_MAX_NDIM + 1, "all of them fit");

// One more dimension, inside of those so far. `map_dim`: whose rule may decide;
// -1: none.
static void add(choir__index_axes_t* axes, int64_t size, const int64_t* strides,
                const choir__index_map_t* map, int32_t map_dim,
                int64_t rule_stride) {
  const bool has_rule = map_dim >= 0 && map->rules[map_dim].each > 0;
  if (size == 1 && !has_rule) return;
  int32_t at = axes->ndim - 1;
  bool fits = at >= 0 && !has_rule && axes->rules[at].each == 0;
  for (int32_t i = 0; fits && i < CHOIR__INDEX_OPERANDS; ++i)
    fits = axes->strides[at][i] == strides[i] * size;
  if (!fits) axes->shape[at = axes->ndim++] = 1;
  axes->shape[at] *= size;
  memcpy(axes->strides[at], strides, sizeof(axes->strides[at]));
  axes->rules[at] = has_rule ? map->rules[map_dim] : (choir__index_rule_t){0};
  axes->rule_stride[at] = rule_stride;
  axes->rule_places[at] = has_rule ? map->places.shape[map_dim] : 0;
}

// So that there is always a row.
static void end(choir__index_axes_t* axes) {
  if (axes->ndim > 0) return;
  axes->ndim = 1;
  axes->shape[0] = 1;
  memset(axes->strides[0], 0, sizeof(axes->strides[0]));
  axes->rules[0].each = 0;
}

void choir__index_axes_of_places(const choir__index_map_t* map, bool is_chosen,
                                 choir__index_axes_t* axes) {
  choir_view_t numbers = map->places;
  choir_view_set_contiguous(&numbers);
  axes->ndim = 0;
  for (int32_t k = 0; k < map->places.ndim; ++k) {
    const int64_t stride = map->elements.strides[k];
    const int64_t strides[CHOIR__INDEX_OPERANDS] = {
        [CHOIR__AT_PLACE] = map->places.strides[k],
        [CHOIR__AT_ELEMENT] = map->rules[k].each > 0 ? 0 : stride,
        [CHOIR__AT_INDEX] =
            is_chosen ? numbers.strides[k] : map->indices.strides[k]};
    add(axes, map->places.shape[k], strides, map, k, stride);
  }
  end(axes);
}

// A place in the last dimension, the axis, is no place in those before.
void choir__index_axes_of_elements(const choir__index_map_t* map,
                                   choir__index_axes_t* axes) {
  const int32_t axis = map->elements.ndim;
  int64_t strides[CHOIR__INDEX_AXES][CHOIR__INDEX_OPERANDS] = {{0}};
  int64_t shape[CHOIR__INDEX_AXES], places[CHOIR__INDEX_AXES];
  int64_t lane = map->axis_size;
  int32_t order[CHOIR__INDEX_AXES];
  for (int32_t k = axis; k >= 0; --k) {
    const bool is_axis = k == axis;
    const bool is_indexed = !is_axis && (map->index_dims >> k & 1u);
    shape[k] = is_axis ? map->axis_size : map->elements.shape[k];
    places[k] = is_axis || is_indexed ? 0 : map->places.strides[k];
    int64_t* to = strides[k];
    to[CHOIR__AT_PLACE] = is_axis || map->rules[k].each > 0 ? 0 : places[k];
    to[CHOIR__AT_ELEMENT] =
        is_axis ? map->axis_stride : map->elements.strides[k];
    to[CHOIR__AT_OTHER] =
        is_axis ? map->others_axis_stride : map->others.strides[k];
    to[CHOIR__AT_HEAD] = is_axis ? 1 : is_indexed ? lane : 0;
    if (is_indexed) lane *= shape[k];
  }
  for (int32_t k = 0; k <= axis; ++k) {
    int32_t at = k;
    for (; map->has_indices && at > 0 &&
           strides[order[at - 1]][CHOIR__AT_ELEMENT] <
               strides[k][CHOIR__AT_ELEMENT];
         --at)
      order[at] = order[at - 1];
    order[at] = k;
  }
  axes->ndim = 0;
  for (int32_t i = 0; i <= axis; ++i) {
    const int32_t k = order[i];
    add(axes, shape[k], strides[k], map, k == axis ? -1 : k, places[k]);
  }
  end(axes);
}

int64_t choir__index_axes_of_indices(const choir__index_map_t* map,
                                     choir__index_axes_t* axes) {
  int64_t lanes[CHOIR_MAX_NDIM] = {0};
  int64_t heads = map->axis_size;
  for (int32_t k = map->places.ndim - 1; k >= 0; --k) {
    if (!(map->index_dims >> k & 1u)) continue;
    lanes[k] = map->elements.shape[k] > 1 ? heads : 0;
    heads *= map->elements.shape[k];
  }
  axes->ndim = 0;
  for (int32_t k = 0; k < map->places.ndim; ++k) {
    if (!(map->index_dims >> k & 1u)) continue;
    const int64_t strides[CHOIR__INDEX_OPERANDS] = {
        [CHOIR__AT_PLACE] = map->places.strides[k],
        [CHOIR__AT_INDEX] = map->indices.strides[k],
        [CHOIR__AT_HEAD] = lanes[k]};
    add(axes, map->places.shape[k], strides, map, -1, 0);
  }
  end(axes);
  return heads;
}

int64_t choir__index_axes_count(const choir__index_axes_t* axes) {
  int64_t count = 1;
  for (int32_t k = 0; k < axes->ndim; ++k) count *= axes->shape[k];
  return count;
}
