// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_GUARD_INTERNAL_H_
#define CHOIR_DIST_GUARD_INTERNAL_H_

#include <signal.h>
#include <sys/types.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// The guard: a small process between a launcher and what it starts, so that
// whole process trees end, whatever their processes do and whoever is killed.
//
//   launcher -- guard -- children -- their children ...
//
// The guard and the launcher are child subreapers (prctl): a process whose
// parent has ended becomes a child of the guard, also when it left its session
// or changed its environment. So the guard ends all by ending its own children
// until it has none. When the launcher goes, the guard sees the end of their
// socket; when the guard goes, the kernel kills its children
// (PR_SET_PDEATHSIG), and the launcher ends what has the run's mark in its
// environment.
//
// Between choir_guard_start and choir_guard_finish the calling thread blocks
// SIGINT, SIGTERM and SIGHUP; they come as events.

// $CHOIR_LAUNCH: not for users: is in the environment of all processes of a
// run, so that what is left of it can be found and ended.
#define CHOIR_GUARD_MARK "CHOIR_LAUNCH"

typedef struct choir_guard_child_s {
  const char* path;  // without a slash: looked for in PATH
  char* const* argv;
  char* const* environment;  // with the mark
  pid_t pid;                 // set when it is told of as started
} choir_guard_child_t;

typedef struct choir_guard_config_s {
  choir_guard_child_t* children;
  int32_t count;
  int inherited_fds[2];  // stay open in the children; -1: none
  bool restarts;         // choir_guard_restart may be called
  // The mark's value, of this run alone: by it the launcher finds what is left
  // when the guard itself was killed.
  const char* mark;
  // Folders that go when all has ended, with what is in them, or when the guard
  // cannot be started. NULL-terminated; NULL: none.
  char* const* folders;
} choir_guard_config_t;

typedef enum choir_guard_kind_e {
  CHOIR_GUARD_NOTHING,
  CHOIR_GUARD_STARTED,
  CHOIR_GUARD_NOT_STARTED,  // status: errno of fork or exec
  CHOIR_GUARD_STOPPED,
  CHOIR_GUARD_CONTINUED,
  CHOIR_GUARD_ENDED,   // status: of waitpid
  CHOIR_GUARD_SIGNAL,  // to the launcher; status: its number
  CHOIR_GUARD_OVER,    // everything has ended; or see is_stuck
} choir_guard_kind_t;

typedef struct choir_guard_event_s {
  int32_t kind;   // choir_guard_kind_t
  int32_t child;  // index; -1: a process whose parent has ended
  int32_t pid;
  int32_t status;
  int32_t was_signalled;  // ENDED: after the guard's own signal
} choir_guard_event_t;

typedef struct choir_guard_s {
  pid_t pid;
  int socket;
  int signals;  // signalfd
  const choir_guard_config_t* config;
  int was_subreaper;
  sigset_t old_mask;
  struct sigaction old_child_action;
  double give_up_at;  // 0: never
  bool was_interrupted;
  bool is_over;
  bool is_stuck;    // some processes do not end even by SIGKILL
  bool was_killed;  // the guard itself
} choir_guard_t;

// Starts the guard, which starts the children. `config` must stay until
// choir_guard_finish. Call from the main thread.
choir_status_t choir_guard_start(const choir_guard_config_t* config,
                                 choir_guard_t* out_guard);
// Waits up to `seconds` for the next event; NOTHING when none came.
void choir_guard_wait(choir_guard_t* guard, double seconds,
                      choir_guard_event_t* out_event);
// Starts a child that has ended once more, as at first; an event tells.
void choir_guard_restart(choir_guard_t* guard, int32_t child);
// Ends everything: each child gets SIGTERM and, `grace` seconds later, SIGKILL,
// and so does, with its own grace, each process that comes to the guard because
// its parent has ended, but no later than after twice that time. Returns at
// once; CHOIR_GUARD_OVER tells when it is done.
void choir_guard_end(choir_guard_t* guard, double grace, double orphan_grace);
// The latter processes alone, from now on.
void choir_guard_end_orphans(choir_guard_t* guard, double grace);
// After OVER. The signals are the caller's again, without those that came.
void choir_guard_finish(choir_guard_t* guard);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_GUARD_INTERNAL_H_
