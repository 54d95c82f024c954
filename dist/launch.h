// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_LAUNCH_H_
#define CHOIR_DIST_LAUNCH_H_

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// Starts the workers of a run on this host and watches them: each runs the same
// program again with CHOIR_RANK, CHOIR_SIZE and CHOIR_COMM_ID set, and notes
// what it does on a board that the launcher can read. When one fails, the
// others are ended and the report says in a sentence what happened. At the end,
// of whatever kind, everything that workers started is ended too, also when the
// launcher was killed: a guard process stands between it and them
// (docs/faults.md).
//
//   if (!choir_launch_is_worker()) {
//     choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
//     config.argv = argv;  config.workers = 2;
//     choir_launch_report_t report;
//     choir_status_t status = choir_launch_run(&config, &report);
//     ...
//   }
//
// Ownership: plain values. Threads: call from the main thread, before Choir
// started threads. The library prints nothing: the report is for the caller.

typedef struct choir_launch_config_s {
  char* const* argv;  // NULL-terminated; the program is this executable
  int32_t workers;    // 1 .. 1024
  const char* comm;   // CHOIR_COMM for the workers; NULL: auto
  double grace;       // seconds between SIGTERM and SIGKILL; 1
  // A worker that a signal kills does not end the others; another is started
  // in its place, a newcomer (choir_comm_config_t.is_newcomer). Not of SIGTERM,
  // which asks a worker to go (choir_dist_opt_config_t.elastic).
  bool elastic;
} choir_launch_config_t;
#define CHOIR_LAUNCH_CONFIG_INIT \
  { NULL, 2, NULL, 1.0, false }

typedef struct choir_launch_report_s {
  // What the launcher should exit with:
  // exit 0: all went well.
  // exit 1: a failure: of a rank, of the launcher, of what is read or written.
  // exit 2: wrong usage; no rank began to train.
  // exit 128 + n: signal n ended a rank or the run, or all workers have left
  // the run as it asked them to.
  int exit_status;
  int32_t failed_rank;  // the cause's; -1: none
  // "rank 1 (host h, pid 123) was killed by signal 9 (Killed) in epoch 0 step
  // 17; rank 0 (host h, pid 122) was waiting for it in all_reduce 'bucket 0'
  // (operation 52); all workers were ended", or "rank 1 (host h, pid 123)
  // failed in epoch 0 step 17: <what it noted>; ...". Only the noted text when
  // all workers noted the same. "all workers have left the run: signal 15
  // (Terminated)". Empty when all went well, or when workers ended with 1 or 2
  // and none noted why: they said it themselves.
  char message[2048];
} choir_launch_report_t;

// True in a process that choir_launch_run started.
CHOIR_API bool choir_launch_is_worker(void);
// Runs all workers to their end. SIGINT, SIGTERM and SIGHUP of the launcher end
// all workers (SIGTERM, then SIGKILL after `grace`) and give 128+signal.
//
// Of several workers that failed, the report names the cause: one that a
// signal killed, else one that noted a failure of its own, else one that ended
// without a word, else one that is stopped, else one that fell with others
// (it noted ABORTED or TIMEOUT, or its communicator broke).
CHOIR_API choir_status_t choir_launch_run(const choir_launch_config_t* config,
                                          choir_launch_report_t* out_report)
    CHOIR_NODISCARD;

// The same by Open MPI's mpiexec, for programs that talk by MPI: it starts
// `workers` ranks of this program on this host, in which choir_launch_is_worker
// is false. argv[0] is not looked at; `comm` is not used. The report's exit
// status is mpiexec's, and its message is empty unless mpiexec was killed, hung
// or was interrupted: else its ranks and Open MPI have said all. Folders of
// Open MPI go with the run. UNAVAILABLE: there is no mpiexec.
CHOIR_API choir_status_t choir_launch_mpiexec(
    const choir_launch_config_t* config, choir_launch_report_t* out_report)
    CHOIR_NODISCARD;

// In a worker: notes "epoch 0 step 17" on the launcher's board; a no-op
// elsewhere. Cheap (no syscall).
CHOIR_API void choir_launch_note_progress(int64_t epoch, int64_t step);
// In a worker that is about to end with a failure: notes why on the launcher's
// board, so that the report can tell the first cause; the worker then exits
// with 2 for wrong usage, else 1. `text` is copied, cut to 1023 bytes. The
// first call wins; OK does nothing; a no-op elsewhere. Threads: any.
CHOIR_API void choir_launch_note_failure(choir_status_code_t code,
                                         const char* text);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_LAUNCH_H_
