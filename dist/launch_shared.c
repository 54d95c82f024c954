// SPDX-License-Identifier: Apache-2.0
// What the launchers share: a guard, an environment, the sentences about ends
// that are no worker's.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/activity_internal.h"
#include "dist/board_internal.h"
#include "dist/launch_internal.h"

extern char** environ;

choir_status_t choir__launcher_open(choir__launcher_t* launcher,
                                    const choir_launch_config_t* config,
                                    choir_launch_report_t* out_report,
                                    const char* noun) {
  if (!out_report)
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: out_report is NULL");
  memset(out_report, 0, sizeof(*out_report));
  out_report->failed_rank = -1;
  if (!config || !config->argv || !config->argv[0])
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: %s",
                       config ? "argv is empty" : "config is NULL");
  if (config->workers < 1 || config->workers > CHOIR_LAUNCH_MAX_WORKERS)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "launch: workers is %d; it must be in 1 .. %d",
                       config->workers, CHOIR_LAUNCH_MAX_WORKERS);
  if (!(config->grace >= 0) || config->grace > 3600)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "launch: grace is %g s; it must be in 0 .. 3600",
                       config->grace);
  if (config->comm && strlen(config->comm) > 32)
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: comm '%.40s...' is unknown",
                       config->comm);
  *launcher =
      (choir__launcher_t){.config = config, .report = out_report, .noun = noun};
  CHOIR_TRY(choir_comm_id_make(&launcher->mark));
  snprintf(launcher->mark_text, sizeof(launcher->mark_text),
           CHOIR_GUARD_MARK "=%s", launcher->mark.text);
  if (gethostname(launcher->host, sizeof(launcher->host) - 1))
    strcpy(launcher->host, "?");
  return NULL;
}

// ---- Environment ----

static bool sets_the_same(const char* a, const char* b) {
  const size_t bytes = strcspn(b, "=");
  return !strncmp(a, b, bytes) && a[bytes] == '=';
}

// The launcher may be a worker itself, or run under mpiexec; what it launches
// is not what it is.
static bool is_of_outer_launcher(const char* entry) {
  static const char* const names[] = {
      "CHOIR_RANK",          "CHOIR_SIZE",
      "CHOIR_COMM_ID",       CHOIR_BOARD_ENVIRONMENT,
      CHOIR_GUARD_MARK,      "OMPI_COMM_WORLD_RANK",
      "OMPI_COMM_WORLD_SIZE"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i)
    if (sets_the_same(entry, names[i])) return true;
  return false;
}

// Whether workers of two threads would be more threads than cores. Then those
// that wait busily for another one keep it from its core, and a step takes
// fifty times as long.
static bool is_crowded(const choir__launcher_t* launcher) {
  cpu_set_t set;
  return !sched_getaffinity(0, sizeof(set), &set) &&
         2 * launcher->config->workers > CPU_COUNT(&set);
}

size_t choir__launch_room(size_t text_count) {
  size_t count = 0;
  while (environ[count]) ++count;
  return 1 + text_count + 1 + count + 1;
}

void choir__launcher_fill(const choir__launcher_t* launcher, char* const* texts,
                          size_t text_count, char** entries) {
  *entries++ = (char*)launcher->mark_text;
  for (size_t i = 0; i < text_count; ++i) *entries++ = texts[i];
  // $OMP_WAIT_POLICY: how the threads of a worker wait for each other, "active"
  // or "passive". Not set: passive for workers of a launcher that has fewer
  // than two cores for each, else as OpenMP chooses.
  if (is_crowded(launcher) && !getenv("OMP_WAIT_POLICY"))
    *entries++ = (char*)"OMP_WAIT_POLICY=passive";
  for (char** entry = environ; *entry; ++entry) {
    bool is_left_out = is_of_outer_launcher(*entry);
    for (size_t i = 0; i < text_count; ++i)
      is_left_out = is_left_out || sets_the_same(*entry, texts[i]);
    if (!is_left_out) *entries++ = *entry;
  }
  *entries = NULL;
}

// ---- Events ----

void choir__launcher_wait(choir__launcher_t* launcher, double seconds,
                          choir_guard_event_t* out_event) {
  choir_guard_wait(&launcher->guard, seconds, out_event);
  if (out_event->kind == CHOIR_GUARD_SIGNAL && !launcher->interrupted)
    launcher->interrupted = out_event->status;
}

// ---- Reporting ----

void choir__launcher_append(choir__launcher_t* launcher, const char* more) {
  choir__text_append(launcher->report->message,
                     sizeof(launcher->report->message), more);
}

void choir__launcher_append_signal(choir__launcher_t* launcher, int number) {
  char text[96];
  snprintf(text, sizeof(text), "signal %d (%s)", number, strsignal(number));
  choir__launcher_append(launcher, text);
}

void choir__launcher_append_end(choir__launcher_t* launcher) {
  char text[128];
  snprintf(
      text, sizeof(text),
      launcher->guard.is_stuck
          ? "; some of the %s' processes do not end (the kernel keeps them)"
          : "; all %s were ended",
      launcher->noun);
  choir__launcher_append(launcher, text);
}

void choir__launcher_report_interrupt(choir__launcher_t* launcher) {
  launcher->report->exit_status = 128 + launcher->interrupted;
  choir__launcher_append(launcher, "interrupted by ");
  choir__launcher_append_signal(launcher, launcher->interrupted);
  choir__launcher_append_end(launcher);
}

void choir__launcher_report_guard(choir__launcher_t* launcher) {
  char text[128];
  launcher->report->exit_status = 1;
  snprintf(text, sizeof(text),
           "the guard of the %s (host %s, pid %d) was killed", launcher->noun,
           launcher->host, (int)launcher->guard.pid);
  choir__launcher_append(launcher, text);
  choir__launcher_append_end(launcher);
}
