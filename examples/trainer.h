// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAINER_H_
#define CHOIR_EXAMPLES_TRAINER_H_

#include <limits.h>
#include <signal.h>

#include "examples/train_options.h"

// What there is to learn, by what, from what. A program is one of these and a
// main (see cifar.c). Static.
typedef struct train_task_s {
  const char* what;  // "Trains X on Y", for --help
  const char* data;  // what --data takes and what is taken without, for --help
  const choir_model_def_t* model;
  size_t model_bytes;  // of the model's `self`, which begins as zeros
  // (channels, height, width) of the images that the model takes; zeros: what
  // it takes is no image.
  int64_t image[3];
  // Samples that stay on one worker together; 0: the loader's default.
  int64_t micro_shard;
  // See train_flags_t.
  const char* const* absent_flags;
  const choir_struct_def_t* own_flags;
  void* own;
  void (*set_defaults)(train_options_t* options);
  // Sets what `self` has of the flags, after the data were opened and before
  // the model is made; NULL: nothing.
  void (*set_up)(const train_options_t* options, void* self);
  // Makes the optimizer with this learning rate. NULL: SGD.
  choir_status_t (*make_optimizer)(const train_options_t* options, double lr,
                                   choir_optimizer_t** out_optimizer);
  // With the new model, whose updater is set, on every worker alike: sets its
  // parameters and tries what `finish` writes to. NULL: nothing.
  choir_status_t (*begin)(const train_options_t* options, choir_model_t* model,
                          int32_t rank);
  // With the trained model, on every worker alike. Only rank 0 prints, if not
  // options->quiet, and writes. NULL: nothing.
  choir_status_t (*finish)(const train_options_t* options, choir_model_t* model,
                           int32_t rank);
  // Opens one split for the caller to release: of training samples the first
  // options->limit. `note` (TRAIN_NOTE_BYTES, "" at first) may be given a line
  // for the user to see.
  choir_status_t (*open_data)(const train_options_t* options,
                              choir_split_t split, char* note,
                              choir_dataset_t** out_dataset);
} train_task_t;
enum { TRAIN_NOTE_BYTES = 256 };

// The flags of a program that trains it.
train_flags_t train_task_flags(const train_task_t* task,
                               const choir_struct_def_t* def);
// A model of it on `device`, compiled for this data's samples, whose memory
// *out_self is for the caller to free after the model; and its optimizer.
choir_status_t train_task_make(const train_task_t* task,
                               const train_options_t* options,
                               choir_device_t* device,
                               const choir_dataset_t* data, double lr,
                               void** out_self, choir_model_t** out_model,
                               choir_optimizer_t** out_optimizer)
    CHOIR_NODISCARD;

// One worker's whole run: data, model, epochs, reports (rank 0 only, on stdout)
// and checkpoints. comm NULL: the only worker. Where workers are lost
// (options->elastic) the caller's *comm is replaced by that of those that are
// left; on a rank that leaves them (SIGTERM) by NULL. All ranks pass the same
// task and options. Not thread-safe; once per process.
choir_status_t trainer_run(const train_task_t* task,
                           const train_options_t* options, choir_comm_t** comm)
    CHOIR_NODISCARD;

// A signal's number, set by its handler, makes the run end after the batch at
// hand with ABORTED.
extern volatile sig_atomic_t trainer_interrupted;

// `bazel run` starts programs in a folder of its own: goes back to the user's,
// from which paths in flags count. Call first.
void trainer_enter_users_folder(void);

// Whether files can be written to the folder of `path`, which `flag` named.
choir_status_t trainer_check_folder(const char* flag, const char* path)
    CHOIR_NODISCARD;

// Where a file or folder that comes with Choir is, by its name in the tree: as
// seen from the tree's root, or beside the program that Bazel built. NOT_FOUND.
choir_status_t trainer_find_data(const char* own, char out_path[PATH_MAX])
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_TRAINER_H_
