// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OP_CALLS_DEF_H_
#define CHOIR_TENSOR_OP_CALLS_DEF_H_

#include "tensor/op_def.h"

#ifdef __cplusplus
extern "C" {
#endif

// Many calls of ops, for a device that runs them together: the steps of all
// parameters are one launch on a GPU. Not installed.
//
//   choir_op_calls_t calls;
//   choir__op_calls_begin(&calls, stream, "parameters");
//   choir_status_t status = NULL;
//   while (!status && ...)
//     status = choir__op_calls_run(&calls, op, srcs, src_count, &attrs, dsts);
//   return choir__op_calls_end(&calls, status);
//
// A call is checked at once and may wait, until one comes that cannot go with
// it, or the end; calls of one op with the same attributes can go together, if
// the device has a kernel for that (choir_calls_kernel_t). Those that do not
// wait are records by themselves, as by choir_op_run, and overtake those that
// do. So after a call that may wait, whatever uses what it writes, or writes
// what it uses, has to come behind a flush. The bits are those of choir_op_run.
//
// Ownership: a plain value, with no more to it after _end. Threads: one.

typedef struct choir_op_waiting_s choir_op_waiting_t;

typedef struct choir_op_calls_s {
  choir_stream_t* stream;
  const char* label;                           // of records of several calls
  const choir_calls_kernel_t* const* kernels;  // the device's; NULL: none
  // Set by the caller between calls, which keeps it until the end: a double of
  // the attributes follows it (choir_record_t). NULL: none.
  choir_scalar_t* scalar;
  size_t scalar_offset;         // the same for all calls
  choir_op_waiting_t* waiting;  // NULL: none
  bool has_submitted;           // the stream has taken a record of these calls
} choir_op_calls_t;

// `label` is borrowed until the end.
void choir__op_calls_begin(choir_op_calls_t* calls, choir_stream_t* stream,
                           const char* label);
// As choir_op_run, without accumulate. What it computes is there after the next
// flush.
choir_status_t choir__op_calls_run(choir_op_calls_t* calls, choir_op_t op,
                                   choir_tensor_t* const* srcs,
                                   int32_t src_count, const void* attrs,
                                   choir_tensor_t** dsts) CHOIR_NODISCARD;
// Submits what waits.
choir_status_t choir__op_calls_flush(choir_op_calls_t* calls) CHOIR_NODISCARD;
// The same, unless `status` is a failure: then what waits is forgotten. Returns
// that or its own.
choir_status_t choir__op_calls_end(choir_op_calls_t* calls,
                                   choir_status_t status) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_OP_CALLS_DEF_H_
