// SPDX-License-Identifier: Apache-2.0
// The launcher: one thread that starts workers and waits for signals. Signals
// it cares about are blocked and taken by sigtimedwait, so nothing happens
// between two lines of code. When a worker fails, the others get a moment to
// report, then SIGTERM, then SIGKILL; the sentence is put together from what
// all of them left on the board.
#include "dist/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/board_internal.h"
#include "dist/memory_file_internal.h"

extern char** environ;

#define MAX_WORKERS 1024
// After the first failure: time for peers to notice it and say so.
static const double report_seconds = 2;

typedef struct worker_s {
  pid_t pid;
  bool ended;
  bool stopped;    // by a signal, not ended
  bool was_ended;  // by us
  int wait_status;
  bool failed;
} worker_t;

typedef struct launch_s {
  const choir_launch_config_t* config;
  choir_launch_report_t* report;
  choir_allocator_t allocator;
  choir_board_t* board;
  int board_fd;
  worker_t* workers;
  int32_t running;
  char host[72];
  choir_comm_id_t id;
  int interrupted;  // signal that the launcher got; 0: none
  sigset_t old_mask;
  struct sigaction old_child_action;
} launch_t;

bool choir_launch_is_worker(void) {
  const char* fd = getenv(CHOIR_BOARD_ENVIRONMENT);
  return fd && fd[0] && choir__board_slot();
}

// ---- Starting ----

static const char* const own_variables[] = {
    "CHOIR_RANK", "CHOIR_SIZE", "CHOIR_COMM_ID", "CHOIR_COMM",
    CHOIR_BOARD_ENVIRONMENT,
    // The launcher itself may be a program under mpiexec; workers are not.
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"};
#define OWN_VARIABLE_COUNT (sizeof(own_variables) / sizeof(own_variables[0]))

static bool is_own_variable(const char* entry) {
  for (size_t i = 0; i < OWN_VARIABLE_COUNT; ++i) {
    size_t bytes = strlen(own_variables[i]);
    if (!strncmp(entry, own_variables[i], bytes) && entry[bytes] == '=')
      return true;
  }
  return false;
}

typedef struct environment_s {
  char texts[5][96];
  char** entries;
  size_t bytes;
} environment_t;

// Made before fork: afterwards only system calls are safe.
static choir_status_t make_environment(launch_t* launch, int32_t rank,
                                       environment_t* out_environment) {
  size_t count = 0;
  while (environ[count]) ++count;
  out_environment->bytes = (count + 6) * sizeof(char*);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(launch->allocator, out_environment->bytes,
                           "environment", &memory));
  char** entries = memory;
  size_t used = 0;
  for (size_t i = 0; i < count; ++i)
    if (!is_own_variable(environ[i])) entries[used++] = environ[i];
  const char* comm = launch->config->comm;
  snprintf(out_environment->texts[0], 96, "CHOIR_RANK=%d", rank);
  snprintf(out_environment->texts[1], 96, "CHOIR_SIZE=%d",
           launch->config->workers);
  snprintf(out_environment->texts[2], 96, "CHOIR_COMM_ID=%s", launch->id.text);
  snprintf(out_environment->texts[3], 96, "CHOIR_COMM=%s",
           comm ? comm : "auto");
  snprintf(out_environment->texts[4], 96, CHOIR_BOARD_ENVIRONMENT "=%d",
           launch->board_fd);
  for (int i = 0; i < 5; ++i) entries[used++] = out_environment->texts[i];
  entries[used] = NULL;
  out_environment->entries = entries;
  return NULL;
}

static void run_child(const launch_t* launch, const environment_t* environment,
                      pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  fcntl(launch->board_fd, F_SETFD, 0);
  sigaction(SIGCHLD, &launch->old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &launch->old_mask, NULL);
  execve("/proc/self/exe", launch->config->argv, environment->entries);
  _exit(127);
}

static choir_status_t start_worker(launch_t* launch, int32_t rank) {
  environment_t environment;
  CHOIR_TRY(make_environment(launch, rank, &environment));
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid == 0) run_child(launch, &environment, parent);
  int error = errno;
  choir_deallocate(launch->allocator, environment.entries, environment.bytes);
  if (pid < 0)
    return CHOIR_ERROR(UNAVAILABLE, "launch: cannot start rank %d: fork: %s",
                       rank, strerror(error));
  launch->workers[rank].pid = pid;
  ++launch->running;
  return NULL;
}

