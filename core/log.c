// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

// The level is read on every call and is atomic; sink and self are written
// before other threads start, as the header asks. A level of -1 drops all.
static atomic_int log_level = -1;
static choir_log_sink_t log_sink;
static void* log_self;

void choir_log_set_sink(choir_log_sink_t sink, void* self,
                        choir_log_level_t level) {
  atomic_store_explicit(&log_level, -1, memory_order_release);
  log_sink = sink;
  log_self = self;
  if (sink) atomic_store_explicit(&log_level, (int)level, memory_order_release);
}

void choir_log(choir_log_level_t level, const char* subsystem,
               const char* format, ...) {
  if ((int)level > atomic_load_explicit(&log_level, memory_order_acquire))
    return;
  // One line; what does not fit is cut rather than allocated, since the log
  // must work when memory does not.
  char message[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof(message), format, args);
  va_end(args);
  log_sink(log_self, level, subsystem, message);
}
