// SPDX-License-Identifier: Apache-2.0
// mpiexec as the child of a guard: whatever happens to it, its ranks, what they
// started and Open MPI's files go. What ranks and mpiexec have to say they say
// themselves.
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/activity_internal.h"
#include "dist/comm.h"
#include "dist/guard_internal.h"
#include "dist/launch_internal.h"

extern char** environ;

// Open MPI gives its ranks a second between SIGTERM and SIGKILL, and removes
// its files after it.
static const double mpiexec_grace = 3;
// A terminal's signals reach mpiexec too, which ends its ranks then. A second
// signal would make it leave at once, and its files behind.
static const double terminal_seconds = 2;
// The mpiexec of Open MPI 4.1 can lock itself up at its end when a rank died in
// MPI_Init. So long its last rank may be gone.
static const double hang_seconds = 5;
static const double look_seconds = 0.25;

enum { MPIEXEC_WORDS = 8, FOLDERS = 2 };

// Where Open MPI 4 and 5 keep the files of a session and their shared memory;
// also in tools/choirrun/mpi_versions.py.
static const char* const variables[FOLDERS][2] = {
    {"OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"},
    {"OMPI_MCA_btl_vader_backing_directory",
     "OMPI_MCA_btl_sm_backing_directory"},
};

typedef struct rank_s {
  pid_t pid;   // 0: not seen yet
  char state;  // the letter of /proc; 'Z': not reaped yet; 0: gone
} rank_t;

typedef struct mpi_launch_s {
  const choir_launch_config_t* config;
  choir_launch_report_t* report;
  choir_guard_t guard;
  char** words;      // what is started
  char** variables;  // its environment
  char program[PATH_MAX];
  char workers[24];
  char mark[64];
  char paths[FOLDERS][PATH_MAX];
  char* folders[FOLDERS + 1];
  char texts[FOLDERS][2][PATH_MAX + 64];
  char host[72];
  rank_t* ranks;  // [workers]
  pid_t pid;      // of mpiexec
  bool ended;
  int wait_status;
  int interrupted;         // signal that the launcher got; 0: none
  choir_status_t failure;  // it could not be started
  bool had_children;
  double childless_since;
  bool hangs;
} mpi_launch_t;

// ---- Starting ----

static size_t count_words(char* const* words) {
  size_t count = 0;
  while (words[count]) ++count;
  return count;
}

static void fill_words(mpi_launch_t* launch) {
  char** words = launch->words;
  snprintf(launch->workers, sizeof(launch->workers), "%d",
           (int)launch->config->workers);
  *words++ = "mpiexec";
  *words++ = "-n";
  *words++ = launch->workers;
  // More workers than cores are allowed, as with choir_launch_run, and a
  // worker's own threads must not share one core.
  *words++ = "--oversubscribe";
  *words++ = "--bind-to";
  *words++ = "none";
  // The user is root knowingly; Open MPI asks twice.
  if (geteuid() == 0) *words++ = "--allow-run-as-root";
  *words++ = launch->program;
  for (char* const* word = launch->config->argv + 1; *word; ++word)
    *words++ = *word;
}

// Folders that the guard can remove, unless the user chose others.
static void make_folders(mpi_launch_t* launch) {
  const char* base = getenv("TMPDIR");
  if (!base || !base[0]) base = "/tmp";
  snprintf(launch->paths[0], PATH_MAX, "%.3900s/choir-mpi-XXXXXX", base);
  snprintf(launch->paths[1], PATH_MAX, "/dev/shm/choir-mpi-XXXXXX");
  int count = 0;
  for (int i = 0; i < FOLDERS; ++i) {
    bool is_free = !getenv(variables[i][0]) && !getenv(variables[i][1]);
    if (is_free && mkdtemp(launch->paths[i]))
      launch->folders[count++] = launch->paths[i];
    else
      launch->paths[i][0] = 0;
  }
}

static void fill_variables(mpi_launch_t* launch) {
  char** entries = launch->variables;
  for (char** entry = environ; *entry; ++entry) *entries++ = *entry;
  *entries++ = launch->mark;
  for (int i = 0; i < FOLDERS; ++i) {
    for (int version = 0; version < 2 && launch->paths[i][0]; ++version) {
      char* text = launch->texts[i][version];
      const size_t bytes = sizeof(launch->texts[i][version]);
      choir__text_append(text, bytes, variables[i][version]);
      choir__text_append(text, bytes, "=");
      choir__text_append(text, bytes, launch->paths[i]);
      *entries++ = text;
    }
  }
}

// ---- Watching ----

