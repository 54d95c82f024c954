// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_DEVICE_CPU_CPU_DEVICE_H_
#define CHOIR_CORE_DEVICE_CPU_CPU_DEVICE_H_

#include "core/device/stream_thread.h"

// What "cpu" and "cpu_async" share: all but which streams get a thread and how
// those threads walk.

typedef struct choir_cpu_device_s {
  choir_device_t base;
  // True: compute streams run inside submit. False: they have a thread too.
  bool runs_inline;
  // Makes the threads of streams walk unevenly; NULL for none. The pace gets
  // the stream, whose index tells streams apart.
  choir_queue_pace_t pace;
  uint64_t seed;  // for the pace
  atomic_int stream_count;
} choir_cpu_device_t;

typedef struct choir_cpu_stream_s {
  choir_stream_t base;
  choir_stream_thread_t* thread;  // NULL: inline
  uint64_t seed;                  // the device's
  uint32_t index;                 // 0, 1, ... in order of creation
} choir_cpu_stream_t;

choir_status_t choir__cpu_device_make_with(bool runs_inline,
                                           choir_queue_pace_t pace,
                                           uint64_t seed, choir_pool_t* pool,
                                           choir_device_t** out_device)
    CHOIR_NODISCARD;

#endif  // CHOIR_CORE_DEVICE_CPU_CPU_DEVICE_H_
