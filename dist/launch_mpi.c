// SPDX-License-Identifier: Apache-2.0
// mpiexec as the child of a guard: whatever happens to it, its ranks, what they
// started and Open MPI's files go. What ranks and mpiexec have to say they say
// themselves.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/activity_internal.h"
#include "dist/launch_internal.h"
#include "dist/proc_internal.h"

// Open MPI gives its ranks a second between SIGTERM and SIGKILL, and removes
// its files after it.
static const double mpiexec_grace = 3;
// The mpiexec of Open MPI 4.1 can lock itself up at its end when a rank died in
// MPI_Init. So long its last rank may be gone.
static const double hang_seconds = 5;
static const double poll_seconds = 0.25;

enum { MPIEXEC_ARGUMENTS = 8, FOLDERS = 2 };

// Where Open MPI 4 and 5 keep the files of a session and their shared memory;
// also in tools/choirrun/mpi_versions.py.
static const char* const variables[FOLDERS][2] = {
    // $OMPI_MCA_orte_tmpdir_base: where Open MPI 4 keeps a run's files. Not
    // set: in a folder that is removed at the end (docs/faults.md).
    // $PRTE_MCA_prte_tmpdir_base: where Open MPI 5 does. Not set: likewise.
    // $OMPI_MCA_btl_vader_backing_directory: where Open MPI 4 keeps shared
    // memory. Not set: in a folder that is removed at the end.
    // $OMPI_MCA_btl_sm_backing_directory: where Open MPI 5 does. Not set:
    // likewise.
    {"OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"},
    {"OMPI_MCA_btl_vader_backing_directory",
     "OMPI_MCA_btl_sm_backing_directory"},
};

typedef struct rank_s {
  pid_t pid;   // 0: not seen yet
  char state;  // the letter of /proc; 'Z': not reaped yet; 0: gone
} rank_t;

typedef struct mpi_launch_s {
  choir__launcher_t launcher;
  char** arguments;    // of mpiexec
  char** environment;  // likewise
  char program[PATH_MAX];
  char workers[24];
  char paths[FOLDERS][PATH_MAX];
  char* folders[FOLDERS + 1];
  char texts[FOLDERS][2][PATH_MAX + 64];
  rank_t* ranks;  // [workers]
  choir_guard_child_t mpiexec;
  bool ended;
  int wait_status;
  bool had_children;
  double childless_since;
  bool hangs;
} mpi_launch_t;

// ---- Starting ----

static size_t count_arguments(char* const* arguments) {
  size_t count = 0;
  while (arguments[count]) ++count;
  return count;
}

static void fill_arguments(mpi_launch_t* launch) {
  char** arguments = launch->arguments;
  const choir_launch_config_t* config = launch->launcher.config;
  snprintf(launch->workers, sizeof(launch->workers), "%d",
           (int)config->workers);
  *arguments++ = "mpiexec";
  *arguments++ = "-n";
  *arguments++ = launch->workers;
  // More workers than cores are allowed, as with choir_launch_run, and a
  // worker's own threads must not share one core.
  *arguments++ = "--oversubscribe";
  *arguments++ = "--bind-to";
  *arguments++ = "none";
  // The user is root knowingly; Open MPI asks twice.
  if (geteuid() == 0) *arguments++ = "--allow-run-as-root";
  *arguments++ = launch->program;
  for (char* const* argument = config->argv + 1; *argument; ++argument)
    *arguments++ = *argument;
}

// Folders that the guard can remove, unless the user chose others.
static choir_status_t make_folders(mpi_launch_t* launch) {
  // $TMPDIR: the folder in which a run makes its own. Not set: /tmp.
  const char* temporary = getenv("TMPDIR");
  const char* const parents[FOLDERS] = {
      temporary && temporary[0] ? temporary : "/tmp", "/dev/shm"};
  int count = 0;
  for (int i = 0; i < FOLDERS; ++i) {
    if (getenv(variables[i][0]) || getenv(variables[i][1])) continue;
    char* path = launch->paths[i];
    const int length =
        snprintf(path, PATH_MAX, "%s/choir-mpi-XXXXXX", parents[i]);
    if (length >= PATH_MAX) errno = ENAMETOOLONG;
    if (length >= PATH_MAX || !mkdtemp(path)) {
      choir_status_t status =
          CHOIR_ERROR(UNAVAILABLE,
                      "launch: cannot make a folder for Open MPI in %.200s: "
                      "%s; %s chooses another",
                      parents[i], strerror(errno), variables[i][0]);
      while (count > 0) rmdir(launch->folders[--count]);
      return status;
    }
    launch->folders[count++] = path;
  }
  return NULL;
}

