// SPDX-License-Identifier: Apache-2.0
// The launcher may be a process with threads (Python with NumPy), of which the
// guard is a fork that never calls exec: it makes system calls and nothing
// else, as libc's locks may be held for ever in such a child.
#include "dist/guard_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/proc_internal.h"

// For processes that lost their parent when the launcher is gone: enough to
// clean up behind them (Python's resource tracker).
static const double lost_grace = 1;
// How long the launcher waits for processes that SIGKILL does not end.
static const double give_up_seconds = 10;
static const double pass_seconds = 0.02;

enum { ORPHANS = 4096, FOLDER_DEPTH = 16 };

typedef struct process_s {
  pid_t pid;          // 0: free
  int32_t child;      // -1: an orphan
  double term_since;  // 0: not signalled
} process_t;

typedef struct order_s {
  int32_t starts;      // a child; -1: it is an order to end
  bool ends_children;  // else what lost its parent alone
  double grace;
  double orphan_grace;
} order_t;

typedef struct state_s {
  const choir_guard_config_t* config;
  int socket;
  int signals;
  pid_t launcher_group;
  const sigset_t* mask;  // as children have it, as the next one
  const struct sigaction* child_action;
  process_t* processes;  // [config->count + ORPHANS]
  int32_t process_count;
  bool is_ending;          // children too
  bool is_ending_orphans;  // what lost its parent
  double ending_since;
  double grace;         // of the children
  double orphan_grace;  // of all others
} state_t;

// ---- Folders ----

static void remove_all(int parent, const char* name, int depth) {
  choir__folder_t folder;
  if (depth == FOLDER_DEPTH || !choir__folder_open(&folder, parent, name))
    return;
  for (const char* entry; (entry = choir__folder_next(&folder));) {
    if (!strcmp(entry, ".") || !strcmp(entry, "..")) continue;
    if (!unlinkat(folder.fd, entry, 0)) continue;
    remove_all(folder.fd, entry, depth + 1);
    unlinkat(folder.fd, entry, AT_REMOVEDIR);
  }
  choir__folder_close(&folder);
}

static void remove_folders(char* const* folders) {
  for (; folders && *folders; ++folders) {
    remove_all(AT_FDCWD, *folders, 0);
    rmdir(*folders);
  }
}

// ---- The guard's process ----

// And only waits to be reaped.
static bool has_ended(const choir__process_t* process) {
  return process->state == 'Z' || process->state == 'X';
}

static void tell(const state_t* state, int32_t kind, const process_t* process,
                 int32_t status) {
  choir_guard_event_t event = {
      .kind = kind,
      .child = process->child,
      .pid = process->pid,
      .status = status,
      .was_signalled = process->term_since > 0,
  };
  // Without a launcher there is nobody to tell.
  while (send(state->socket, &event, sizeof(event), MSG_NOSIGNAL) < 0 &&
         errno == EINTR)
    continue;
}

static process_t* find_process(state_t* state, pid_t pid) {
  for (int32_t i = 0; i < state->process_count; ++i)
    if (state->processes[i].pid == pid) return &state->processes[i];
  return NULL;
}

// NULL: there is no room to remember it.
static process_t* add_process(state_t* state, pid_t pid, int32_t child) {
  process_t* place = find_process(state, 0);
  if (!place && state->process_count == state->config->count + ORPHANS)
    return NULL;
  if (!place) place = &state->processes[state->process_count++];
  *place = (process_t){.pid = pid, .child = child};
  return place;
}

static void run_child(const state_t* state, int32_t index, pid_t guard) {
  const choir_guard_child_t* child = &state->config->children[index];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != guard) _exit(127);  // it died before the line above
  // A terminal's signals go to what the launcher started, as to itself.
  setpgid(0, state->launcher_group);
  for (int i = 0; i < 2; ++i)
    if (state->config->inherited_fds[i] >= 0)
      fcntl(state->config->inherited_fds[i], F_SETFD, 0);
  sigaction(SIGCHLD, state->child_action, NULL);
  sigprocmask(SIG_SETMASK, state->mask, NULL);
  execvpe(child->path, child->argv, child->environment);
  const process_t failed = {.pid = getpid(), .child = index};
  tell(state, CHOIR_GUARD_NOT_STARTED, &failed, errno);
  // exit 127: of a worker's process: its program could not be started.
  _exit(127);
}

