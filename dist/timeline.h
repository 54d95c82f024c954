// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_TIMELINE_H_
#define CHOIR_DIST_TIMELINE_H_

#include "core/profile.h"
#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// Collective: writes the events of every rank's stopped profile as one Chrome
// trace (JSON; opens in Perfetto and chrome://tracing) through rank 0's writer;
// the other ranks' are not called. A rank is a process of the trace, its
// threads are tracks. comm NULL: this process alone.
//
// Clocks: the ranks of one host share CLOCK_MONOTONIC. Those of other hosts are
// moved by how much later than rank 0's their clock stood at the end of a
// barrier, the median of several; that is off by what the barrier lets ranks
// leave apart, tens of microseconds and more.
//
// When rank 0's writer fails, the other ranks do not learn of it.
CHOIR_API choir_status_t choir_timeline_write(choir_comm_t* comm,
                                              const choir_profile_t* profile,
                                              choir_text_writer_t writer,
                                              void* self) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_TIMELINE_H_
