// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAIN_MEASURE_H_
#define CHOIR_EXAMPLES_TRAIN_MEASURE_H_

#include "choir.h"

// What a run measures before its first step, by the next batch of a loader that
// is not the run's own. The model has its updater. Collective; comm NULL: one
// worker. Rank 0 prints one line, if `prints`.

// How fast each rank trains: *out_shares (malloc'ed text of io/shares.h, the
// same on all ranks) says of all samples of a step so many for each rank that
// all end at about the same time.
choir_status_t train_measure_shares(choir_model_t* model, choir_comm_t* comm,
                                    choir_loader_t* loader, bool prints,
                                    char** out_shares) CHOIR_NODISCARD;

// Sets the model's precision to the one in which rank 0 trains quicker, or,
// with a checkpoint to go on from that says one, to that.
choir_status_t train_measure_precision(choir_model_t* model, choir_comm_t* comm,
                                       choir_loader_t* loader,
                                       const char* resume, bool prints)
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_TRAIN_MEASURE_H_