static choir_status_t make_board(launch_t* launch) {
  int32_t size = launch->config->workers;
  size_t bytes = choir__board_bytes(size);
  CHOIR_TRY_NOTE(
      choir__memory_file_create("choir-board", bytes, &launch->board_fd),
      "launch: the board");
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      launch->board_fd, 0);
  if (memory == MAP_FAILED)
    return CHOIR_ERROR(OUT_OF_MEMORY, "launch: cannot map the board: %s",
                       strerror(errno));
  launch->board = memory;
  launch->board->magic = CHOIR_BOARD_MAGIC;
  launch->board->size = size;
  for (int32_t r = 0; r < size; ++r) {
    choir__activity_clear(&launch->board->slots[r].activity);
    atomic_store(&launch->board->slots[r].epoch, -1);
    launch->board->slots[r].fault_waiting_for = -1;
  }
  return NULL;
}

// ---- Watching ----

static bool is_failure(int wait_status) {
  return !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0;
}

static void note_end(launch_t* launch, worker_t* worker, int wait_status) {
  if (WIFSTOPPED(wait_status)) {
    worker->stopped = true;
  } else if (WIFCONTINUED(wait_status)) {
    worker->stopped = false;
  } else {
    worker->ended = true;
    worker->stopped = false;
    worker->wait_status = wait_status;
    // However it took our signals, that is no failure of its own.
    worker->failed = is_failure(wait_status) && !worker->was_ended;
    --launch->running;
  }
}

static void reap(launch_t* launch) {
  for (int32_t r = 0; r < launch->config->workers; ++r) {
    worker_t* worker = &launch->workers[r];
    int wait_status;
    while (worker->pid > 0 && !worker->ended &&
           waitpid(worker->pid, &wait_status,
                   WNOHANG | WUNTRACED | WCONTINUED) == worker->pid)
      note_end(launch, worker, wait_status);
  }
}

static bool any_failed(const launch_t* launch) {
  for (int32_t r = 0; r < launch->config->workers; ++r)
    if (launch->workers[r].failed) return true;
  return false;
}

static void watched_signals(sigset_t* out_set) {
  sigemptyset(out_set);
  sigaddset(out_set, SIGCHLD);
  sigaddset(out_set, SIGINT);
  sigaddset(out_set, SIGTERM);
  sigaddset(out_set, SIGHUP);
}

// A second Ctrl-C must not kill the program while it prints the report.
static void forget_pending_signals(void) {
  sigset_t set;
  watched_signals(&set);
  struct timespec now = {0, 0};
  while (sigtimedwait(&set, NULL, &now) > 0) continue;
}

// Waits up to `seconds` or until something happened, and notes it.
static void wait_event(launch_t* launch, double seconds) {
  sigset_t set;
  watched_signals(&set);
  if (seconds < 0) seconds = 0;
  struct timespec timeout = {(time_t)seconds,
                             (long)((seconds - (double)(time_t)seconds) * 1e9)};
  int signal_number = sigtimedwait(&set, NULL, &timeout);
  if (signal_number > 0 && signal_number != SIGCHLD && !launch->interrupted)
    launch->interrupted = signal_number;
  reap(launch);
}

static void signal_workers(launch_t* launch, int signal_number) {
  for (int32_t r = 0; r < launch->config->workers; ++r) {
    worker_t* worker = &launch->workers[r];
    if (worker->pid <= 0 || worker->ended) continue;
    worker->was_ended = true;
    kill(worker->pid, signal_number);
    // A stopped process takes SIGTERM only when it runs again.
    if (worker->stopped) kill(worker->pid, SIGCONT);
  }
}

static bool only_stopped_left(const launch_t* launch) {
  for (int32_t r = 0; r < launch->config->workers; ++r)
    if (!launch->workers[r].ended && !launch->workers[r].stopped) return false;
  return true;
}

// `for_reports`: until there is nobody left who could say something, or the
// user is in a hurry.
static void wait_until_ended(launch_t* launch, double seconds,
                             bool for_reports) {
  double end = choir_clock_seconds() + seconds;
  for (;;) {
    double left = end - choir_clock_seconds();
    if (launch->running == 0 || left <= 0) return;
    if (for_reports && (launch->interrupted || only_stopped_left(launch)))
      return;
    wait_event(launch, left < 0.1 ? left : 0.1);
  }
}

static void end_workers(launch_t* launch) {
  signal_workers(launch, SIGTERM);
  wait_until_ended(launch, launch->config->grace, false);
  signal_workers(launch, SIGKILL);
  wait_until_ended(launch, 5, false);
}

// ---- Reporting ----

// What a worker's program noted about its end; NULL: nothing.
static const char* noted_failure(const launch_t* launch, int32_t rank) {
  const choir_board_slot_t* slot = &launch->board->slots[rank];
  return atomic_load(&slot->failure_code) ? slot->failure_text : NULL;
}

static bool any_noted(const launch_t* launch) {
  for (int32_t r = 0; r < launch->config->workers; ++r)
    if (noted_failure(launch, r)) return true;
  return false;
}

