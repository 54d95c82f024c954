// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_LOG_H_
#define CHOIR_CORE_LOG_H_

#include "core/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// Choir prints nothing. What is worth knowing goes to a sink that the program
// sets; without one it is dropped.
//
// Threads: choir_log may be called from any thread, and so may the sink be.
// Set the sink before other threads use Choir.

typedef enum choir_log_level_e {
  CHOIR_LOG_ERROR = 0,
  CHOIR_LOG_WARNING = 1,
  CHOIR_LOG_INFO = 2,
  CHOIR_LOG_DEBUG = 3,
} choir_log_level_t;

// `subsystem` is a layer's name ("dist"); `message` has no newline.
typedef void (*choir_log_sink_t)(void* self, choir_log_level_t level,
                                 const char* subsystem, const char* message);

// Messages above `level` are dropped before they are formatted. sink may be
// NULL.
CHOIR_API void choir_log_set_sink(choir_log_sink_t sink, void* self,
                                  choir_log_level_t level);
CHOIR_API void choir_log(choir_log_level_t level, const char* subsystem,
                         const char* format, ...) CHOIR_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_LOG_H_