static void fill_environment(mpi_launch_t* launch) {
  char* texts[2 * FOLDERS];
  size_t count = 0;
  for (int i = 0; i < FOLDERS; ++i) {
    for (int version = 0; version < 2 && launch->paths[i][0]; ++version) {
      char* text = launch->texts[i][version];
      const size_t bytes = sizeof(launch->texts[i][version]);
      choir__text_append(text, bytes, variables[i][version]);
      choir__text_append(text, bytes, "=");
      choir__text_append(text, bytes, launch->paths[i]);
      texts[count++] = text;
    }
  }
  choir__launcher_fill(&launch->launcher, texts, count, launch->environment);
}

// ---- Watching ----

static void wait_event(mpi_launch_t* launch, double seconds) {
  choir_guard_event_t event;
  choir__launcher_wait(&launch->launcher, seconds, &event);
  if (event.child != 0) return;
  if (event.kind == CHOIR_GUARD_NOT_STARTED)
    launch->launcher.failure =
        event.status == ENOENT
            ? CHOIR_ERROR(UNAVAILABLE,
                          "launch: there is no mpiexec; it comes with Open MPI "
                          "(Debian: openmpi-bin)")
            : CHOIR_ERROR(UNAVAILABLE, "launch: cannot start mpiexec: %s",
                          strerror(event.status));
  if (event.kind != CHOIR_GUARD_ENDED) return;
  launch->ended = true;
  launch->wait_status = event.status;
}

// The rank that a process is, by its environment; -1: none.
static int rank_of(const mpi_launch_t* launch, const choir__folder_t* proc,
                   const choir__process_t* process) {
  char value[16];
  if (!choir__process_variable(proc, process, "OMPI_COMM_WORLD_RANK=", value,
                               sizeof(value)))
    return -1;
  const int rank = atoi(value);
  return rank < launch->launcher.config->workers ? rank : -1;
}

// Notes which ranks there are, and whether mpiexec has locked itself up: that
// is when children of it that failed stay zombies, as it reaps no more. One
// that stays without children after a good end waits for a slow reader of its
// output, which is no fault.
static void poll_processes(mpi_launch_t* launch) {
  const int workers = launch->launcher.config->workers;
  for (int r = 0; r < workers; ++r) launch->ranks[r].state = 0;
  bool has_children = false;
  bool has_failed = false;
  bool had_children = launch->had_children;
  choir__folder_t proc;
  choir__process_t process;
  if (!choir__processes_open(&proc)) return;
  while (choir__processes_next(&proc, &process)) {
    if (process.parent != launch->mpiexec.pid) continue;
    has_children = has_children || process.state != 'Z';
    has_failed = has_failed || (process.state == 'Z' && process.exit_code);
    // A zombie has no environment any more.
    for (int r = 0; r < workers; ++r)
      if (launch->ranks[r].pid == process.pid)
        launch->ranks[r].state = process.state;
    int rank = rank_of(launch, &proc, &process);
    if (rank >= 0) launch->ranks[rank] = (rank_t){process.pid, process.state};
  }
  choir__folder_close(&proc);
  double now = choir_clock_seconds();
  launch->had_children = had_children || has_children;
  if (has_children || !had_children || launch->childless_since == 0)
    launch->childless_since = now;
  if (now - launch->childless_since < hang_seconds) return;
  launch->hangs = has_failed;
  choir_guard_end_orphans(&launch->launcher.guard,
                          launch->launcher.config->grace);
}

// ---- Reporting ----

static void append(mpi_launch_t* launch, const char* more) {
  choir__launcher_append(&launch->launcher, more);
}

// Those that mpiexec reaped before it locked itself up ended before the others.
static void append_first(mpi_launch_t* launch) {
  const char* before = " after the end of ";
  for (int r = 0; r < launch->launcher.config->workers; ++r) {
    const rank_t* rank = &launch->ranks[r];
    if (!rank->pid || rank->state) continue;
    char text[80];
    snprintf(text, sizeof(text), "%srank %d (pid %d)", before, r,
             (int)rank->pid);
    append(launch, text);
    before = ", ";
  }
}

