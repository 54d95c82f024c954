// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/nest.h"

bool choir__nest_make(const choir_view_t* const* views, int32_t count,
                      choir__nest_t* out_nest) {
  choir__nest_t* nest = out_nest;
  nest->operand_count = count;
  nest->count = 1;
  const choir_view_t* first = views[0];
  int32_t ndim = 0;
  for (int32_t k = 0; k < first->ndim; k++) {
    const int64_t size = first->shape[k];
    nest->count *= size;
    int64_t steps[CHOIR__NEST_OPERANDS] = {0};
    for (int32_t i = 0; i < count; i++) {
      const int32_t own = views[i]->ndim - first->ndim + k;
      steps[i] = own < 0 ? 0 : views[i]->strides[own];
      if (own >= 0 && views[i]->shape[own] != size) {
        if (views[i]->shape[own] != 1) return false;
        steps[i] = 0;
      }
    }
    if (size == 1) continue;
    if (steps[0] == 0 && size > 1) return false;
    // Insertion keeps the dimensions sorted by how far operand 0 moves; equal
    // ones by operand 1.
    int32_t at = ndim++;
    while (at > 0 && (nest->strides[0][at - 1] < steps[0] ||
                      (nest->strides[0][at - 1] == steps[0] && count > 1 &&
                       nest->strides[1][at - 1] < steps[1]))) {
      nest->shape[at] = nest->shape[at - 1];
      for (int32_t i = 0; i < count; i++)
        nest->strides[i][at] = nest->strides[i][at - 1];
      at--;
    }
    nest->shape[at] = size;
    for (int32_t i = 0; i < count; i++) nest->strides[i][at] = steps[i];
  }
  for (int32_t i = 1; i < count; i++)
    if (views[i]->ndim > first->ndim) return false;

  int32_t merged = 0;
  for (int32_t k = 0; k < ndim; k++) {
    bool fits = merged > 0;
    for (int32_t i = 0; fits && i < count; i++)
      fits =
          nest->strides[i][merged - 1] == nest->strides[i][k] * nest->shape[k];
    if (fits) {
      nest->shape[merged - 1] *= nest->shape[k];
      for (int32_t i = 0; i < count; i++)
        nest->strides[i][merged - 1] = nest->strides[i][k];
    } else {
      nest->shape[merged] = nest->shape[k];
      for (int32_t i = 0; i < count; i++)
        nest->strides[i][merged] = nest->strides[i][k];
      merged++;
    }
  }
  if (merged == 0) {
    // One element: a row of one.
    nest->shape[0] = 1;
    for (int32_t i = 0; i < count; i++) nest->strides[i][0] = 1;
    merged = 1;
  }
  if (merged == 1) {
    // One row, so that there is always a plane.
    nest->shape[1] = nest->shape[0];
    nest->shape[0] = 1;
    for (int32_t i = 0; i < count; i++) {
      nest->strides[i][1] = nest->strides[i][0];
      nest->strides[i][0] = 0;
    }
    merged = 2;
  }
  nest->ndim = merged;
  return true;
}
