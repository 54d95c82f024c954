// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_BENCH_BENCH_PROGRAM_H_
#define CHOIR_BENCH_BENCH_PROGRAM_H_

#include "core/field.h"

// What the programs of this folder share.

// Reads "--name value" pairs into a struct, which begins with the defaults of
// its table. INVALID_ARGUMENT or NOT_FOUND name the flag. Texts are borrowed
// from argv.
choir_status_t bench_flags_parse(const choir_struct_def_t* def, int argc,
                                 char** argv, void* options) CHOIR_NODISCARD;
// "<program>: <message>" on stderr; frees the status, gives exit_status.
int bench_fail(const char* program, choir_status_t status, int exit_status);
// Whether a launcher (ours, mpiexec, or one that sets the variables of
// choir_comm_config_init) started this process as one of several.
bool bench_is_worker(void);
// Runs `workers` processes of this program to their end (dist/launch.h), which
// talk over `comm`; says what went wrong. Gives what main should return.
int bench_launch(const char* program, char** argv, int64_t workers,
                 const char* comm);

#endif  // CHOIR_BENCH_BENCH_PROGRAM_H_
