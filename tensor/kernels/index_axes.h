// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_INDEX_AXES_H_
#define CHOIR_TENSOR_KERNELS_INDEX_AXES_H_

#include "tensor/kernels/index_rule.h"

// The loops of an index map (tensor/ops/index_map.h) in few dimensions, as the
// kernels of all families run them: hosts make them, threads of GPUs read them.

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CHOIR__INDEX_AXES = 9,
  // Whose elements strides are of. HEAD: for each element along the map's axis,
  // in each lane (a place in the other dimensions on which an index depends),
  // the list of indices that point to it.
  CHOIR__AT_PLACE = 0,
  CHOIR__AT_ELEMENT = 1,
  CHOIR__AT_INDEX = 2,
  CHOIR__AT_OTHER = 2,
  CHOIR__AT_HEAD = 3,
  CHOIR__INDEX_OPERANDS = 4,
};

// Sizes of 1 are left out, neighbours are merged, one is left. Where a rule
// decides, the strides of the side that it leads to are 0 and beside it.
typedef struct choir__index_axes_s {
  int32_t ndim;
  int64_t shape[CHOIR__INDEX_AXES];
  int64_t strides[CHOIR__INDEX_AXES][CHOIR__INDEX_OPERANDS];
  choir__index_rule_t rules[CHOIR__INDEX_AXES];  // each 0: none
  int64_t rule_stride[CHOIR__INDEX_AXES];
  int64_t rule_places[CHOIR__INDEX_AXES];
} choir__index_axes_t;

struct choir__index_map_s;

// For each place (PULL). is_chosen: INDEX counts the places in row-major order.
void choir__index_axes_of_places(const struct choir__index_map_s* map,
                                 bool is_chosen, choir__index_axes_t* axes);
// For each element (PUT, SUM): from the largest stride of the destination down
// where indices decide; where rules do, in the order of the places, so that
// those that point to one element come in it.
void choir__index_axes_of_elements(const struct choir__index_map_s* map,
                                   choir__index_axes_t* axes);
// For each index, in row-major order. Returns the number of lists.
int64_t choir__index_axes_of_indices(const struct choir__index_map_s* map,
                                     choir__index_axes_t* axes);

int64_t choir__index_axes_count(const choir__index_axes_t* axes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_INDEX_AXES_H_
