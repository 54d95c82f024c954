// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_TRACE_H_
#define CHOIR_CORE_TRACE_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a run computed, as a file: a digest of each operand of each record, for
// two runs to be compared (python -m choir compare A B).
//
//   const choir_trace_options_t options = {.path = "run.trace"};
//   CHOIR_TRY(choir_trace_start(device, &options));
//   ... train ...
//   CHOIR_TRY(choir_trace_stop(device));
//
// All streams of the device are traced, in front of the lowering of operations:
// each record is waited for, so that a run takes several times as long. A
// traced model's steps are not recorded as graphs; their bits are the same.
// What a kernel does inside its record is the record's. What the host writes,
// and a collective that is no record (choir_comm_all_reduce), is seen where a
// record reads it.
//
// A line is: step, number of the record in the step, op, label, operand, dtype,
// shape, digest, magnitude, sums; with tabs between them. Operands are "source
// 0" and "before 0" (a result that the record adds to), as they were before the
// record, and "result 0" or "result NAME" as they were after it. A record of
// which no operand is known has one line, which ends in empty columns. The
// digest is of the elements in logical order, so strides do not matter, and
// each NaN is the same one. The magnitude is the sum of absolute values; the
// sums are of 32 equal pieces of the elements, or the elements where they are
// fewer, all as f64. The first line names the format.
//
// Threads: start and stop while nobody else uses the device. Records of several
// threads are traced, but in an order that may be another one in the next run.

typedef enum choir_trace_detail_e {
  CHOIR_TRACE_TENSOR = 0,  // all operands of all records
  // A line for all records of one label that follow one another: the results of
  // the last; digest of all of them, shape and sums of its last one.
  CHOIR_TRACE_LAYER = 1,
  // The parameters of models after each training step, and nothing else: costs
  // little, and graphs stay.
  CHOIR_TRACE_STEP = 2,
} choir_trace_detail_t;

typedef struct choir_trace_options_s {
  const char* path;  // of rank 0's file; rank r writes PATH.r
  int32_t rank;
  choir_trace_detail_t detail;
} choir_trace_options_t;

// Elements that have a name.
typedef struct choir_trace_value_s {
  const char* name;
  choir_view_t view;
} choir_trace_value_t;

// Opens the file, which is emptied. NOT_FOUND: it cannot be written.
// FAILED_PRECONDITION: the device is traced already. A failure of writing
// becomes one of the record at which it is noticed (UNAVAILABLE).
CHOIR_API choir_status_t choir_trace_start(choir_device_t* device,
                                           const choir_trace_options_t* options)
    CHOIR_NODISCARD;
// Ends it and closes the file. Nothing happens where none runs. UNAVAILABLE:
// the file is not whole. The end of the device ends it too, without a word.
CHOIR_API choir_status_t choir_trace_stop(choir_device_t* device)
    CHOIR_NODISCARD;
// Lines that follow are of this step: how many training steps came before.
// Models say so themselves, also of what runs between their steps.
CHOIR_API void choir_trace_set_step(choir_device_t* device, int64_t step);
// Notes values of the device as the results of a record of this name; nothing
// where no trace runs. Waits for the device's stream.
CHOIR_API choir_status_t choir_trace_note(choir_device_t* device,
                                          const char* name,
                                          const choir_trace_value_t* values,
                                          size_t count) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_TRACE_H_
