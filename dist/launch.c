// SPDX-License-Identifier: Apache-2.0
// The launcher: one thread that waits for events of its guard, which starts the
// workers and ends whole trees of processes, and for signals, which are
// blocked and come as events too, so nothing happens between two lines of code.
// When a worker fails, the others get a moment to report, then SIGTERM, then
// SIGKILL; the sentence is put together from what all of them left on the
// board.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/board_internal.h"
#include "dist/launch_internal.h"
#include "dist/memory_file_internal.h"
#include "dist/rendezvous_internal.h"

// After the first failure: time for peers to notice it and say so.
static const double report_seconds = 2;

typedef struct worker_s {
  bool ended;
  bool stopped;  // by a signal, not ended
  int wait_status;
  bool failed;
  char rank_text[24];  // of its environment
} worker_t;

enum { SHARED_TEXTS = 6, TEXT_BYTES = 96 };
// Of one worker: one that is killed as often will be again.
enum { MOST_RESTARTS = 100 };

typedef struct launch_s {
  choir__launcher_t launcher;
  choir_allocator_t allocator;
  choir_board_t* board;
  int board_fd;
  worker_t* workers;
  choir_guard_child_t* children;  // [workers]
  char program[PATH_MAX];
  int rendezvous_fd;  // of workers that meet over tcp; -1: none
  char shared_texts[SHARED_TEXTS][TEXT_BYTES];
  char** environments;  // [workers], one after the other
  size_t environments_bytes;
  int32_t started;
  int32_t running;
} launch_t;

bool choir_launch_is_worker(void) {
  const char* fd = getenv(CHOIR_BOARD_ENVIRONMENT);
  return fd && fd[0] && choir__board_slot();
}

// ---- Starting ----

// This program, by its own path, whose name `ps` shows; where another file is
// there by now, by the kernel's.
static void find_program(char path[PATH_MAX]) {
  static const char kernels[] = "/proc/self/exe";
  struct stat own;
  struct stat found;
  const ssize_t bytes = readlink(kernels, path, PATH_MAX - 1);
  path[bytes > 0 ? bytes : 0] = 0;
  if (stat(kernels, &own) || stat(path, &found) || own.st_dev != found.st_dev ||
      own.st_ino != found.st_ino)
    memcpy(path, kernels, sizeof(kernels));
}

static choir_status_t fill_shared_texts(launch_t* launch) {
  const choir_launch_config_t* config = launch->launcher.config;
  choir_comm_id_t id;
  CHOIR_TRY(choir_comm_id_make(&id));
  char(*texts)[TEXT_BYTES] = launch->shared_texts;
  snprintf(texts[0], TEXT_BYTES, "CHOIR_SIZE=%d", config->workers);
  snprintf(texts[1], TEXT_BYTES, "CHOIR_COMM_ID=%s", id.text);
  snprintf(texts[2], TEXT_BYTES, "CHOIR_COMM=%s",
           config->comm ? config->comm : "auto");
  snprintf(texts[3], TEXT_BYTES, CHOIR_BOARD_ENVIRONMENT "=%d",
           launch->board_fd);
  // Empty: not set.
  snprintf(texts[4], TEXT_BYTES, "CHOIR_RENDEZVOUS=");
  snprintf(texts[5], TEXT_BYTES, "CHOIR_RENDEZVOUS_FD=");
  if (!config->comm || strcmp(config->comm, "tcp") != 0) return NULL;
  uint16_t port = 0;
  CHOIR_TRY_NOTE(choir__rendezvous_open(&launch->rendezvous_fd, &port),
                 "launch");
  snprintf(texts[4], TEXT_BYTES, "CHOIR_RENDEZVOUS=127.0.0.1:%u", port);
  snprintf(texts[5], TEXT_BYTES, "CHOIR_RENDEZVOUS_FD=%d",
           launch->rendezvous_fd);
  return NULL;
}

// Made before fork: afterwards only system calls are safe.
static choir_status_t make_environments(launch_t* launch) {
  CHOIR_TRY(fill_shared_texts(launch));
  const size_t room = choir__launch_room(SHARED_TEXTS + 1);
  const size_t workers = (size_t)launch->launcher.config->workers;
  launch->environments_bytes = workers * room * sizeof(char*);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(launch->allocator, launch->environments_bytes,
                           "environments", &memory));
  launch->environments = memory;
  find_program(launch->program);
  for (size_t r = 0; r < workers; ++r) {
    worker_t* worker = &launch->workers[r];
    char* texts[SHARED_TEXTS + 1] = {worker->rank_text};
    snprintf(worker->rank_text, sizeof(worker->rank_text), "CHOIR_RANK=%d",
             (int)r);
    for (int i = 0; i < SHARED_TEXTS; ++i)
      texts[1 + i] = launch->shared_texts[i];
    char** entries = launch->environments + r * room;
    choir__launcher_fill(&launch->launcher, texts, SHARED_TEXTS + 1, entries);
    launch->children[r] = (choir_guard_child_t){
        .path = launch->program,
        .argv = launch->launcher.config->argv,
        .environment = entries,
    };
  }
  return NULL;
}

