// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_MOVES_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_MOVES_H_

#include "core/dtype.h"

// dst[i * to] = src[i * from], or += it: elements of one dtype.
typedef void (*choir__move_fn_t)(void* dst, int64_t to, const void* src,
                                 int64_t from, int64_t count);
choir__move_fn_t choir__cpu_move(choir_dtype_t dtype, bool accumulate);

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_MOVES_H_
