// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAINER_H_
#define CHOIR_EXAMPLES_TRAINER_H_

#include <signal.h>

#include "examples/train_options.h"

// What there is to learn, by what, from what. A program is one of these and a
// main (see cifar.c). Static.
typedef struct train_task_s {
  const char* what;  // "Trains X on Y", for --help
  const char* data;  // what --data takes and what is taken without, for --help
  const choir_model_def_t* model;
  size_t model_bytes;  // of the model's `self`, which begins as zeros
  int64_t image[3];    // (channels, height, width) of what the model takes
  // Sets what `self` has of the flags, before the model is made; NULL: nothing.
  void (*set_up)(const train_options_t* options, void* self);
  train_set_defaults_t set_defaults;  // NULL: those of train_options.h
  // Opens one split for the caller to release: of training samples the first
  // options->limit. `note` (TRAIN_NOTE_BYTES, "" at first) may be given a line
  // for the user to see.
  choir_status_t (*open_data)(const train_options_t* options,
                              choir_split_t split, char* note,
                              choir_dataset_t** out_dataset);
} train_task_t;
enum { TRAIN_NOTE_BYTES = 256 };

// One worker's whole run: data, model, epochs, reports (rank 0 only, on stdout)
// and checkpoints. comm NULL: the only worker. All ranks pass the same task and
// options. Not thread-safe; once per process.
choir_status_t trainer_run(const train_task_t* task,
                           const train_options_t* options, choir_comm_t* comm)
    CHOIR_NODISCARD;

// A signal's number, set by its handler, makes the run end after the batch at
// hand with ABORTED.
extern volatile sig_atomic_t trainer_interrupted;

// `bazel run` starts programs in a folder of its own: goes back to the user's,
// from which paths in flags count. Call first.
void trainer_enter_users_folder(void);

#endif  // CHOIR_EXAMPLES_TRAINER_H_