static choir_status_t make_board(launch_t* launch) {
  int32_t size = launch->launcher.config->workers;
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
  for (int32_t r = 0; r < size; ++r)
    choir__board_clear(&launch->board->slots[r]);
  return NULL;
}

// ---- Watching ----

static bool is_failure(int wait_status) {
  return !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0;
}

// A worker that has been started again, or was left out, and is not in the run.
static bool is_newcomer(const launch_t* launch, int32_t rank) {
  const choir_board_slot_t* slot = &launch->board->slots[rank];
  return !atomic_load(&slot->is_member) && (atomic_load(&slot->restarts) > 0 ||
                                            atomic_load(&slot->generation) > 0);
}

// It has said that it goes, and does not end the run however it ends.
static bool has_left(const launch_t* launch, int32_t rank) {
  return atomic_load(&launch->board->slots[rank].left_by) != 0;
}

// Whose members have come to the end of the run; 0: none yet. One of an earlier
// generation was left out, and may not have noticed.
static int64_t last_generation(const launch_t* launch) {
  int64_t last = 0;
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r) {
    const worker_t* worker = &launch->workers[r];
    const int64_t own = atomic_load(&launch->board->slots[r].generation);
    if (worker->ended && !is_failure(worker->wait_status) &&
        !has_left(launch, r) && own > last)
      last = own;
  }
  return last;
}

// Those that are in the run, or will be by themselves.
static int32_t count_members(const launch_t* launch) {
  const int64_t last = last_generation(launch);
  int32_t count = 0;
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r)
    count += !launch->workers[r].ended && !is_newcomer(launch, r) &&
             atomic_load(&launch->board->slots[r].generation) >= last;
  return count;
}

// Of an elastic run: the others go on without a worker that a signal killed, or
// that came and did not get into the run. Another takes its place, unless that
// does not help, or the signal was one that asks to go.
static bool is_survived(launch_t* launch, int32_t rank, int wait_status) {
  choir_board_slot_t* slot = &launch->board->slots[rank];
  const bool was_newcomer = is_newcomer(launch, rank);
  const bool has_gone = has_left(launch, rank);
  // Members end well when all of them have come to the end.
  const bool is_over = last_generation(launch) > 0;
  if (!launch->launcher.config->elastic ||
      (count_members(launch) == 0 && !is_over) ||
      !(WIFSIGNALED(wait_status) || was_newcomer || has_gone))
    return false;
  if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) != SIGTERM &&
      !has_gone && !is_over &&
      atomic_fetch_add(&slot->restarts, 1) < MOST_RESTARTS) {
    choir__board_clear(slot);
    choir_guard_restart(&launch->launcher.guard, rank);
  }
  return true;
}

static void note_event(launch_t* launch, const choir_guard_event_t* event) {
  if (event->child < 0) return;
  worker_t* worker = &launch->workers[event->child];
  choir__launcher_t* launcher = &launch->launcher;
  switch (event->kind) {
    case CHOIR_GUARD_STARTED:
      ++launch->started;
      ++launch->running;
      worker->ended = false;
      break;
    case CHOIR_GUARD_NOT_STARTED:
      // What keeps one from starting keeps others.
      if (!launcher->failure)
        launcher->failure =
            CHOIR_ERROR(UNAVAILABLE, "launch: cannot start rank %d: %s",
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
      --launch->running;
      // However it took our signals, that is no failure of its own.
      worker->failed = is_failure(event->status) && !event->was_signalled &&
                       !is_survived(launch, event->child, event->status);
      break;
    default:
      break;
  }
}

static bool any_failed(const launch_t* launch) {
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r)
    if (launch->workers[r].failed) return true;
  return false;
}

// Waits up to `seconds` or until something happened, and notes it.
static void wait_event(launch_t* launch, double seconds) {
  choir_guard_event_t event;
  choir__launcher_wait(&launch->launcher, seconds, &event);
  note_event(launch, &event);
}

static bool only_stopped_left(const launch_t* launch) {
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r)
    if (!launch->workers[r].ended && !launch->workers[r].stopped) return false;
  return true;
}

// Until there is nobody left who could say something, or the user is in a
// hurry.
static void wait_for_reports(launch_t* launch) {
  double end = choir_clock_seconds() + report_seconds;
  for (;;) {
    double left = end - choir_clock_seconds();
    if (launch->running == 0 || left <= 0 || launch->launcher.interrupted ||
        launch->launcher.guard.is_over || only_stopped_left(launch))
      return;
    wait_event(launch, left);
  }
}

// The workers and all that they started.
static void end_all(launch_t* launch) {
  const double grace = launch->launcher.config->grace;
  atomic_store(&launch->board->is_ending, true);
  choir_guard_end(&launch->launcher.guard, grace, grace);
  while (!launch->launcher.guard.is_over) wait_event(launch, 1);
}

// ---- Reporting ----

// What a worker's program noted about its end; NULL: nothing.
static const char* noted_failure(const launch_t* launch, int32_t rank) {
  const choir_board_slot_t* slot = &launch->board->slots[rank];
  return atomic_load(&slot->failure_code) ? slot->failure_text : NULL;
}

