// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/gather_shared.h"

CHOIR__AXIS_ATTRS(scatter_elements, "dimension that indices count along");

static choir_status_t scatter_elements_infer(const choir_view_t* srcs,
                                             int32_t src_count,
                                             const void* attrs,
                                             choir_view_t* dsts) {
  (void)src_count;
  CHOIR_TRY(choir__need_element_indices(
      "scatter_elements", &srcs[0], &srcs[1],
      ((const choir_scatter_elements_attrs_t*)attrs)->axis));
  CHOIR_TRY(choir__need_same_shape("scatter_elements", "updates", &srcs[2],
                                   "indices", &srcs[1]));
  return choir__infer_like("scatter_elements", &srcs[0], &dsts[0]);
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

static choir_status_t scatter_elements_reference(const choir_record_t* record,
                                                 choir_stream_t* stream) {
  int64_t axis = ((const choir_scatter_elements_attrs_t*)record->attrs)->axis;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* updates = choir_record_src(record, 2);
  const choir_view_t* dst = choir_record_dst(record, 0);
  CHOIR_TRY(
      choir__check_indices("scatter_elements", record, 1, src->shape[axis]));
  int64_t* winners = NULL;
  CHOIR_TRY(choir__scatter_winners(record, stream, src, axis, &winners));
  const int64_t* winner = winners;
  choir__walk_t walk;
  const choir_view_t* views[] = {src, dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk), ++winner) {
    bool is_kept = *winner < 0;
    choir__element_copy(choir__src_data(record, is_kept ? 0 : 2),
                        is_kept ? walk.offsets[0] : offset_of(updates, *winner),
                        choir__dst_data(record, 0), walk.offsets[1], dst->dtype,
                        record->accumulate);
  }
  choir_deallocate(choir_device_allocator(choir_stream_device(stream)), winners,
                   (size_t)choir_view_count(src) * sizeof(int64_t));
  return NULL;
}

static const choir_op_case_t cases[] = {{"5;7;7", NULL},
                                        {"5,3;4,3;4,3", NULL},
                                        {"5,3;2,6;2,6", "axis=1"},
                                        {"2,3,4;2,2,4;2,2,4", "axis=1"},
                                        {"4,3,7,5;2,3,9,4;2,3,9,4", "axis=2"},
                                        {"5,3;0,3;0,3", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_scatter_elements = {
    .op = CHOIR_OP_SCATTER_ELEMENTS,
    .name = "scatter_elements",
    .doc = "x, indices, updates -> x with updates where indices point",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = scatter_elements_infer,
    .reference = scatter_elements_reference,
    .dtypes = CHOIR_DTYPES_ALL,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-7,
    .cases = cases,
};
