// SPDX-License-Identifier: Apache-2.0
// Open MPI keeps thousands of blocks and unloads the modules that took them, so
// that no suppression can name them: in processes that mpiexec started, the
// leak check is off. Address and undefined-behaviour checks stay on. Linked
// into programs and tests under --config=asan and --config=lsan.

#include <stdlib.h>

__attribute__((visibility("default"))) int __lsan_is_turned_off(void);

// NOLINTNEXTLINE(bugprone-reserved-identifier): LeakSanitizer asks by this
// name.
int __lsan_is_turned_off(void) {
  return getenv("OMPI_COMM_WORLD_RANK") != NULL;
}
