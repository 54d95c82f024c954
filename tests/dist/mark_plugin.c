// SPDX-License-Identifier: Apache-2.0
// A library that says that it was loaded.
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void mark(void) {
  const char* path = getenv("CHOIR_TEST_MARK");
  FILE* file = path ? fopen(path, "w") : NULL;
  if (file) fclose(file);
}