// Every worker met the same thing, such as a missing file.
static bool all_noted_the_same(const launch_t* launch) {
  const char* first = noted_failure(launch, 0);
  for (int32_t r = 0; r < launch->config->workers; ++r) {
    const char* text = noted_failure(launch, r);
    if (!first || !text || strcmp(first, text) != 0) return false;
  }
  return true;
}

static void append(launch_t* launch, const char* more) {
  choir__text_append(launch->report->message, sizeof(launch->report->message),
                     more);
}

static void append_worker(launch_t* launch, int32_t rank) {
  char text[128];
  snprintf(text, sizeof(text), "rank %d (host %s, pid %d)", rank, launch->host,
           (int)launch->workers[rank].pid);
  append(launch, text);
}

static void append_progress(launch_t* launch, int32_t rank) {
  const choir_board_slot_t* slot = &launch->board->slots[rank];
  long long epoch = atomic_load(&slot->epoch);
  if (epoch < 0) return;
  char text[80];
  snprintf(text, sizeof(text), " in epoch %lld step %lld", epoch,
           (long long)atomic_load(&slot->step));
  append(launch, text);
}

// What `rank` waited for when it stopped: from its fault if it told one, else
// from its last activity. Returns the rank it waited for, or -1.
static int32_t read_wait(const launch_t* launch, int32_t rank, char* operation,
                         size_t operation_bytes) {
  const choir_board_slot_t* slot = &launch->board->slots[rank];
  if (atomic_load(&slot->fault_code)) {
    snprintf(operation, operation_bytes, "%.*s",
             (int)sizeof(slot->fault_operation) - 1, slot->fault_operation);
    return slot->fault_waiting_for;
  }
  choir_activity_t activity;
  choir__activity_read(&slot->activity, &activity);
  choir__activity_print(&activity, operation, operation_bytes);
  return operation[0] ? activity.waiting_for : -1;
}

static void append_waiters(launch_t* launch, int32_t culprit) {
  int32_t first = -1;
  int32_t more = 0;
  char first_operation[CHOIR_ACTIVITY_TEXT_BYTES] = "";
  for (int32_t r = 0; r < launch->config->workers; ++r) {
    char operation[CHOIR_ACTIVITY_TEXT_BYTES];
    if (r == culprit ||
        read_wait(launch, r, operation, sizeof(operation)) != culprit ||
        !operation[0])
      continue;
    if (first < 0) {
      first = r;
      memcpy(first_operation, operation, sizeof(operation));
    } else {
      ++more;
    }
  }
  if (first < 0) return;
  append(launch, "; ");
  append_worker(launch, first);
  if (more) {
    char text[40];
    snprintf(text, sizeof(text), " and %d more were", more);
    append(launch, text);
  } else {
    append(launch, " was");
  }
  append(launch, " waiting for it in ");
  append(launch, first_operation);
}

// How likely a worker is the cause; the order in which to look for it.
typedef enum blame_e {
  BLAME_SIGNAL,    // killed by a signal
  BLAME_NOTED,     // noted a failure of its own
  BLAME_SILENT,    // ended without a word
  BLAME_STOPPED,   // did not end, stopped by a signal
  BLAME_FOLLOWED,  // its failure is that of a peer
  BLAME_NONE,
} blame_t;

static blame_t blame(const launch_t* launch, int32_t rank, bool was_stopped) {
  const worker_t* worker = &launch->workers[rank];
  const choir_board_slot_t* slot = &launch->board->slots[rank];
  if (worker->failed && WIFSIGNALED(worker->wait_status)) return BLAME_SIGNAL;
  int32_t noted = atomic_load(&slot->failure_code);
  bool followed =
      noted == CHOIR_STATUS_ABORTED || noted == CHOIR_STATUS_TIMEOUT;
  // Also one that was slow to end and got our signal.
  if (noted && !followed && is_failure(worker->wait_status)) return BLAME_NOTED;
  if (!worker->failed) return was_stopped ? BLAME_STOPPED : BLAME_NONE;
  if (followed) return BLAME_FOLLOWED;
  return atomic_load(&slot->fault_code) ? BLAME_FOLLOWED : BLAME_SILENT;
}

// The lowest rank of those most likely; -1: none.
static int32_t find_culprit(const launch_t* launch, const bool* was_stopped) {
  int32_t culprit = -1;
  blame_t most = BLAME_NONE;
  for (int32_t r = 0; r < launch->config->workers; ++r) {
    blame_t own = blame(launch, r, was_stopped[r]);
    if (own >= most) continue;
    most = own;
    culprit = r;
  }
  return culprit;
}

