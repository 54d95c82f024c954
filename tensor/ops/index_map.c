// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

// ---- Making maps ----

void choir__index_map_start(choir__index_map_t* map, choir__index_kind_t kind,
                            const choir_view_t* places,
                            const choir_view_t* elements) {
  *map = (choir__index_map_t){.kind = kind,
                              .parts = 1,
                              .places = *places,
                              .elements = *elements,
                              .axis_size = 1};
  choir_view_t* view = &map->elements;
  const int32_t extra = places->ndim - view->ndim;
  for (int32_t k = places->ndim - 1; extra > 0 && k >= 0; --k) {
    view->shape[k] = k < extra ? 1 : view->shape[k - extra];
    view->strides[k] = k < extra ? 0 : view->strides[k - extra];
  }
  if (extra > 0) view->ndim = places->ndim;
}

// Without dimension `axis`, which becomes the map's.
static void take_axis(choir__index_map_t* map, int64_t axis) {
  choir_view_t* view = &map->elements;
  map->axis_size = view->shape[axis];
  map->axis_stride = view->strides[axis];
  view->shape[axis] = 1;
  view->strides[axis] = 0;
}

void choir__index_map_by_element(choir__index_map_t* map,
                                 const choir_record_t* record, int32_t source,
                                 int64_t axis) {
  map->has_indices = true;
  map->index_source = source;
  map->indices = *choir_record_src(record, source);
  map->index_dims = (1u << map->places.ndim) - 1;
  take_axis(map, axis);
}

void choir__index_map_by_axis(choir__index_map_t* map,
                              const choir_record_t* record, int32_t source,
                              int64_t axis) {
  const choir_view_t* indices = choir_record_src(record, source);
  // What map_start put on the right begins on the left here.
  const int32_t ndim = map->places.ndim, middle = indices->ndim;
  const int32_t behind = ndim - middle - (int32_t)axis;
  choir_view_t whole = map->elements;
  const int32_t first = whole.ndim - (behind + 1 + (int32_t)axis);
  map->axis_size = whole.shape[first + axis];
  map->axis_stride = whole.strides[first + axis];
  map->has_indices = true;
  map->index_source = source;
  map->indices = *indices;
  map->indices.ndim = map->elements.ndim = ndim;
  map->index_dims = ((1u << middle) - 1) << axis;
  for (int32_t k = 0; k < ndim; ++k) {
    const bool is_index = map->index_dims >> k & 1u;
    const int32_t own = first + (k < axis ? k : k - middle + 1);
    map->elements.shape[k] = is_index ? 1 : whole.shape[own];
    map->elements.strides[k] = is_index ? 0 : whole.strides[own];
    map->indices.shape[k] = map->places.shape[k];
    map->indices.strides[k] = is_index ? indices->strides[k - axis] : 0;
  }
}

int64_t choir__index_map_element(const choir__index_map_t* map,
                                 const int64_t* place, int64_t index) {
  int64_t offset = map->elements.offset + index * map->axis_stride;
  for (int32_t k = 0; k < map->places.ndim; ++k) {
    const int64_t element = choir__rule_element(&map->rules[k], place[k]);
    if (element < 0) return -1;
    offset += element * map->elements.strides[k];
  }
  return offset;
}

choir_status_t choir__index_map_check(const char* op,
                                      const choir_record_t* record,
                                      const choir__index_map_t* map) {
  if (!map->has_indices) return NULL;
  return choir__check_indices(op, record, map->index_source, map->axis_size);
}

choir_status_t choir__repeated_size(const choir_view_t* x, int64_t size,
                                    int64_t repeats, int64_t* out_size) {
  *out_size = 0;
  if (size == 0 || repeats <= INT64_MAX / size) {
    *out_size = size * repeats;
    return NULL;
  }
  char text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%lld times a dimension of %s is too large; needs 63 "
                     "bits",
                     (long long)repeats,
                     choir_view_print(x, text, sizeof text));
}

// ---- The reference ----

typedef struct reference_s {
  const choir_record_t* record;
  choir__index_map_t map;
  // The same with the elements in row-major order from 0 on: their numbers.
  choir__index_map_t numbers;
  int64_t count;  // of elements
  int64_t* last;  // by number: the last place that points there; -1: none
} reference_t;

static const void* data_of(const choir_view_t* view, const uint64_t* value) {
  return view->buffer ? choir__buffer_place(view->buffer) : value;
}

static int64_t index_at(const choir__index_map_t* map, int64_t offset) {
  if (!map->has_indices) return 0;
  const int64_t index = choir__integer_load(
      choir__buffer_place(map->indices.buffer), map->indices.dtype, offset);
  return index < 0 ? index + map->axis_size : index;
}

