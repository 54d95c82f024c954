// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/gather_shared.h"

CHOIR__AXIS_ATTRS(scatter_elements_grad, "as in scatter_elements");

static choir_status_t scatter_elements_grad_infer(const choir_view_t* srcs,
                                                  int32_t src_count,
                                                  const void* attrs,
                                                  choir_view_t* dsts) {
  (void)src_count;
  CHOIR_TRY(choir__need_element_indices(
      "scatter_elements_grad", &srcs[0], &srcs[1],
      ((const choir_scatter_elements_grad_attrs_t*)attrs)->axis));
  return choir__infer_shape("scatter_elements_grad", srcs[0].dtype,
                            srcs[1].ndim, srcs[1].shape, &dsts[0]);
}

// An update that a later one overwrote has no gradient.
static choir_status_t scatter_elements_grad_reference(
    const choir_record_t* record, choir_stream_t* stream) {
  int64_t axis =
      ((const choir_scatter_elements_grad_attrs_t*)record->attrs)->axis;
  choir_view_t plain = *choir_record_src(record, 0);
  const choir_view_t* indices = choir_record_src(record, 1);
  const int64_t size = plain.shape[axis];
  CHOIR_TRY(choir__check_indices("scatter_elements_grad", record, 1, size));
  plain.offset = 0;
  choir_view_set_contiguous(&plain);
  int64_t* winners = NULL;
  CHOIR_TRY(choir__scatter_winners(record, stream, &plain, axis, &winners));
  choir__dense_t dense;
  choir_status_t status =
      choir__dense_begin(record, stream, CHOIR__SOURCE(0), &dense);
  if (!status) {
    int64_t place = 0;
    choir__walk_t walk;
    for (bool more = choir__walk_start(&walk, &indices, 1); more;
         more = choir__walk_next(&walk), ++place) {
      int64_t index = choir__index_at(record, 1, walk.offsets[0], size);
      int64_t target = choir__indexed_offset(&plain, &walk, axis, index);
      if (winners[target] == place)
        dense.dsts[0][place] = dense.srcs[0][target];
    }
    status = choir__dense_end(&dense, NULL);
  }
  choir_deallocate(choir_device_allocator(choir_stream_device(stream)), winners,
                   (size_t)choir_view_count(&plain) * sizeof(int64_t));
  return status;
}

static const choir_op_case_t cases[] = {{"5;7", NULL},
                                        {"5,3;4,3", NULL},
                                        {"5,3;2,6", "axis=1"},
                                        {"2,3,4;2,2,4", "axis=1"},
                                        {"4,3,7,5;2,3,9,4", "axis=2"},
                                        {"5,3;0,3", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_scatter_elements_grad = {
    .op = CHOIR_OP_SCATTER_ELEMENTS_GRAD,
    .name = "scatter_elements_grad",
    .doc = "dy, indices -> dupdates: dy where the update is what is seen",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = scatter_elements_grad_infer,
    .reference = scatter_elements_grad_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-7,
    .cases = cases,
};
