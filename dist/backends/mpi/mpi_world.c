// SPDX-License-Identifier: Apache-2.0
// Finding libchoir_mpi.so, and MPI's life in this process.
//
// MPI_Init and MPI_Finalize block without limit, so a thread of their own
// runs them and others wait for it with a deadline. It is also the one thread
// that MPI wants both calls to come from. In between it answers ranks that wait
// for this one to end.
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread_backend.h"
#include "dist/backends/mpi/mpi_internal.h"
#include "dist/trusted_path_internal.h"

// A rank that waits asks at most four times a second.
#define ANSWER_SECONDS 0.1
// How long a rank that failed after another one waits to be ended.
#define FOLLOWER_SECONDS 5.0

typedef enum world_state_e {
  WORLD_NEW,
  WORLD_STARTING,
  WORLD_READY,
  WORLD_FAILED,
  WORLD_FINALIZING,
  WORLD_OVER,
} world_state_t;

static struct {
  pthread_mutex_t mutex;  // of this struct; not of MPI's calls
  pthread_cond_t changed;
  world_state_t state;
  int code;
  bool attached;
  atomic_int pid;
  int32_t last_context;  // id that was taken
  void (*leave_all)(void);
  double deadline;
  double silence;
  choir_mpi_world_t world;
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER,
             .changed = PTHREAD_COND_INITIALIZER,
             .world = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

static atomic_bool skips_finalize;

void choir_mpi_skip_finalize(void) { atomic_store(&skips_finalize, true); }

// Where a communicator broke a peer may be dead, and MPI_Finalize would wait
// for it.
static bool may_finalize(void) {
  return !atomic_load(&skips_finalize) && !choir__comm_any_broke();
}

// ---- The plugin ----

static const char plugin_name[] = "libchoir_mpi.so";

typedef struct search_s {
  void* handle;
  char tried[1200];
} search_t;

static void note_tried(search_t* search, const char* path, const char* why) {
  const char* const parts[] = {search->tried[0] ? "; " : "", path,
                               why ? " (" : "", why ? why : "", why ? ")" : ""};
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); ++i)
    choir__text_append(search->tried, sizeof(search->tried), parts[i]);
}

// Fails if there is a file that does not load: a user looks for Open MPI then,
// not for the file.
static choir_status_t try_path(search_t* search, const char* path) {
  // Open MPI's own plugins look for its symbols globally.
  search->handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (search->handle) return NULL;
  const char* why = dlerror();
  if (!access(path, F_OK))
    return CHOIR_ERROR(UNAVAILABLE,
                       "%s does not load (%s); it needs Open MPI 4 or 5 "
                       "(Debian: openmpi-bin)",
                       path, why ? why : "?");
  note_tried(search, path, NULL);
  return NULL;
}

// A place that the user did not name: what lies there runs with the user's
// rights, so it must be the user's or root's.
static choir_status_t try_place(search_t* search, const char* path) {
  char real[PATH_MAX];
  if (search->handle) return NULL;
  if (!realpath(path, real)) {
    note_tried(search, path, NULL);
    return NULL;
  }
  choir_status_t status = choir__path_check_trusted(real);
  if (!status) return try_path(search, real);
  note_tried(search, path, choir_status_message(status));
  choir_status_free(status);
  return NULL;
}

// The folder of the file that holds Choir's code: libchoir.so, or a program.
static bool own_folder(char folder[PATH_MAX]) {
  Dl_info info;
  struct link_map* map = NULL;
  if (!dladdr1((const void*)&process, &info, (void**)&map, RTLD_DL_LINKMAP) ||
      !map)
    return false;
  // A program has no name there; argv[0] is whatever the caller says.
  if (!realpath(map->l_name[0] ? map->l_name : "/proc/self/exe", folder))
    return false;
  char* slash = strrchr(folder, '/');
  if (slash) *slash = 0;
  return slash != NULL;
}

static choir_status_t load_shim(const choir_mpi_shim_t** out_shim) {
  *out_shim = NULL;
  search_t search = {0};
  // $CHOIR_MPI_LIBRARY: a file that is loaded in place of libchoir_mpi.so. Not
  // set: the one beside libchoir.so or the program, else in ../lib.
  const char* named = getenv("CHOIR_MPI_LIBRARY");
  char folder[PATH_MAX];
  if (named && named[0]) {
    CHOIR_TRY(try_path(&search, named));
  } else if (own_folder(folder)) {
    // Beside it; or, of a program in PREFIX/bin, in PREFIX/lib.
    static const char* const places[] = {"", "../lib/"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); ++i) {
      char path[PATH_MAX + 64];
      snprintf(path, sizeof(path), "%s/%s%s", folder, places[i], plugin_name);
      CHOIR_TRY(try_place(&search, path));
    }
  }
  if (!search.handle)
    return CHOIR_ERROR(UNAVAILABLE,
                       "%s was not found; tried %s; it comes with "
                       "Choir and needs Open MPI (Debian: openmpi-bin), or set "
                       "CHOIR_MPI_LIBRARY to its path",
                       plugin_name, search.tried);
  choir_mpi_shim_function_t function;
  void* symbol = dlsym(search.handle, CHOIR_MPI_SHIM_SYMBOL);
  memcpy(&function, &symbol, sizeof(function));
  const choir_mpi_shim_t* shim = symbol ? function() : NULL;
  if (!shim || shim->version != CHOIR_MPI_SHIM_VERSION)
    return CHOIR_ERROR(UNAVAILABLE, "%s is of another version of Choir",
                       plugin_name);
  *out_shim = shim;
  return NULL;
}

