// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAINER_H_
#define CHOIR_EXAMPLES_TRAINER_H_

#include <signal.h>

#include "examples/train_options.h"

// One worker's whole run of the MNIST examples: data, model, epochs, reports
// (rank 0 only, on stdout) and checkpoints. comm NULL: the only worker. All
// ranks pass the same options. Not thread-safe; once per process.
choir_status_t trainer_run(const train_options_t* options, choir_comm_t* comm)
    CHOIR_NODISCARD;

// A signal's number, set by its handler, makes the run end after the batch at
// hand with ABORTED.
extern volatile sig_atomic_t trainer_interrupted;

// `bazel run` starts programs in a folder of its own: goes back to the user's,
// from which paths in flags count. Call first.
void trainer_enter_users_folder(void);

#endif  // CHOIR_EXAMPLES_TRAINER_H_
