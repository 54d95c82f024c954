// SPDX-License-Identifier: Apache-2.0
// Trains a convolutional network on MNIST in one process; beside it,
// mnist_dist.c does the same with several.
#include <signal.h>
#include <stdio.h>

#include "examples/mnist_task.h"

static void log_to_stderr(void* self, choir_log_level_t level,
                          const char* subsystem, const char* message) {
  (void)self;
  (void)level;
  fprintf(stderr, "mnist: %s: %s\n", subsystem, message);
}

static int fail(choir_status_t status, int exit_status) {
  fprintf(stderr, "mnist: %s\n", choir_status_message(status));
  choir_status_free(status);
  return exit_status;
}

static void on_signal(int number) { trainer_interrupted = number; }

int main(int argc, char** argv) {
  train_options_t options;
  const train_flags_t flags = train_task_flags(&mnist_task, &train_options_def);
  choir_status_t status = train_options_parse(&flags, argc, argv, &options);
  if (status) return fail(status, 2);
  if (options.help) {
    printf("usage: mnist [--FLAG VALUE]...\n\n%s.\nData: %s.\n\n",
           mnist_task.what, mnist_task.data);
    train_options_print_flags(&flags);
    return 0;
  }
  trainer_enter_users_folder();
  choir_log_set_sink(log_to_stderr, NULL, CHOIR_LOG_WARNING);
  signal(SIGINT, on_signal);
  signal(SIGTERM, on_signal);
  status = trainer_run(&mnist_task, &options, NULL);
  if (status)
    return fail(status, trainer_interrupted ? 128 + trainer_interrupted : 1);
  return 0;
}