static void note_event(mpi_launch_t* launch, const choir_guard_event_t* event) {
  if (event->kind == CHOIR_GUARD_SIGNAL && !launch->interrupted)
    launch->interrupted = event->status;
  if (event->child != 0) return;
  if (event->kind == CHOIR_GUARD_STARTED) launch->pid = event->pid;
  if (event->kind == CHOIR_GUARD_NOT_STARTED)
    launch->failure =
        CHOIR_ERROR(UNAVAILABLE, "launch: fork: %s", strerror(event->status));
  if (event->kind != CHOIR_GUARD_ENDED) return;
  launch->ended = true;
  launch->wait_status = event->status;
}

typedef struct process_s {
  char state;
  pid_t parent;
  int exit_code;  // of a zombie, as waitpid gives it
} process_t;

static bool read_process(pid_t pid, process_t* out_process) {
  char path[64], text[1024];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  FILE* file = fopen(path, "re");
  if (!file) return false;
  size_t bytes = fread(text, 1, sizeof(text) - 1, file);
  fclose(file);
  text[bytes] = 0;
  const char* fields = strrchr(text, ')');
  if (!fields ||
      sscanf(fields, ") %c %d", &out_process->state, &out_process->parent) != 2)
    return false;
  const char* last = strrchr(text, ' ');
  out_process->exit_code = last ? atoi(last) : 0;
  return true;
}

// The rank that a process is, by its environment; -1: none.
static int rank_of(const mpi_launch_t* launch, pid_t pid) {
  static const char name[] = "OMPI_COMM_WORLD_RANK=";
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
  FILE* file = fopen(path, "re");
  if (!file) return -1;
  char* entry = NULL;
  size_t entry_bytes = 0;
  int rank = -1;
  while (rank < 0 && getdelim(&entry, &entry_bytes, 0, file) > 0)
    if (!strncmp(entry, name, sizeof(name) - 1))
      rank = atoi(entry + sizeof(name) - 1);
  free(entry);
  fclose(file);
  return rank < launch->config->workers ? rank : -1;
}

// Notes which ranks there are, and whether mpiexec has locked itself up: then
// it leaves ranks that failed unreaped. One that waits for a slow reader of its
// output after a good end is left alone.
static void look(mpi_launch_t* launch) {
  for (int r = 0; r < launch->config->workers; ++r) launch->ranks[r].state = 0;
  bool has_children = false;
  bool has_failed = false;
  bool had_children = launch->had_children;
  DIR* proc = opendir("/proc");
  if (!proc) return;
  for (struct dirent* entry; (entry = readdir(proc));) {
    pid_t pid = atoi(entry->d_name);
    process_t process;
    if (pid <= 0 || !read_process(pid, &process) ||
        process.parent != launch->pid)
      continue;
    has_children = has_children || process.state != 'Z';
    has_failed = has_failed || (process.state == 'Z' && process.exit_code);
    for (int r = 0; r < launch->config->workers; ++r)
      if (launch->ranks[r].pid == pid) launch->ranks[r].state = process.state;
    int rank = rank_of(launch, pid);
    if (rank >= 0) launch->ranks[rank] = (rank_t){pid, process.state};
  }
  closedir(proc);
  double now = choir_clock_seconds();
  launch->had_children = had_children || has_children;
  if (has_children || !had_children || launch->childless_since == 0)
    launch->childless_since = now;
  if (now - launch->childless_since < hang_seconds) return;
  launch->hangs = has_failed;
  choir_guard_end_orphans(&launch->guard, launch->config->grace);
}

// ---- Reporting ----

static void append(mpi_launch_t* launch, const char* more) {
  choir__text_append(launch->report->message, sizeof(launch->report->message),
                     more);
}

static void append_signal(mpi_launch_t* launch, int number) {
  char text[96];
  snprintf(text, sizeof(text), "signal %d (%s)", number, strsignal(number));
  append(launch, text);
}

