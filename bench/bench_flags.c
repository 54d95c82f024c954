// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_flags.h"

#include <string.h>

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
