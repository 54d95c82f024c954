// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_BENCH_BENCH_FLAGS_H_
#define CHOIR_BENCH_BENCH_FLAGS_H_

#include "core/field.h"

// Reads "--name value" pairs into a struct, which begins with the defaults of
// its table. INVALID_ARGUMENT or NOT_FOUND name the flag. Texts are borrowed
// from argv.
choir_status_t bench_flags_parse(const choir_struct_def_t* def, int argc,
                                 char** argv, void* options) CHOIR_NODISCARD;

#endif  // CHOIR_BENCH_BENCH_FLAGS_H_
