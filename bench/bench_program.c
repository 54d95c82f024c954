// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/comm.h"
#include "dist/launch.h"

choir_status_t bench_flags_parse(const choir_struct_def_t* def, int argc,
                                 char** argv, void* options) {
  choir_struct_init(def, options);
  for (int i = 1; i < argc; i += 2) {
    if (strncmp(argv[i], "--", 2) != 0 || i + 1 == argc)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "usage: '%s' is no flag with a value; --NAME VALUE is "
                         "needed",
                         argv[i]);
    CHOIR_TRY(choir_struct_set(def, options, argv[i] + 2, argv[i + 1]));
  }
  return choir_struct_check(def, options);
}

int bench_fail(const char* program, choir_status_t status, int exit_status) {
  fprintf(stderr, "%s: %s\n", program, choir_status_message(status));
  choir_status_free(status);
  return exit_status;
}

bool bench_is_worker(void) {
  choir_comm_config_t config = {0};
  // What is wrong with a variable, choir_comm_create tells again.
  choir_status_free(choir_comm_config_init(&config));
  return choir_launch_is_worker() || config.size > 1 ||
         getenv("OMPI_COMM_WORLD_SIZE");
}

int bench_launch(const char* program, char** argv, int64_t workers,
                 const char* comm) {
  choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
  config.argv = argv;
  config.workers = (int32_t)workers;
  config.comm = comm;
  choir_launch_report_t report;
  choir_status_t status = choir_launch_run(&config, &report);
  if (status) return bench_fail(program, status, 1);
  if (report.message[0]) fprintf(stderr, "%s: %s\n", program, report.message);
  return report.exit_status;
}
