// SPDX-License-Identifier: Apache-2.0
// The launcher: one thread that waits for events of its guard, which starts the
// workers and ends whole trees of processes, and for signals, which are
// blocked and come as events too, so nothing happens between two lines of code.
// When a worker fails, the others get a moment to report, then SIGTERM, then
// SIGKILL; the sentence is put together from what all of them left on the
// board.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/board_internal.h"
#include "dist/guard_internal.h"
#include "dist/launch_internal.h"
#include "dist/memory_file_internal.h"

extern char** environ;

// After the first failure: time for peers to notice it and say so.
static const double report_seconds = 2;

typedef struct worker_s {
  pid_t pid;
  bool ended;
  bool stopped;  // by a signal, not ended
  int wait_status;
  bool failed;
  char rank_text[24];  // of its environment
} worker_t;

enum { SHARED_TEXTS = 5, TEXT_BYTES = 96 };

typedef struct launch_s {
  const choir_launch_config_t* config;
  choir_launch_report_t* report;
  choir_allocator_t allocator;
  choir_board_t* board;
  int board_fd;
  worker_t* workers;
  choir_guard_child_t* children;  // [workers]
  char shared_texts[SHARED_TEXTS][TEXT_BYTES];
  char** environments;  // [workers], one after the other
  size_t environments_bytes;
  choir_guard_t guard;
  int32_t running;
  char host[72];
  choir_comm_id_t id;
  int interrupted;         // signal that the launcher got; 0: none
  choir_status_t failure;  // a worker that could not be started
} launch_t;

bool choir_launch_is_worker(void) {
  const char* fd = getenv(CHOIR_BOARD_ENVIRONMENT);
  return fd && fd[0] && choir__board_slot();
}

// ---- Starting ----

