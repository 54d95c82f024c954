// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_CLOCK_INTERNAL_H_
#define CHOIR_CORE_CLOCK_INTERNAL_H_

#include "core/clock.h"
#include "core/status.h"

// Counts forks on the way down to this process that left threads behind. An
// object that notes it at creation knows later whether its locks may be held
// by a thread that exists in the parent only.
uint32_t choir__fork_generation(void);

// FAILED_PRECONDITION in a forked child; `where` is the public function.
choir_status_t choir__check_not_forked(const char* where) CHOIR_NODISCARD;

#endif  // CHOIR_CORE_CLOCK_INTERNAL_H_
