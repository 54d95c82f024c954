// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_CPU_THREADS_DEF_H_
#define CHOIR_TENSOR_CPU_THREADS_DEF_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Loops on the threads of a CPU device, for kernels. Not installed.

// How many threads a kernel on this stream may use.
int32_t choir__cpu_threads(choir_stream_t* stream);

// Calls fn(context, begin, end) for consecutive ranges that cover 0 .. count,
// on up to `threads` threads, each range at least `grain` long (or all of
// it). Ranges depend on the number of threads: a result must not.
void choir__cpu_parallel(int32_t threads, int64_t count, int64_t grain,
                         void (*fn)(void* context, int64_t begin, int64_t end),
                         void* context);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_CPU_THREADS_DEF_H_