// ---- Start and end ----

static void pause_shortly(void) {
  struct timespec pause = {0, 500000};
  nanosleep(&pause, NULL);
}

// Until the copy of MPI_COMM_WORLD is there on all ranks.
static int open_world(const choir_mpi_shim_t* shim) {
  int done = 0;
  for (;;) {
    int code = shim->open_world(&done);
    if (code || done) return code;
    pause_shortly();
  }
}

static void set_state(world_state_t state) {
  process.state = state;
  pthread_cond_broadcast(&process.changed);
}

// With process.mutex held.
static bool wait_state_to_leave(world_state_t state, double seconds) {
  const double whole = choir_clock_seconds() + seconds;
  struct timespec end = {.tv_sec = (time_t)whole};
  end.tv_nsec = (long)((whole - (double)end.tv_sec) * 1e9);
  while (process.state == state)
    if (pthread_cond_clockwait(&process.changed, &process.mutex,
                               CLOCK_MONOTONIC, &end) == ETIMEDOUT)
      return process.state != state;
  return true;
}

static void* owner_main(void* unused) {
  (void)unused;
  choir_mpi_world_t* world = &process.world;
  int code = world->shim->init();
  if (!code) code = open_world(world->shim);
  pthread_mutex_lock(&process.mutex);
  process.code = code;
  set_state(code ? WORLD_FAILED : WORLD_READY);
  while (process.state != WORLD_FINALIZING) {
    wait_state_to_leave(process.state, ANSWER_SECONDS);
    if (process.state != WORLD_READY) continue;
    pthread_mutex_unlock(&process.mutex);
    choir_mpi_end_answer(world);
    pthread_mutex_lock(&process.mutex);
  }
  pthread_mutex_unlock(&process.mutex);
  pthread_mutex_lock(&world->mutex);
  choir_mpi_end_close(world);
  world->shim->finalize();
  pthread_mutex_unlock(&world->mutex);
  pthread_mutex_lock(&process.mutex);
  set_state(WORLD_OVER);
  pthread_mutex_unlock(&process.mutex);
  return NULL;
}

static choir_status_t finalize(double seconds) {
  set_state(WORLD_FINALIZING);
  if (wait_state_to_leave(WORLD_FINALIZING, seconds)) return NULL;
  char ranks[512];
  choir_mpi_describe_ranks(ranks, sizeof(ranks));
  return CHOIR_ERROR(TIMEOUT,
                     "the end of the program: MPI_Finalize did not return "
                     "within %.1f s%s",
                     seconds, ranks);
}

choir_status_t choir_mpi_world_close(void) {
  // A forked child has the threads' locks as they were, and no threads.
  if (atomic_load(&process.pid) != (int)getpid()) return NULL;
  pthread_mutex_lock(&process.mutex);
  void (*const leave_all)(void) = process.leave_all;
  pthread_mutex_unlock(&process.mutex);
  if (leave_all) leave_all();
  choir_status_t status = NULL;
  pthread_mutex_lock(&process.mutex);
  if (process.state == WORLD_READY && !process.attached && may_finalize()) {
    pthread_mutex_unlock(&process.mutex);
    double waited = 0;
    status = choir_mpi_end_wait(&process.world, process.deadline,
                                process.silence, &waited);
    pthread_mutex_lock(&process.mutex);
    double left = process.deadline - waited;
    if (!status && process.state == WORLD_READY && may_finalize())
      status = finalize(left > 1 ? left : 1);
    // It was told; the program's exit does not wait again.
    if (status) choir_mpi_skip_finalize();
  }
  pthread_mutex_unlock(&process.mutex);
  return status;
}

