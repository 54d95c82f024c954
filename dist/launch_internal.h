// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_LAUNCH_INTERNAL_H_
#define CHOIR_DIST_LAUNCH_INTERNAL_H_

#include "dist/comm.h"
#include "dist/guard_internal.h"
#include "dist/launch.h"

// What the launchers share.

#define CHOIR_LAUNCH_MAX_WORKERS 1024

typedef struct choir__launcher_s {
  const choir_launch_config_t* config;
  choir_launch_report_t* report;
  const char* noun;  // of what is launched: "workers"
  choir_guard_t guard;
  choir_comm_id_t mark;
  char mark_text[64];  // as an entry of an environment
  char host[72];
  int interrupted;         // signal that the launcher got; 0: none
  choir_status_t failure;  // what could not be started
} choir__launcher_t;

// Checks the config, and clears the report.
choir_status_t choir__launcher_open(choir__launcher_t* launcher,
                                    const choir_launch_config_t* config,
                                    choir_launch_report_t* out_report,
                                    const char* noun);
// An environment of the mark, `texts` and the launcher's own without what these
// set and what an outer launcher set. `entries` has room for
// choir__launch_room(text_count).
size_t choir__launch_room(size_t text_count);
void choir__launcher_fill(const choir__launcher_t* launcher, char* const* texts,
                          size_t text_count, char** entries);
// choir_guard_wait; notes a signal.
void choir__launcher_wait(choir__launcher_t* launcher, double seconds,
                          choir_guard_event_t* out_event);

void choir__launcher_append(choir__launcher_t* launcher, const char* more);
// "signal 9 (Killed)".
void choir__launcher_append_signal(choir__launcher_t* launcher, int number);
// "; all workers were ended".
void choir__launcher_append_end(choir__launcher_t* launcher);
// The whole report, of a run that a signal to the launcher ended, or its guard.
void choir__launcher_report_interrupt(choir__launcher_t* launcher);
void choir__launcher_report_guard(choir__launcher_t* launcher);

#endif  // CHOIR_DIST_LAUNCH_INTERNAL_H_