static bool start_child(state_t* state, int32_t index) {
  const pid_t guard = getpid();
  const pid_t pid = _Fork();
  if (pid == 0) run_child(state, index, guard);
  const process_t failed = {.child = index};
  const process_t* process = pid < 0 ? NULL : add_process(state, pid, index);
  tell(state, process ? CHOIR_GUARD_STARTED : CHOIR_GUARD_NOT_STARTED,
       process ? process : &failed, process ? 0 : errno);
  return process;
}

// False when there are no children any more.
static bool reap(state_t* state) {
  for (;;) {
    int status = 0;
    pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (pid == 0) return true;
    if (pid < 0) return errno == EINTR;
    process_t unknown = {.pid = pid, .child = -1};
    process_t* process = find_process(state, pid);
    if (!process) process = &unknown;
    if (WIFSTOPPED(status)) {
      tell(state, CHOIR_GUARD_STOPPED, process, status);
    } else if (WIFCONTINUED(status)) {
      tell(state, CHOIR_GUARD_CONTINUED, process, status);
    } else {
      tell(state, CHOIR_GUARD_ENDED, process, status);
      process->pid = 0;
    }
  }
}

// A child of this process: its id is not another's until it is reaped.
static void end_one(state_t* state, pid_t pid, double now) {
  process_t* process = find_process(state, pid);
  bool is_child = process && process->child >= 0;
  if (is_child && !state->is_ending) return;
  if (!process) process = add_process(state, pid, -1);
  double grace = is_child ? state->grace : state->orphan_grace;
  if (process && process->term_since == 0) {
    process->term_since = now;
    if (grace > 0) {
      kill(pid, SIGTERM);
      kill(pid, SIGCONT);  // a stopped one takes SIGTERM only when it runs
    }
  }
  // Trees whose processes all stay until SIGKILL must not take a grace for each
  // of their levels.
  if (!process || now - process->term_since >= grace ||
      now - state->ending_since >= 2 * grace)
    kill(pid, SIGKILL);
}

// One pass over all children; those that they leave behind are in the next.
static void end_children(state_t* state) {
  pid_t own = getpid();
  double now = choir_clock_seconds();
  choir__folder_t proc;
  choir__process_t process;
  if (!choir__processes_open(&proc)) return;
  while (choir__processes_next(&proc, &process))
    if (process.parent == own && !has_ended(&process))
      end_one(state, process.pid, now);
  choir__folder_close(&proc);
}

static void close_all_but(const int* kept, int count) {
  for (int fd = 0;;) {
    int next = INT_MAX;
    for (int i = 0; i < count; ++i)
      if (kept[i] >= fd && kept[i] < next) next = kept[i];
    if (next > fd) close_range((unsigned)fd, (unsigned)next - 1, 0);
    if (next == INT_MAX) return;
    fd = next + 1;
  }
}

// The reader of the launcher's output must not wait for this process. While it
// may have to start a child again, it keeps what such a child inherits.
static void close_files(const state_t* state) {
  const choir_guard_config_t* config = state->config;
  const int kept[] = {
      state->socket,           state->signals, STDIN_FILENO,
      STDOUT_FILENO,           STDERR_FILENO,  config->inherited_fds[0],
      config->inherited_fds[1]};
  const bool keeps = config->restarts && !state->is_ending;
  close_all_but(kept, keeps ? 7 : 2);
}

