// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAIN_MEMORY_H_
#define CHOIR_EXAMPLES_TRAIN_MEMORY_H_

#include "choir.h"

// What a run takes of its host's memory, planned before it starts.

typedef struct train_memory_s {
  choir_model_t* model;  // with its updater
  const choir_loader_t* training;
  const choir_loader_t* evaluation;
  int32_t workers;  // on this host, alike
  // Bytes that were resident before the model was made: program and data.
  double before;
} train_memory_t;

// Resident memory of this process, in bytes.
double train_memory_resident(void);

// Plans a step of training and one of evaluation. OUT_OF_MEMORY, with the
// figures, where they do not fit beside what the host's memory holds already;
// prints: the figures on stdout.
choir_status_t train_memory_check(const train_memory_t* run, bool prints)
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_TRAIN_MEMORY_H_