// Those that mpiexec reaped before it locked itself up ended before the others.
static void append_first(mpi_launch_t* launch) {
  const char* before = " after the end of ";
  for (int r = 0; r < launch->config->workers; ++r) {
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
  choir_launch_report_t* report = launch->report;
  if (launch->interrupted) {
    report->exit_status = 128 + launch->interrupted;
    append(launch, "interrupted by ");
    append_signal(launch, launch->interrupted);
  } else if (launch->guard.was_killed) {
    report->exit_status = 1;
    append(launch, "the guard of mpiexec was killed");
  } else {
    char text[128];
    snprintf(text, sizeof(text), "mpiexec (host %s, pid %d)", launch->host,
             (int)launch->pid);
    if (launch->hangs) {
      report->exit_status = 1;
      append(launch, text);
      append(launch, " hung");
      append_first(launch);
      append(launch, " and was killed");
    } else if (WIFSIGNALED(launch->wait_status)) {
      report->exit_status = 128 + WTERMSIG(launch->wait_status);
      append(launch, text);
      append(launch, " was killed by ");
      append_signal(launch, WTERMSIG(launch->wait_status));
    } else {
      report->exit_status = WEXITSTATUS(launch->wait_status);
      return;
    }
  }
  append(launch, launch->guard.is_stuck
                     ? "; some of the ranks' processes do not end (the kernel "
                       "keeps them)"
                     : "; all ranks were ended");
}

// ---- The whole ----

static void watch(mpi_launch_t* launch) {
  choir_guard_event_t event;
  double look_at = 0;
  while (!launch->ended && !launch->interrupted && !launch->failure &&
         !launch->hangs && !launch->guard.is_over) {
    choir_guard_wait(&launch->guard, look_seconds, &event);
    note_event(launch, &event);
    if (launch->pid && !launch->ended && choir_clock_seconds() > look_at) {
      look(launch);
      look_at = choir_clock_seconds() + look_seconds;
    }
  }
  bool by_terminal =
      launch->interrupted == SIGINT || launch->interrupted == SIGHUP;
  double end = choir_clock_seconds() + (by_terminal ? terminal_seconds : 0);
  for (double left; !launch->ended && !launch->guard.is_over &&
                    (left = end - choir_clock_seconds()) > 0;) {
    choir_guard_wait(&launch->guard, left, &event);
    note_event(launch, &event);
  }
  const double grace = launch->config->grace;
  choir_guard_end(&launch->guard, launch->hangs ? 0 : grace + mpiexec_grace,
                  grace);
  while (!launch->guard.is_over) choir_guard_wait(&launch->guard, 1, &event);
}

static choir_status_t run(mpi_launch_t* launch) {
  choir_comm_id_t mark;
  CHOIR_TRY(choir_comm_id_make(&mark));
  snprintf(launch->mark, sizeof(launch->mark), CHOIR_LAUNCH_MARK "=%s",
           mark.text);
  const ssize_t length =
      readlink("/proc/self/exe", launch->program, PATH_MAX - 1);
  if (length < 0)
    return CHOIR_ERROR(UNAVAILABLE, "launch: /proc/self/exe: %s",
                       strerror(errno));
  if (gethostname(launch->host, sizeof(launch->host) - 1))
    strcpy(launch->host, "?");
  make_folders(launch);
  fill_words(launch);
  fill_variables(launch);
  const choir_guard_child_t child = {.path = "mpiexec",
                                     .argv = launch->words,
                                     .environment = launch->variables};
  const choir_guard_config_t config = {.children = &child,
                                       .count = 1,
                                       .inherited_fd = -1,
                                       .mark = launch->mark,
                                       .folders = launch->folders};
  CHOIR_TRY(choir_guard_start(&config, &launch->guard));
  watch(launch);
  choir_guard_finish(&launch->guard);
  if (launch->failure) return launch->failure;
  // Of the child that finds no such program.
  if (WIFEXITED(launch->wait_status) && WEXITSTATUS(launch->wait_status) == 127)
    return CHOIR_ERROR(UNAVAILABLE,
                       "launch: there is no mpiexec; it comes with Open MPI "
                       "(Debian: openmpi-bin)");
  report(launch);
  return NULL;
}

choir_status_t choir_launch_mpiexec(const choir_launch_config_t* config,
                                    choir_launch_report_t* out_report) {
  if (!out_report)
    return CHOIR_ERROR(INVALID_ARGUMENT, "launch: out_report is NULL");
  memset(out_report, 0, sizeof(*out_report));
  out_report->failed_rank = -1;
  CHOIR_TRY(choir__launch_check(config));
  size_t words = MPIEXEC_WORDS + count_words(config->argv) + 1;
  size_t variables_count = count_words(environ) + 1 + 2 * FOLDERS + 1;
  size_t pointers = (words + variables_count) * sizeof(char*);
  size_t bytes = sizeof(mpi_launch_t) + pointers +
                 (size_t)config->workers * sizeof(rank_t);
  choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, bytes, "launch", &memory));
  mpi_launch_t* launch = memory;
  launch->config = config;
  launch->report = out_report;
  launch->words = (char**)(void*)(launch + 1);
  launch->variables = launch->words + words;
  launch->ranks = (rank_t*)(void*)(launch->variables + variables_count);
  choir_status_t status = run(launch);
  choir_deallocate(allocator, memory, bytes);
  return status;
}