static void report(mpi_launch_t* launch) {
  choir__launcher_t* launcher = &launch->launcher;
  if (launcher->interrupted) {
    choir__launcher_report_interrupt(launcher);
    return;
  }
  if (launcher->guard.was_killed) {
    choir__launcher_report_guard(launcher);
    return;
  }
  launcher->report->exit_status = WIFSIGNALED(launch->wait_status)
                                      ? 128 + WTERMSIG(launch->wait_status)
                                      : WEXITSTATUS(launch->wait_status);
  if (launch->hangs) launcher->report->exit_status = 1;
  if (!launch->hangs && !WIFSIGNALED(launch->wait_status)) return;
  char text[128];
  snprintf(text, sizeof(text), "mpiexec (host %s, pid %d)", launcher->host,
           (int)launch->mpiexec.pid);
  append(launch, text);
  if (launch->hangs) {
    append(launch, " hung");
    append_first(launch);
    append(launch, " and was killed");
  } else {
    append(launch, " was killed by ");
    choir__launcher_append_signal(launcher, WTERMSIG(launch->wait_status));
  }
  choir__launcher_append_end(launcher);
}

// ---- The whole ----

static void watch(mpi_launch_t* launch) {
  choir__launcher_t* launcher = &launch->launcher;
  double poll_at = 0;
  while (!launch->ended && !launcher->interrupted && !launcher->failure &&
         !launch->hangs && !launcher->guard.is_over) {
    wait_event(launch, poll_seconds);
    if (launch->mpiexec.pid && !launch->ended &&
        choir_clock_seconds() > poll_at) {
      poll_processes(launch);
      poll_at = choir_clock_seconds() + poll_seconds;
    }
  }
  const double grace = launcher->config->grace;
  choir_guard_end(&launcher->guard, launch->hangs ? 0 : grace + mpiexec_grace,
                  grace);
  // How it takes our signals is no news.
  choir_guard_event_t event;
  while (!launcher->guard.is_over)
    choir_guard_wait(&launcher->guard, 1, &event);
}

static choir_status_t run(mpi_launch_t* launch) {
  const ssize_t length =
      readlink("/proc/self/exe", launch->program, PATH_MAX - 1);
  if (length < 0)
    return CHOIR_ERROR(UNAVAILABLE, "launch: /proc/self/exe: %s",
                       strerror(errno));
  CHOIR_TRY(make_folders(launch));
  fill_arguments(launch);
  fill_environment(launch);
  choir__launcher_t* launcher = &launch->launcher;
  launch->mpiexec = (choir_guard_child_t){.path = "mpiexec",
                                          .argv = launch->arguments,
                                          .environment = launch->environment};
  const choir_guard_config_t config = {.children = &launch->mpiexec,
                                       .count = 1,
                                       .inherited_fds = {-1, -1},
                                       .mark = launcher->mark.text,
                                       .folders = launch->folders};
  CHOIR_TRY(choir_guard_start(&config, &launcher->guard));
  watch(launch);
  choir_guard_finish(&launcher->guard);
  if (launcher->failure) return launcher->failure;
  report(launch);
  return NULL;
}

choir_status_t choir_launch_mpiexec(const choir_launch_config_t* config,
                                    choir_launch_report_t* out_report) {
  choir__launcher_t launcher;
  CHOIR_TRY(choir__launcher_open(&launcher, config, out_report, "ranks"));
  size_t arguments = MPIEXEC_ARGUMENTS + count_arguments(config->argv) + 1;
  size_t entries = choir__launch_room(2 * FOLDERS);
  size_t bytes = sizeof(mpi_launch_t) + (arguments + entries) * sizeof(char*) +
                 (size_t)config->workers * sizeof(rank_t);
  choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "launch", &memory));
  mpi_launch_t* launch = memory;
  launch->launcher = launcher;
  launch->arguments = (char**)(void*)(launch + 1);
  launch->environment = launch->arguments + arguments;
  launch->ranks = (rank_t*)(void*)(launch->environment + entries);
  choir_status_t status = run(launch);
  choir_deallocate(allocator, memory, bytes);
  return status;
}