static void report_failure(launch_t* launch, const bool* was_stopped) {
  choir_launch_report_t* report = launch->report;
  int32_t culprit = find_culprit(launch, was_stopped);
  report->failed_rank = culprit;
  report->exit_status = 1;
  if (culprit < 0) return;
  const worker_t* worker = &launch->workers[culprit];
  const char* noted = noted_failure(launch, culprit);
  char what[128];
  if (worker->failed && WIFSIGNALED(worker->wait_status)) {
    int number = WTERMSIG(worker->wait_status);
    report->exit_status = 128 + number;
    snprintf(what, sizeof(what), " was killed by signal %d (%s)", number,
             strsignal(number));
  } else if (was_stopped[culprit] && !worker->failed) {
    snprintf(what, sizeof(what), " was stopped by a signal");
  } else {
    int status = worker->failed ? WEXITSTATUS(worker->wait_status) : 1;
    if (status == 2) report->exit_status = 2;
    if (all_noted_the_same(launch)) {
      append(launch, noted);
      return;
    }
    // It said itself what was wrong.
    if ((status == 1 || status == 2) && !any_noted(launch)) return;
    if (noted)
      snprintf(what, sizeof(what), " failed");
    else
      snprintf(what, sizeof(what), " ended with exit status %d%s", status,
               status == 127 ? " (the program could not be started)" : "");
  }
  append_worker(launch, culprit);
  append(launch, what);
  append_progress(launch, culprit);
  if (noted) {
    append(launch, ": ");
    append(launch, noted);
  }
  append_waiters(launch, culprit);
  append(launch, "; all workers were ended");
}

static void report_interrupt(launch_t* launch) {
  launch->report->exit_status = 128 + launch->interrupted;
  snprintf(launch->report->message, sizeof(launch->report->message),
           "interrupted by signal %d (%s); all workers were ended",
           launch->interrupted, strsignal(launch->interrupted));
}

static void watch(launch_t* launch) {
  while (launch->running > 0 && !launch->interrupted && !any_failed(launch))
    wait_event(launch, 1);
  if (launch->interrupted) {
    end_workers(launch);
    report_interrupt(launch);
    return;
  }
  if (!any_failed(launch)) return;
  wait_until_ended(launch, report_seconds, true);
  if (launch->interrupted) {  // Ctrl-C reaches workers too, and some first
    end_workers(launch);
    report_interrupt(launch);
    return;
  }
  bool was_stopped[MAX_WORKERS] = {false};
  for (int32_t r = 0; r < launch->config->workers; ++r)
    was_stopped[r] = launch->workers[r].stopped;
  end_workers(launch);
  report_failure(launch, was_stopped);
}

// ---- The whole ----

static choir_status_t check_config(const choir_launch_config_t* config) {
  if (!config || !config->argv || !config->argv[0])
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: %s",
                       config ? "argv is empty" : "config is NULL");
  if (config->workers < 1 || config->workers > MAX_WORKERS)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "launch: workers is %d; it must be in 1 .. %d",
                       config->workers, MAX_WORKERS);
  if (!(config->grace >= 0) || config->grace > 3600)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "launch: grace is %g s; it must be in 0 .. 3600",
                       config->grace);
  if (config->comm && strlen(config->comm) > 32)
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: comm '%.40s...' is unknown",
                       config->comm);
  return NULL;
}

static choir_status_t run(launch_t* launch) {
  CHOIR_TRY(choir_comm_id_make(&launch->id));
  CHOIR_TRY(make_board(launch));
  for (int32_t r = 0; r < launch->config->workers; ++r) {
    choir_status_t status = start_worker(launch, r);
    if (!status) continue;
    end_workers(launch);
    return status;
  }
  watch(launch);
  return NULL;
}

choir_status_t choir_launch_run(const choir_launch_config_t* config,
                                choir_launch_report_t* out_report) {
  if (!out_report)
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: out_report is NULL");
  memset(out_report, 0, sizeof(*out_report));
  out_report->failed_rank = -1;
  CHOIR_TRY(check_config(config));
  launch_t launch = {.config = config,
                     .report = out_report,
                     .allocator = choir_allocator_default(),
                     .board_fd = -1};
  if (gethostname(launch.host, sizeof(launch.host) - 1))
    strcpy(launch.host, "?");
  size_t bytes = (size_t)config->workers * sizeof(worker_t);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(launch.allocator, bytes, "workers", &memory));
  launch.workers = memory;
  sigset_t set;
  watched_signals(&set);
  sigprocmask(SIG_BLOCK, &set, &launch.old_mask);
  // Ignored children would leave no status behind.
  struct sigaction plain = {.sa_handler = SIG_DFL};
  sigaction(SIGCHLD, &plain, &launch.old_child_action);
  choir_status_t status = run(&launch);
  if (launch.interrupted) forget_pending_signals();
  sigaction(SIGCHLD, &launch.old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &launch.old_mask, NULL);
  if (launch.board) munmap(launch.board, choir__board_bytes(config->workers));
  if (launch.board_fd >= 0) close(launch.board_fd);
  choir_deallocate(launch.allocator, launch.workers, bytes);
  return status;
}