// False when the launcher is gone: then nobody waits for anything.
static bool take_order(state_t* state) {
  order_t order;
  ssize_t bytes = recv(state->socket, &order, sizeof(order), MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  bool has_launcher = bytes == (ssize_t)sizeof(order);
  if (has_launcher && order.starts >= 0) {
    if (!state->is_ending) start_child(state, order.starts);
    return true;
  }
  if (!has_launcher) order = (order_t){-1, true, 0, lost_grace};
  if (!state->is_ending) state->ending_since = choir_clock_seconds();
  state->is_ending_orphans = true;
  if (order.ends_children) state->grace = order.grace;
  state->is_ending = state->is_ending || order.ends_children;
  state->orphan_grace = order.orphan_grace;
  close_files(state);
  return has_launcher;
}

static void run_guard(state_t* state) {
  prctl(PR_SET_NAME, "choir-guard");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // What is sent to the launcher's group must not reach the guard.
  setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL);
  sigemptyset(&all);
  sigaddset(&all, SIGCHLD);
  state->signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
  for (int32_t i = 0; i < state->config->count; ++i)
    if (!start_child(state, i)) break;
  close_files(state);
  struct pollfd fds[2] = {{.fd = state->socket, .events = POLLIN},
                          {.fd = state->signals, .events = POLLIN}};
  bool has_children = true;
  while (has_children || !state->is_ending) {
    if (state->is_ending_orphans) end_children(state);
    poll(fds, 2, state->is_ending_orphans ? (int)(pass_seconds * 1e3) : -1);
    struct signalfd_siginfo info;
    while (read(state->signals, &info, sizeof(info)) > 0) continue;
    has_children = reap(state);
    if (fds[0].fd >= 0 && !take_order(state)) fds[0].fd = -1;
  }
  remove_folders(state->config->folders);
  const process_t none = {.child = -1};
  tell(state, CHOIR_GUARD_OVER, &none, 0);
  _exit(0);
}

// ---- The launcher's side ----

static void watched_signals(sigset_t* out_set) {
  sigemptyset(out_set);
  sigaddset(out_set, SIGINT);
  sigaddset(out_set, SIGTERM);
  sigaddset(out_set, SIGHUP);
}

static choir_status_t fork_guard(const choir_guard_config_t* config,
                                 choir_guard_t* guard) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets))
    return CHOIR_ERROR(UNAVAILABLE, "launch: socketpair: %s", strerror(errno));
  guard->socket = sockets[0];
  state_t state = {.config = config,
                   .socket = sockets[1],
                   .launcher_group = getpgrp(),
                   .mask = &guard->old_mask,
                   .child_action = &guard->old_child_action};
  size_t bytes = ((size_t)config->count + ORPHANS) * sizeof(process_t);
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    int error = errno;
    close(sockets[1]);
    return CHOIR_ERROR(OUT_OF_MEMORY, "launch: no memory for %zu bytes: %s",
                       bytes, strerror(error));
  }
  state.processes = memory;
  // Not fork(), whose handlers take locks.
  guard->pid = _Fork();
  if (guard->pid == 0) {
    close(sockets[0]);
    run_guard(&state);
  }
  int error = errno;
  munmap(memory, bytes);
  close(sockets[1]);
  if (guard->pid < 0)
    return CHOIR_ERROR(UNAVAILABLE, "launch: cannot start the guard: fork: %s",
                       strerror(error));
  return NULL;
}

choir_status_t choir_guard_start(const choir_guard_config_t* config,
                                 choir_guard_t* out_guard) {
  choir_guard_t* guard = out_guard;
  *guard = (choir_guard_t){.socket = -1, .config = config};
  sigset_t set;
  watched_signals(&set);
  sigprocmask(SIG_BLOCK, &set, &guard->old_mask);
  // Ignored children would leave no status behind.
  struct sigaction plain = {.sa_handler = SIG_DFL};
  sigaction(SIGCHLD, &plain, &guard->old_child_action);
  prctl(PR_GET_CHILD_SUBREAPER, &guard->was_subreaper);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  guard->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  choir_status_t status =
      guard->signals < 0
          ? CHOIR_ERROR(UNAVAILABLE, "launch: signalfd: %s", strerror(errno))
          : fork_guard(config, guard);
  if (!status) return NULL;
  choir_guard_finish(guard);
  remove_folders(config->folders);
  return status;
}

static void give_order(const choir_guard_t* guard, order_t order) {
  while (send(guard->socket, &order, sizeof(order), MSG_NOSIGNAL) < 0 &&
         errno == EINTR)
    continue;
}

void choir_guard_restart(choir_guard_t* guard, int32_t child) {
  give_order(guard, (order_t){.starts = child});
}

void choir_guard_end(choir_guard_t* guard, double grace, double orphan_grace) {
  double most = grace > orphan_grace ? grace : orphan_grace;
  guard->give_up_at = choir_clock_seconds() + 2 * most + give_up_seconds;
  give_order(guard, (order_t){-1, true, grace, orphan_grace});
}

void choir_guard_end_orphans(choir_guard_t* guard, double grace) {
  give_order(guard, (order_t){-1, false, 0, grace});
}

