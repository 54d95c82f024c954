// SPDX-License-Identifier: Apache-2.0
#include "examples/dist_main.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char* program;  // its name, first in every message

static void log_to_stderr(void* self, choir_log_level_t level,
                          const char* subsystem, const char* message) {
  (void)self;
  (void)level;
  fprintf(stderr, "%s: %s: %s\n", program, subsystem, message);
}

static int fail(choir_status_t status, int exit_status) {
  fprintf(stderr, "%s: %s\n", program, choir_status_message(status));
  choir_status_free(status);
  return exit_status;
}

// ---- A worker ----

// Open MPI ends all ranks with SIGTERM when one dies and tells little more than
// its number. So a rank that it ends says what it was doing, and who sent the
// signal. Only calls that are safe in a handler.
static struct {
  choir_comm_t** comm;  // NULL: not joined
  bool is_rank;         // by another launcher than this program
  char rank[160];       // "rank 0 (host h, pid 12)"
  char text[1024];
} ended;

// Whether mpiexec, or what sets the names of choir_comm_config_init, started
// it.
static choir_status_t read_world(void) {
  choir_comm_config_t config;
  CHOIR_TRY(choir_comm_config_init(&config));
  snprintf(ended.rank, sizeof(ended.rank), "rank %d", config.rank);
  ended.is_rank = config.size > 1 || getenv("OMPI_COMM_WORLD_SIZE");
  return NULL;
}

static void say(const char* more) {
  size_t used = strlen(ended.text);
  while (*more && used + 2 < sizeof(ended.text)) ended.text[used++] = *more++;
  ended.text[used] = 0;
}

static const char* number_text(long number, char text[24]) {
  char* digit = text + 23;
  *digit = 0;
  do *--digit = (char)('0' + number % 10);
  while (number /= 10);
  return digit;
}

// A sender of another pid namespace has no number here.
static void say_sender(const siginfo_t* info) {
  if (info->si_pid == 0) return;
  char number[24], path[40] = "/proc/", name[32];
  const char* pid = number_text(info->si_pid, number);
  strcat(strcat(path, pid), "/comm");
  // NOLINTBEGIN(bugprone-signal-handler): open, read and close are safe.
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = fd < 0 ? 0 : read(fd, name, sizeof(name));
  if (fd >= 0) close(fd);
  // NOLINTEND(bugprone-signal-handler)
  if (bytes > 1) {
    name[bytes - 1] = 0;  // a newline
    say(" from ");
    say(name);
    say(" (pid ");
    say(pid);
    say(")");
  } else {
    say(" from process ");
    say(pid);
  }
}

static void on_terminate(int number, siginfo_t* info, void* context) {
  (void)context;
  say(program);
  say(": ");
  say(ended.rank);
  say(" was ended by signal 15 (Terminated)");
  say_sender(info);
  // Made for signal handlers. NOLINTNEXTLINE(bugprone-signal-handler)
  const char* activity = ended.comm ? choir_comm_activity(*ended.comm) : "";
  if (activity[0]) {
    say(" in ");
    say(activity);
  }
  const size_t bytes = strlen(ended.text);
  ended.text[bytes] = '\n';
  if (write(STDERR_FILENO, ended.text, bytes + 1) < 0) _exit(128 + number);
  _exit(128 + number);
}

static void watch_terminate(void) {
  // As every other message names this host (choir_comm_peer).
  const char* host = getenv("CHOIR_HOST");
  char own[72] = "?";
  if (!host || !host[0]) {
    gethostname(own, sizeof(own) - 1);
    host = own;
  }
  const size_t length = strlen(ended.rank);
  snprintf(ended.rank + length, sizeof(ended.rank) - length,
           " (host %s, pid %d)", host, (int)getpid());
  struct sigaction action = {.sa_sigaction = on_terminate,
                             .sa_flags = SA_SIGINFO};
  sigaction(SIGTERM, &action, NULL);
}

static choir_status_t join(const train_options_t* options,
                           choir_comm_t** out_comm) {
  *out_comm = NULL;
  choir_comm_config_t config;
  CHOIR_TRY(choir_comm_config_init(&config));
  config.backend = train_comm_names[options->comm];
  config.deadline = options->deadline;
  config.silence = options->silence;
  return choir_comm_create(&config, out_comm);
}

static choir_status_t work(const train_task_t* task,
                           const train_options_t* options) {
  choir_comm_t* comm = NULL;
  // An elastic run has another use of that signal.
  if (ended.is_rank && !options->elastic) watch_terminate();
  CHOIR_TRY(join(options, &comm));
  ended.comm = &comm;
  // Every rank would say the same, but where rank 0 may be lost.
  if (options->elastic || choir_comm_rank(comm) == 0)
    choir_log_set_sink(log_to_stderr, NULL, CHOIR_LOG_WARNING);
  choir_status_t status = trainer_run(task, options, &comm);
  if (status)
    choir_comm_abort(comm, choir_status_message(status));
  else if (comm)
    status = choir_comm_finalize(comm);
  if (status && ended.is_rank)
    status =
        choir_status_annotate(status, __FILE__, __LINE__, "%s",
                              choir_comm_peer(comm, choir_comm_rank(comm)));
  ended.comm = NULL;
  choir_log_set_sink(NULL, NULL, CHOIR_LOG_ERROR);
  choir_comm_release(comm);
  return status ? status : choir_comm_shutdown();
}