// The runtime ends all ranks and tells how the first one ended. A rank that
// fails because a peer was lost must not be the first one: the peer's
// connection closes before the peer's host has told the runtime how it ended.
static void wait_for_runtime(void) {
  // $PMIX_RANK: set by Open MPI's runtime: a rank that fails after another one
  // waits to be ended by it.
  const bool has_runtime = getenv("PMIX_RANK") != NULL;
  const double end = choir_clock_seconds() + FOLLOWER_SECONDS;
  while (has_runtime && choir_clock_seconds() < end)
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

// For programs that do not call choir_comm_shutdown.
static void close_at_exit(int exit_status, void* unused) {
  (void)unused;
  if (atomic_load(&process.pid) != (int)getpid()) return;  // a forked child
  choir_status_free(choir_mpi_world_close());
  if (exit_status && choir__comm_is_follower()) wait_for_runtime();
}

static choir_status_t start_owner(double deadline) {
  set_state(WORLD_STARTING);
  pthread_t thread;
  choir_status_t status =
      choir__thread_start("choir-mpi", owner_main, NULL, &thread);
  if (status) {
    set_state(WORLD_NEW);
    return status;
  }
  pthread_detach(thread);
  if (wait_state_to_leave(WORLD_STARTING, deadline)) return NULL;
  char ranks[512];
  choir_mpi_describe_ranks(ranks, sizeof(ranks));
  return CHOIR_ERROR(TIMEOUT,
                     "MPI_Init did not return within %.1f s: not all ranks "
                     "that mpiexec started came here%s",
                     deadline, ranks);
}

static choir_status_t attach(double deadline) {
  const choir_mpi_shim_t* shim = process.world.shim;
  int level = shim->thread_level();
  if (level < CHOIR_MPI_THREAD_SERIALIZED)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "this program initialised MPI with a thread "
                       "level below MPI_THREAD_SERIALIZED; call "
                       "MPI_Init_thread with that or more, or let Choir "
                       "initialise MPI");
  process.attached = true;
  process.world.has_own_thread = level >= CHOIR_MPI_THREAD_MULTIPLE;
  double end = choir_clock_seconds() + deadline;
  for (int done = 0; !done;) {
    process.code = shim->open_world(&done);
    if (process.code) break;
    if (!done && choir_clock_seconds() > end)
      return CHOIR_ERROR(TIMEOUT,
                         "not all ranks of MPI_COMM_WORLD came here "
                         "within %.1f s",
                         deadline);
    if (!done) pause_shortly();
  }
  set_state(process.code ? WORLD_FAILED : WORLD_READY);
  return NULL;
}

static choir_status_t start_world(double deadline) {
  choir_mpi_world_t* world = &process.world;
  if (!world->shim) CHOIR_TRY(load_shim(&world->shim));
  if (world->shim->is_finalized())
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "MPI was finalized; it starts once");
  if (!atomic_exchange(&process.pid, (int)getpid()))
    on_exit(close_at_exit, NULL);
  if (world->shim->is_running()) {
    CHOIR_TRY(attach(deadline));
  } else {
    world->has_own_thread = true;
    CHOIR_TRY(start_owner(deadline));
  }
  if (process.state != WORLD_READY) {
    char text[256];
    world->shim->error_text(process.code, text, sizeof(text));
    return CHOIR_ERROR(UNAVAILABLE, "MPI_Init: %s", text);
  }
  world->rank = world->shim->rank();
  world->size = world->shim->size();
  process.deadline = process.silence = deadline;
  void* memory = NULL;
  choir_status_t status = choir_allocate(
      choir_allocator_default(), (size_t)world->size * sizeof(*world->received),
      "peers", &memory);
  world->received = memory;
  if (!status && !process.attached) status = choir_mpi_end_open(world);
  // A process starts MPI once.
  if (status) set_state(WORLD_FAILED);
  return status;
}

choir_status_t choir_mpi_world_open(double deadline, void (*leave_all)(void),
                                    choir_mpi_world_t** out_world) {
  *out_world = NULL;
  choir_status_t status = NULL;
  pthread_mutex_lock(&process.mutex);
  process.leave_all = leave_all;
  if (process.state == WORLD_NEW)
    status = start_world(deadline);
  else if (process.state == WORLD_STARTING || process.state == WORLD_FAILED)
    status = CHOIR_ERROR(FAILED_PRECONDITION, "MPI failed to start");
  else if (process.state != WORLD_READY || !process.world.shim->is_running())
    status = CHOIR_ERROR(FAILED_PRECONDITION, "MPI was finalized");
  pthread_mutex_unlock(&process.mutex);
  if (!status) *out_world = &process.world;
  return status;
}

void choir_mpi_world_note(const choir_comm_config_t* config,
                          const choir_comm_peer_t* peers) {
  pthread_mutex_lock(&process.mutex);
  process.deadline = config->deadline;
  process.silence = config->silence > 0 ? config->silence : config->deadline;
  pthread_mutex_unlock(&process.mutex);
  choir_mpi_end_name(&process.world, peers);
}

int32_t choir_mpi_world_next_context(void) {
  pthread_mutex_lock(&process.mutex);
  int32_t context = process.last_context + 1;
  pthread_mutex_unlock(&process.mutex);
  return context;
}

choir_status_t choir_mpi_world_take_context(uint64_t context) {
  // Open MPI's tags go up to 2^31.
  if (context >= INT32_MAX / CHOIR_MPI_TAGS)
    return CHOIR_ERROR(UNAVAILABLE, "MPI has no tags left");
  pthread_mutex_lock(&process.mutex);
  if ((int32_t)context > process.last_context)
    process.last_context = (int32_t)context;
  pthread_mutex_unlock(&process.mutex);
  return NULL;
}
