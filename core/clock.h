// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_CLOCK_H_
#define CHOIR_CORE_CLOCK_H_

#include "core/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// Monotonic seconds since some start.
CHOIR_API double choir_clock_seconds(void);

// Tells whether this process was forked after Choir had started threads; the
// child has none of them, so everything that would need one is refused.
// choir_threads_started is called by whoever starts a thread.
CHOIR_API void choir_threads_started(void);
CHOIR_API bool choir_process_is_forked_child(void);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_CLOCK_H_