static bool any_noted(const launch_t* launch) {
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r)
    if (noted_failure(launch, r)) return true;
  return false;
}

// Every worker met the same thing, such as a missing file.
static bool all_noted_the_same(const launch_t* launch) {
  const char* first = noted_failure(launch, 0);
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r) {
    const char* text = noted_failure(launch, r);
    if (!first || !text || strcmp(first, text) != 0) return false;
  }
  return true;
}

static void append(launch_t* launch, const char* more) {
  choir__launcher_append(&launch->launcher, more);
}

static void append_worker(launch_t* launch, int32_t rank) {
  char text[128];
  snprintf(text, sizeof(text), "rank %d (host %s, pid %d)", rank,
           launch->launcher.host, (int)launch->children[rank].pid);
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
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r) {
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
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r) {
    blame_t own = blame(launch, r, was_stopped[r]);
    if (own >= most) continue;
    most = own;
    culprit = r;
  }
  return culprit;
}

static void report_failure(launch_t* launch, const bool* was_stopped) {
  choir_launch_report_t* report = launch->launcher.report;
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
      snprintf(what, sizeof(what), " ended with exit status %d", status);
  }
  append_worker(launch, culprit);
  append(launch, what);
  append_progress(launch, culprit);
  if (noted) {
    append(launch, ": ");
    append(launch, noted);
  }
  append_waiters(launch, culprit);
  choir__launcher_append_end(&launch->launcher);
}

// Whether nobody is left who could have ended the run.
static bool have_all_left(const launch_t* launch) {
  bool any_left = false;
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r) {
    const bool is_gone = has_left(launch, r);
    if (!is_gone && !is_failure(launch->workers[r].wait_status)) return false;
    any_left = any_left || is_gone;
  }
  return any_left;
}

static void report_all_left(launch_t* launch) {
  int number = 0;
  for (int32_t r = 0; r < launch->launcher.config->workers; ++r) {
    const int left_by = atomic_load(&launch->board->slots[r].left_by);
    if (left_by > 0) number = left_by;
  }
  append(launch, "all workers have left the run");
  if (!number) return;
  launch->launcher.report->exit_status = 128 + number;
  append(launch, ": ");
  choir__launcher_append_signal(&launch->launcher, number);
}

static void watch(launch_t* launch) {
  choir__launcher_t* launcher = &launch->launcher;
  const int32_t workers = launcher->config->workers;
  // The last ones may not have been told of as started yet.
  while ((count_members(launch) > 0 || launch->started < workers) &&
         !launcher->interrupted && !any_failed(launch) && !launcher->failure &&
         !launcher->guard.is_over)
    wait_event(launch, 1);
  if (any_failed(launch) && !launcher->interrupted) wait_for_reports(launch);
  bool was_stopped[CHOIR_LAUNCH_MAX_WORKERS] = {false};
  for (int32_t r = 0; r < workers; ++r)
    was_stopped[r] = launch->workers[r].stopped;
  end_all(launch);
  // Ctrl-C reaches workers too, and some first.
  if (launcher->interrupted)
    choir__launcher_report_interrupt(launcher);
  else if (any_failed(launch))
    report_failure(launch, was_stopped);
  else if (launcher->guard.was_killed)
    choir__launcher_report_guard(launcher);
  else if (have_all_left(launch))
    report_all_left(launch);
}

// ---- The whole ----

static choir_status_t run(launch_t* launch) {
  choir__launcher_t* launcher = &launch->launcher;
  CHOIR_TRY(make_board(launch));
  CHOIR_TRY(make_environments(launch));
  const choir_guard_config_t config = {
      .children = launch->children,
      .count = launcher->config->workers,
      .inherited_fds = {launch->board_fd, launch->rendezvous_fd},
      .restarts = launcher->config->elastic,
      .mark = launcher->mark.text,
  };
  CHOIR_TRY(choir_guard_start(&config, &launcher->guard));
  watch(launch);
  choir_guard_finish(&launcher->guard);
  return launcher->failure;
}

choir_status_t choir_launch_run(const choir_launch_config_t* config,
                                choir_launch_report_t* out_report) {
  launch_t launch = {.allocator = choir_allocator_default(),
                     .board_fd = -1,
                     .rendezvous_fd = -1};
  CHOIR_TRY(
      choir__launcher_open(&launch.launcher, config, out_report, "workers"));
  size_t count = (size_t)config->workers;
  size_t bytes = count * (sizeof(worker_t) + sizeof(choir_guard_child_t));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(launch.allocator, bytes, "workers", &memory));
  launch.children = memory;
  launch.workers = (worker_t*)(void*)(launch.children + count);
  choir_status_t status = run(&launch);
  if (launch.board) munmap(launch.board, choir__board_bytes(config->workers));
  if (launch.board_fd >= 0) close(launch.board_fd);
  if (launch.rendezvous_fd >= 0) close(launch.rendezvous_fd);
  choir_deallocate(launch.allocator, launch.environments,
                   launch.environments_bytes);
  choir_deallocate(launch.allocator, memory, bytes);
  return status;
}
