// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_TRACE_BACKEND_H_
#define CHOIR_CORE_TRACE_BACKEND_H_

#include "core/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

// For the layers whose work a trace shall see.

// Whether there is a trace, and whether it is one of records: then what a graph
// would run has to run by itself.
bool choir__trace_is_on(const choir_device_t* device);
bool choir__trace_sees_records(const choir_device_t* device);

// Records without operands that are submitted from now on write these elements,
// until it is set anew; NULL, 0: none are known. For kernels that work on bare
// addresses (collectives). Borrowed as long as it is set.
void choir__trace_set_results(choir_stream_t* stream,
                              const choir_trace_value_t* values, size_t count);

// Hands a record to what stands behind the trace.
typedef choir_status_t (*choir__trace_run_t)(choir_stream_t* stream,
                                             const choir_record_t* record);
// For core: runs the record and notes it; the device has a trace of records.
choir_status_t choir__trace_record(choir_stream_t* stream,
                                   const choir_record_t* record,
                                   choir__trace_run_t run) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_TRACE_BACKEND_H_
