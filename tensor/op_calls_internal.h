// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OP_CALLS_INTERNAL_H_
#define CHOIR_TENSOR_OP_CALLS_INTERNAL_H_

#include "tensor/op_calls_def.h"

// Between the dispatcher, op_calls.c and segments.c.

// The dispatcher's: a call up to its record, which then goes to `calls`, or,
// where that is NULL, to the stream.
choir_status_t choir__op_run(choir_stream_t* stream, choir_op_calls_t* calls,
                             choir_op_t op, choir_tensor_t* const* srcs,
                             int32_t src_count, const void* attrs,
                             bool accumulate, int64_t segment,
                             choir_tensor_t** dsts) CHOIR_NODISCARD;
// The dispatcher's: choir__op_has_kernel, of a record with a segment.
bool choir__op_call_has_kernel(const choir_device_t* device, choir_op_t op,
                               choir_tensor_t* const* srcs, int32_t src_count,
                               const void* attrs, bool accumulate,
                               int64_t segment, choir_tensor_t* const* dsts);
// The dispatcher's: the device's kernels for many calls, NULL-terminated; NULL:
// it has none.
const choir_calls_kernel_t* const* choir__calls_kernels(
    const choir_device_t* device);

// Lets one call's record, which is borrowed and is given the calls' scalar,
// wait or submits it.
choir_status_t choir__op_calls_take(choir_op_calls_t* calls,
                                    choir_record_t* record) CHOIR_NODISCARD;

#endif  // CHOIR_TENSOR_OP_CALLS_INTERNAL_H_
