// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_DNNL_CONV2D_H_
#define CHOIR_TENSOR_KERNELS_CPU_DNNL_CONV2D_H_

#include "tensor/kernels/cpu/dnnl_engine.h"

// The parts of conv2d/dnnl, for a kernel that computes it block by block.

#ifdef __cplusplus
extern "C" {
#endif

// The record of the first block, without its activation. Blocks have equal
// sizes, and bits do not depend on these.
choir_status_t choir__dnnl_conv2d_blocks(const choir_record_t* record,
                                         choir_stream_t* stream,
                                         const choir__dnnl_blocks_t* blocks)
    CHOIR_NODISCARD;
// The activation of a record's result, in place.
choir_status_t choir__dnnl_conv2d_activate(const choir_record_t* record,
                                           choir_stream_t* stream)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_DNNL_CONV2D_H_