static const char* const own_variables[] = {
    "CHOIR_RANK", "CHOIR_SIZE", "CHOIR_COMM_ID", "CHOIR_COMM",
    CHOIR_BOARD_ENVIRONMENT, CHOIR_LAUNCH_MARK,
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

static choir_status_t fill_shared_texts(launch_t* launch) {
  const char* comm = launch->config->comm;
  choir_comm_id_t mark;
  CHOIR_TRY(choir_comm_id_make(&mark));
  char(*texts)[TEXT_BYTES] = launch->shared_texts;
  snprintf(texts[0], TEXT_BYTES, "CHOIR_SIZE=%d", launch->config->workers);
  snprintf(texts[1], TEXT_BYTES, "CHOIR_COMM_ID=%s", launch->id.text);
  snprintf(texts[2], TEXT_BYTES, "CHOIR_COMM=%s", comm ? comm : "auto");
  snprintf(texts[3], TEXT_BYTES, CHOIR_BOARD_ENVIRONMENT "=%d",
           launch->board_fd);
  snprintf(texts[4], TEXT_BYTES, CHOIR_LAUNCH_MARK "=%s", mark.text);
  return NULL;
}

// Made before fork: afterwards only system calls are safe.
static choir_status_t make_environments(launch_t* launch) {
  CHOIR_TRY(fill_shared_texts(launch));
  size_t most = SHARED_TEXTS + 2;
  for (char** entry = environ; *entry; ++entry) ++most;
  size_t workers = (size_t)launch->config->workers;
  launch->environments_bytes = workers * most * sizeof(char*);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(launch->allocator, launch->environments_bytes,
                           "environments", &memory));
  launch->environments = memory;
  for (size_t r = 0; r < workers; ++r) {
    worker_t* worker = &launch->workers[r];
    char** entries = launch->environments + r * most;
    size_t used = 0;
    for (char** entry = environ; *entry; ++entry)
      if (!is_own_variable(*entry)) entries[used++] = *entry;
    for (int i = 0; i < SHARED_TEXTS; ++i)
      entries[used++] = launch->shared_texts[i];
    snprintf(worker->rank_text, sizeof(worker->rank_text), "CHOIR_RANK=%d",
             (int)r);
    entries[used] = worker->rank_text;
    launch->children[r] = (choir_guard_child_t){
        .path = "/proc/self/exe",
        .argv = launch->config->argv,
        .environment = entries,
    };
  }
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

static void note_event(launch_t* launch, const choir_guard_event_t* event) {
  if (event->kind == CHOIR_GUARD_SIGNAL && !launch->interrupted)
    launch->interrupted = event->status;
  if (event->child < 0) return;
  worker_t* worker = &launch->workers[event->child];
  switch (event->kind) {
    case CHOIR_GUARD_STARTED:
      worker->pid = event->pid;
      ++launch->running;
      break;
    case CHOIR_GUARD_NOT_STARTED:
      launch->failure =
          CHOIR_ERROR(UNAVAILABLE, "launch: cannot start rank %d: fork: %s",
                      event->child, strerror(event->status));
      break;
    case CHOIR_GUARD_STOPPED:
    case CHOIR_GUARD_CONTINUED:
      worker->stopped = event->kind == CHOIR_GUARD_STOPPED;
      break;
    case CHOIR_GUARD_ENDED:
      worker->ended = true;
      worker->stopped = false;
      worker->wait_status = event->status;
      // However it took our signals, that is no failure of its own.
      worker->failed = is_failure(event->status) && !event->was_signalled;
      --launch->running;
      break;
    default:
      break;
  }
}

static bool any_failed(const launch_t* launch) {
  for (int32_t r = 0; r < launch->config->workers; ++r)
    if (launch->workers[r].failed) return true;
  return false;
}

// Waits up to `seconds` or until something happened, and notes it.
static void wait_event(launch_t* launch, double seconds) {
  choir_guard_event_t event;
  choir_guard_wait(&launch->guard, seconds, &event);
  note_event(launch, &event);
}

static bool only_stopped_left(const launch_t* launch) {
  for (int32_t r = 0; r < launch->config->workers; ++r)
    if (!launch->workers[r].ended && !launch->workers[r].stopped) return false;
  return true;
}

// Until there is nobody left who could say something, or the user is in a
// hurry.
static void wait_for_reports(launch_t* launch) {
  double end = choir_clock_seconds() + report_seconds;
  for (;;) {
    double left = end - choir_clock_seconds();
    if (launch->running == 0 || left <= 0 || launch->interrupted ||
        launch->guard.is_over || only_stopped_left(launch))
      return;
    wait_event(launch, left);
  }
}

// The workers and all that they started.
static void end_all(launch_t* launch) {
  const double grace = launch->config->grace;
  choir_guard_end(&launch->guard, grace, grace);
  while (!launch->guard.is_over) wait_event(launch, 1);
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

static const char* ended_text(const launch_t* launch) {
  return launch->guard.is_stuck
             ? "; some of the workers' processes do not end (the kernel "
               "keeps them)"
             : "; all workers were ended";
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
  append(launch, ended_text(launch));
}

static void report_interrupt(launch_t* launch) {
  launch->report->exit_status = 128 + launch->interrupted;
  snprintf(launch->report->message, sizeof(launch->report->message),
           "interrupted by signal %d (%s)%s", launch->interrupted,
           strsignal(launch->interrupted), ended_text(launch));
}

static void report_lost_guard(launch_t* launch) {
  launch->report->exit_status = 1;
  snprintf(launch->report->message, sizeof(launch->report->message),
           "the guard of the workers (host %s, pid %d) was killed%s",
           launch->host, (int)launch->guard.pid, ended_text(launch));
}

static void watch(launch_t* launch) {
  // All are told of in order, so the last one's start is that of all.
  const worker_t* last = &launch->workers[launch->config->workers - 1];
  while ((launch->running > 0 || last->pid == 0) && !launch->interrupted &&
         !any_failed(launch) && !launch->failure && !launch->guard.is_over)
    wait_event(launch, 1);
  if (any_failed(launch) && !launch->interrupted) wait_for_reports(launch);
  bool was_stopped[CHOIR_LAUNCH_MAX_WORKERS] = {false};
  for (int32_t r = 0; r < launch->config->workers; ++r)
    was_stopped[r] = launch->workers[r].stopped;
  end_all(launch);
  // Ctrl-C reaches workers too, and some first.
  if (launch->interrupted)
    report_interrupt(launch);
  else if (any_failed(launch))
    report_failure(launch, was_stopped);
  else if (launch->guard.was_killed)
    report_lost_guard(launch);
}

// ---- The whole ----

choir_status_t choir__launch_check(const choir_launch_config_t* config) {
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
  return NULL;
}

static choir_status_t run(launch_t* launch) {
  CHOIR_TRY(choir_comm_id_make(&launch->id));
  CHOIR_TRY(make_board(launch));
  CHOIR_TRY(make_environments(launch));
  const choir_guard_config_t config = {
      .children = launch->children,
      .count = launch->config->workers,
      .inherited_fd = launch->board_fd,
      .mark = launch->shared_texts[SHARED_TEXTS - 1],
  };
  CHOIR_TRY(choir_guard_start(&config, &launch->guard));
  watch(launch);
  choir_guard_finish(&launch->guard);
  return launch->failure;
}

choir_status_t choir_launch_run(const choir_launch_config_t* config,
                                choir_launch_report_t* out_report) {
  if (!out_report)
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: out_report is NULL");
  memset(out_report, 0, sizeof(*out_report));
  out_report->failed_rank = -1;
  CHOIR_TRY(choir__launch_check(config));
  launch_t launch = {.config = config,
                     .report = out_report,
                     .allocator = choir_allocator_default(),
                     .board_fd = -1};
  if (gethostname(launch.host, sizeof(launch.host) - 1))
    strcpy(launch.host, "?");
  size_t count = (size_t)config->workers;
  size_t bytes = count * (sizeof(worker_t) + sizeof(choir_guard_child_t));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(launch.allocator, bytes, "workers", &memory));
  launch.children = memory;
  launch.workers = (worker_t*)(void*)(launch.children + count);
  choir_status_t status = run(&launch);
  if (launch.board) munmap(launch.board, choir__board_bytes(config->workers));
  if (launch.board_fd >= 0) close(launch.board_fd);
  choir_deallocate(launch.allocator, launch.environments,
                   launch.environments_bytes);
  choir_deallocate(launch.allocator, memory, bytes);
  return status;
}