static void number_elements(reference_t* task, choir__index_map_fn_t fn,
                            int32_t part) {
  choir_record_t record = *task->record;
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  for (int32_t i = 0; i < record.src_count + record.dst_count; ++i)
    operands[i] = record.operands[i];
  choir_view_t* whole =
      &operands[task->map.kind == CHOIR__INDEX_PULL_LAST ? 0
                                                         : record.src_count];
  whole->offset = 0;
  choir_view_set_contiguous(whole);
  task->count = choir_view_count(whole);
  record.operands = operands;
  fn(&record, part, &task->numbers);
}

static void find_last(reference_t* task) {
  for (int64_t i = 0; i < task->count; ++i) task->last[i] = -1;
  int64_t place = 0;
  choir__walk_t walk;
  const choir_view_t* views[] = {&task->map.places, &task->map.indices};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk), ++place)
    task->last[choir__index_map_element(
        &task->numbers, walk.index, index_at(&task->map, walk.offsets[1]))] =
        place;
}

static void pull(const reference_t* task) {
  const choir__index_map_t* map = &task->map;
  int64_t place = 0;
  choir__walk_t walk;
  const choir_view_t* views[] = {&map->places, &map->indices};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk), ++place) {
    const int64_t index = index_at(map, walk.offsets[1]);
    int64_t from = choir__index_map_element(map, walk.index, index);
    if (task->last && task->last[choir__index_map_element(
                          &task->numbers, walk.index, index)] != place)
      from = -1;
    const void* src = from < 0 ? &map->other_value
                               : data_of(&map->elements, &map->other_value);
    choir__element_copy(
        src, from < 0 ? 0 : from, choir__buffer_place(map->places.buffer),
        walk.offsets[0], map->places.dtype, task->record->accumulate);
  }
}

// Where the `place`-th element of a view lies, in row-major order.
static int64_t offset_of(const choir_view_t* view, int64_t place) {
  int64_t offset = view->offset;
  for (int32_t k = view->ndim - 1; k >= 0; --k) {
    offset += place % view->shape[k] * view->strides[k];
    place /= view->shape[k];
  }
  return offset;
}

static void put(const reference_t* task) {
  const choir__index_map_t* map = &task->map;
  choir__walk_t walk;
  const choir_view_t* views[] = {&map->elements, &task->numbers.elements,
                                 &map->others};
  for (bool more = choir__walk_start(&walk, views, 3); more;
       more = choir__walk_next(&walk)) {
    for (int64_t i = 0; i < map->axis_size; ++i) {
      const int64_t last =
          task->last[walk.offsets[1] + i * task->numbers.axis_stride];
      const bool is_put = last >= 0;
      choir__element_copy(is_put ? data_of(&map->places, &map->place_value)
                                 : data_of(&map->others, &map->other_value),
                          is_put
                              ? offset_of(&map->places, last)
                              : walk.offsets[2] + i * map->others_axis_stride,
                          choir__buffer_place(map->elements.buffer),
                          walk.offsets[0] + i * map->axis_stride,
                          map->elements.dtype, task->record->accumulate);
    }
  }
}

static choir_status_t sum(const reference_t* task, choir_stream_t* stream) {
  const choir__index_map_t* map = &task->map;
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(task->record, stream, 0, &dense));
  const void* data = choir__buffer_place(map->places.buffer);
  choir__walk_t walk;
  const choir_view_t* views[] = {&map->places, &map->indices};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk)) {
    const int64_t at = choir__index_map_element(&task->numbers, walk.index,
                                                index_at(map, walk.offsets[1]));
    if (at >= 0)
      dense.dsts[0][at] +=
          choir__real_load(data, map->places.dtype, walk.offsets[0]);
  }
  return choir__dense_end(&dense, NULL);
}

static choir_status_t run_last(reference_t* task, choir_stream_t* stream) {
  const choir_allocator_t allocator =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes = (size_t)task->count * sizeof(int64_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "reference kernel", &memory));
  task->last = memory;
  find_last(task);
  if (task->map.kind == CHOIR__INDEX_PUT)
    put(task);
  else
    pull(task);
  choir_deallocate(allocator, memory, bytes);
  return NULL;
}

choir_status_t choir__index_map_reference(const choir_record_t* record,
                                          choir_stream_t* stream,
                                          const char* op,
                                          choir__index_map_fn_t fn) {
  reference_t task = {.record = record, .map = {.parts = 1}};
  for (int32_t part = 0; part < task.map.parts; ++part) {
    fn(record, part, &task.map);
    CHOIR_TRY(choir__index_map_check(op, record, &task.map));
    if (task.map.kind == CHOIR__INDEX_PULL) {
      pull(&task);
      continue;
    }
    number_elements(&task, fn, part);
    CHOIR_TRY(task.map.kind == CHOIR__INDEX_SUM ? sum(&task, stream)
                                                : run_last(&task, stream));
  }
  return NULL;
}
