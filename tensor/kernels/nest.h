// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_NEST_H_
#define CHOIR_TENSOR_KERNELS_NEST_H_

#include "core/view.h"

#ifdef __cplusplus
extern "C" {
#endif

// Strided operands of one shape, brought into as few dimensions as possible:
// sorted so that operand 0 moves least in the last one, neighbours merged,
// sizes of 1 dropped. Every loop over a record's elements starts here.
#define CHOIR__NEST_OPERANDS 4
typedef struct choir__nest_s {
  int32_t ndim;  // >= 2; leading sizes may be 1
  int32_t operand_count;
  int64_t shape[CHOIR_MAX_NDIM];
  int64_t strides[CHOIR__NEST_OPERANDS][CHOIR_MAX_NDIM];
  int64_t count;
} choir__nest_t;

// Views are broadcast to the shape of views[0]. False when they cannot, or
// when views[0] repeats elements.
bool choir__nest_make(const choir_view_t* const* views, int32_t count,
                      choir__nest_t* out_nest);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_NEST_H_
