// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_LAUNCH_H_
#define CHOIR_DIST_LAUNCH_H_

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// Starts the workers of a run on this host and watches them: each is a direct
// child that runs the same program again with CHOIR_RANK, CHOIR_SIZE and
// CHOIR_COMM_ID set, dies with the launcher (PR_SET_PDEATHSIG) and notes what
// it does on a board that the launcher can read. When one fails, the others
// are ended and the report says in a sentence what happened.
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
} choir_launch_config_t;
#define CHOIR_LAUNCH_CONFIG_INIT \
  { NULL, 2, NULL, 1.0 }

typedef struct choir_launch_report_s {
  int exit_status;      // what the launcher should exit with: 0, 1, 2 or 128+n
  int32_t failed_rank;  // -1: none
  // "rank 1 (host h, pid 123) was killed by signal 9 (Killed) in epoch 0 step
  // 17; rank 0 (host h, pid 122) was waiting for it in all_reduce 'bucket 0'
  // (operation 52); all workers were ended." Empty when all went well or when
  // the worker said itself what was wrong.
  char message[1024];
} choir_launch_report_t;

// True in a process that choir_launch_run started.
CHOIR_API bool choir_launch_is_worker(void);
// Runs all workers to their end. SIGINT and SIGTERM of the launcher end all
// workers (SIGTERM, then SIGKILL after `grace`) and give 128+signal. Nothing
// is left behind in any case.
CHOIR_API choir_status_t choir_launch_run(const choir_launch_config_t* config,
                                          choir_launch_report_t* out_report)
    CHOIR_NODISCARD;

// In a worker: notes "epoch 0 step 17" on the launcher's board; a no-op
// elsewhere. Cheap (no syscall).
CHOIR_API void choir_launch_note_progress(int64_t epoch, int64_t step);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_LAUNCH_H_
