// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_BALANCE_H_
#define CHOIR_EXAMPLES_BALANCE_H_

#include "examples/trainer.h"

// Collective: measures how fast each rank trains on the next batch of `loader`
// and makes *out_shares (malloc'ed text of io/shares.h, the same on all ranks)
// of it: of all samples of a step so many for each rank that all end at about
// the same time. The steps are a rehearsal, with a model of their own and no
// exchange, so that nobody waits for others and the run has seen nothing of it.
// Rank 0 prints one line, unless options->quiet.
choir_status_t balance_measure(const train_task_t* task,
                               const train_options_t* options,
                               choir_comm_t* comm, choir_device_t* device,
                               choir_loader_t* loader, char** out_shares)
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_BALANCE_H_