// Reads an event of the guard, whose last one says that all is over.
static void read_event(choir_guard_t* guard, choir_guard_event_t* event) {
  ssize_t bytes;
  do bytes = recv(guard->socket, event, sizeof(*event), 0);
  while (bytes < 0 && errno == EINTR);
  if (bytes != (ssize_t)sizeof(*event)) {
    guard->was_killed = true;
    *event = (choir_guard_event_t){.kind = CHOIR_GUARD_OVER, .child = -1};
  }
  if (event->kind == CHOIR_GUARD_STARTED)
    guard->config->children[event->child].pid = event->pid;
}

// Kills what has the run's mark in its environment and is not killed yet; how
// many there were.
static int kill_marked(const char* mark, pid_t killed[ORPHANS], int* count) {
  int found = 0;
  choir__folder_t proc;
  choir__process_t process;
  if (!choir__processes_open(&proc)) return 0;
  while (choir__processes_next(&proc, &process)) {
    char value[64];
    if (process.pid == getpid() || has_ended(&process) ||
        !choir__process_variable(&proc, &process, CHOIR_GUARD_MARK "=", value,
                                 sizeof(value)) ||
        strcmp(value, mark) != 0)
      continue;
    ++found;
    kill(process.pid, SIGKILL);
    if (*count < ORPHANS) killed[(*count)++] = process.pid;
  }
  choir__folder_close(&proc);
  return found;
}

// A process that is this one's child and was killed; its memory, and with it
// the mark, goes before it has ended.
static void reap_killed(pid_t pid, double end) {
  while (waitpid(pid, NULL, WNOHANG) == 0 && choir_clock_seconds() < end)
    poll(NULL, 0, 1);
}

// What lost its parent is this process's child now, and so to be reaped here.
static void end_without_guard(choir_guard_t* guard) {
  const choir_guard_config_t* config = guard->config;
  pid_t killed[ORPHANS];
  int count = 0;
  double end = choir_clock_seconds() + give_up_seconds;
  while (kill_marked(config->mark, killed, &count) > 0 &&
         choir_clock_seconds() < end)
    poll(NULL, 0, (int)(pass_seconds * 1e3));
  for (int32_t i = 0; i < config->count; ++i)
    if (config->children[i].pid > 0) reap_killed(config->children[i].pid, end);
  for (int i = 0; i < count; ++i) reap_killed(killed[i], end);
  remove_folders(config->folders);
}

void choir_guard_wait(choir_guard_t* guard, double seconds,
                      choir_guard_event_t* out_event) {
  *out_event = (choir_guard_event_t){.kind = CHOIR_GUARD_NOTHING};
  if (guard->is_over) {
    out_event->kind = CHOIR_GUARD_OVER;
    return;
  }
  struct pollfd fds[2] = {{.fd = guard->signals, .events = POLLIN},
                          {.fd = guard->socket, .events = POLLIN}};
  if (seconds < 0) seconds = 0;
  if (poll(fds, 2, (int)(seconds * 1e3) + 1) <= 0) {
    guard->is_stuck =
        guard->give_up_at > 0 && choir_clock_seconds() > guard->give_up_at;
    guard->is_over = guard->is_stuck;
    return;
  }
  struct signalfd_siginfo info;
  if (read(guard->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
    guard->was_interrupted = true;
    *out_event = (choir_guard_event_t){.kind = CHOIR_GUARD_SIGNAL,
                                       .child = -1,
                                       .status = (int32_t)info.ssi_signo};
    return;
  }
  if (fds[1].revents) read_event(guard, out_event);
  if (out_event->kind != CHOIR_GUARD_OVER) return;
  guard->is_over = true;
  while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) continue;
  if (guard->was_killed) end_without_guard(guard);
}

void choir_guard_finish(choir_guard_t* guard) {
  sigset_t set;
  watched_signals(&set);
  // A second Ctrl-C must not kill the program while it prints the report.
  struct timespec now = {0, 0};
  while (guard->was_interrupted && sigtimedwait(&set, NULL, &now) > 0) continue;
  prctl(PR_SET_CHILD_SUBREAPER, guard->was_subreaper);
  sigaction(SIGCHLD, &guard->old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &guard->old_mask, NULL);
  if (guard->signals >= 0) close(guard->signals);
  if (guard->socket >= 0) close(guard->socket);
}