static int run_worker(const train_task_t* task,
                      const train_options_t* options) {
  choir_status_t status = work(task, options);
  if (!status) return 0;
  if (!choir_launch_is_worker()) return fail(status, 1);
  // The launcher tells it, once for all workers.
  choir_launch_note_failure(choir_status_code(status),
                            choir_status_message(status));
  choir_status_free(status);
  return 1;
}

// ---- The launcher ----

static int end_launch(choir_status_t status,
                      const choir_launch_report_t* report) {
  if (status) return fail(status, 1);
  if (report->message[0]) fprintf(stderr, "%s: %s\n", program, report->message);
  return report->exit_status;
}

static int launch_spawn(const train_options_t* options, char** argv) {
  choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
  config.argv = argv;
  config.workers = (int32_t)options->workers;
  config.comm = train_comm_names[options->comm];
  config.elastic = options->elastic;
  choir_launch_report_t report;
  choir_status_t status = choir_launch_run(&config, &report);
  return end_launch(status, &report);
}

// Whether argv[index] is one of the flags that are the launcher's alone; if
// so, *out_words is how many words it takes.
static bool is_launchers(char** argv, int index, int* out_words) {
  static const char* const names[] = {"--workers", "--launcher"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    const size_t length = strlen(names[i]);
    if (strncmp(argv[index], names[i], length) != 0) continue;
    *out_words = argv[index][length] == '=' ? 1 : 2;
    return argv[index][length] == '=' || argv[index][length] == 0;
  }
  return false;
}

// By mpiexec, which starts this program again with the other flags.
static int launch_mpi(const train_options_t* options, int argc, char** argv) {
  char** words = calloc((size_t)argc + 1, sizeof(char*));
  if (!words)
    return fail(CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a command line"), 1);
  int count = 0;
  words[count++] = argv[0];
  for (int i = 1, taken = 1; i < argc; i += taken) {
    taken = 1;
    if (!is_launchers(argv, i, &taken)) words[count++] = argv[i];
  }
  choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
  config.argv = words;
  config.workers = (int32_t)options->workers;
  choir_launch_report_t report;
  choir_status_t status = choir_launch_mpiexec(&config, &report);
  free(words);
  return end_launch(status, &report);
}

static choir_status_t check_elastic(const train_options_t* options) {
  if (!options->elastic) return NULL;
  if (getenv("OMPI_COMM_WORLD_SIZE") || options->launcher == TRAIN_LAUNCHER_MPI)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--elastic is not for workers of mpiexec, which ends "
                       "all when one is killed");
  const char* other = options->timeline        ? "--timeline"
                      : options->trace_digests ? "--trace-digests"
                      : options->plan          ? "--plan"
                      : options->balance       ? "--balance"
                      : options->shares        ? "--shares"
                                               : NULL;
  if (options->precision == TRAIN_PRECISION_AUTO) other = "--precision auto";
  if (!other) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s is of the workers that a run begins with; not with "
                     "--elastic",
                     other);
}

static void print_help(const train_task_t* task, const train_flags_t* flags) {
  printf(
      "usage: %s [--FLAG VALUE]...\n\n"
      "%s with several workers: started\n"
      "by this program, or by mpiexec -n N %s.\n"
      "Data: %s.\n\n",
      program, task->what, program, task->data);
  train_options_print_flags(flags);
}

int dist_main(const char* name, const train_task_t* task, int argc,
              char** argv) {
  program = name;
  train_options_t options;
  const train_flags_t flags = train_task_flags(task, &train_dist_options_def);
  choir_status_t status = train_options_parse(&flags, argc, argv, &options);
  if (status) return fail(status, 2);
  if (options.help) {
    print_help(task, &flags);
    return 0;
  }
  const choir_strategy_def_t* strategy = NULL;
  choir_strategy_config_t settings;
  status = train_options_strategy(&options, &strategy, &settings);
  if (status) return fail(status, 2);
  trainer_enter_users_folder();
  if (choir_launch_is_worker()) return run_worker(task, &options);
  status = read_world();
  if (!status) status = check_elastic(&options);
  if (status) return fail(status, 2);
  if (ended.is_rank) {
    if (train_options_given(argc, argv, "workers") ||
        train_options_given(argc, argv, "launcher"))
      return fail(CHOIR_ERROR(INVALID_ARGUMENT,
                              "--workers and --launcher are not for a program "
                              "under mpiexec or another launcher, which says "
                              "how many there are"),
                  2);
    return run_worker(task, &options);
  }
  if (options.launcher == TRAIN_LAUNCHER_SPAWN &&
      strcmp(train_comm_names[options.comm], "mpi") == 0)
    return fail(CHOIR_ERROR(INVALID_ARGUMENT,
                            "--comm mpi needs --launcher mpi (or mpiexec "
                            "before the program)"),
                2);
  if (options.launcher == TRAIN_LAUNCHER_MPI)
    return launch_mpi(&options, argc, argv);
  return launch_spawn(&options, argv);
}
