// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAINER_INTERNAL_H_
#define CHOIR_EXAMPLES_TRAINER_INTERNAL_H_

#include <stdio.h>

#include "examples/train_log.h"
#include "examples/trainer.h"

// One worker's run, for the files that trainer_run consists of: trainer.c (the
// run itself) and those below.

typedef struct trainer_s {
  const train_task_t* task;
  const train_options_t* options;
  choir_comm_t* comm;  // NULL: alone
  choir_comm_t** callers_comm;
  int64_t generation;  // of the workers (choir_dist_opt_generation)
  int32_t rank;
  int32_t size;
  bool is_newcomer;  // it has come to a run under way
  choir_device_t* device;
  choir_dataset_t* training_data;
  choir_dataset_t* evaluation_data;
  choir_loader_t* training_loader;
  choir_loader_t* evaluation_loader;
  void* net;  // the model's `self`
  choir_model_t* model;
  choir_optimizer_t* optimizer;
  choir_dist_opt_t* dist_opt;
  choir_updater_t* updater;  // one of the two above, lent
  train_log_t* log;          // of rank 0, with --log-json
  train_times_t* times;      // [size], likewise on all ranks
  int64_t own_samples;       // that this rank took since the last report
  int64_t finished;          // step of the last round whose end is done
  int32_t finish_rank;       // as which it has done the task's finish; -1: none
  train_report_t result;     // of the round at hand
  choir_metrics_t metrics;   // this rank's, of training up to step
  int64_t metrics_step;
  choir_profile_t* profile;  // with --verbosity, --timeline or --log-json
  FILE* timeline;            // of rank 0
  bool wants_timeline;       // until it is written
  int64_t steps_run;         // by this process
  int64_t timeline_begin;    // steps [begin, end)
  int64_t timeline_end;
  bool has_told_plan;
  bool prints;
  bool has_bar;
  double bar_time;
} trainer_t;

// Of the run, that this worker's loader has given.
static inline int64_t trainer_steps_done(const trainer_t* trainer) {
  const choir_loader_position_t at =
      choir_loader_position(trainer->training_loader);
  return at.epoch * choir_loader_steps(trainer->training_loader) + at.step;
}

static inline int64_t trainer_last_step(const trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  return options->steps
             ? options->steps
             : options->epochs * choir_loader_steps(trainer->training_loader);
}

// trainer_setup.c
// Opens all of it but the profile; what is there is torn down in any case.
choir_status_t trainer_set_up(trainer_t* trainer) CHOIR_NODISCARD;
void trainer_tear_down(trainer_t* trainer);
// --precision auto: what the model computes in from now on. Collective.
choir_status_t trainer_measure_precision(trainer_t* trainer) CHOIR_NODISCARD;

// trainer_report.c
// Of a run of `steps`, where anything is to be told of it.
choir_status_t trainer_make_profile(trainer_t* trainer, int64_t steps)
    CHOIR_NODISCARD;
choir_status_t trainer_start_profile(trainer_t* trainer) CHOIR_NODISCARD;
// Before each training step.
void trainer_note_step(trainer_t* trainer);
// After the training part of an epoch, on all ranks.
choir_status_t trainer_report_profile(trainer_t* trainer, bool is_last)
    CHOIR_NODISCARD;
// What this rank counted in training, also where the end of the round is done
// once more: what it counted since is of an evaluation that broke off.
choir_status_t trainer_take_metrics(trainer_t* trainer) CHOIR_NODISCARD;
// Of all ranks.
choir_status_t trainer_sum_metrics(const trainer_t* trainer,
                                   choir_metrics_t* metrics) CHOIR_NODISCARD;
// Prints and logs. Collective.
choir_status_t trainer_report(trainer_t* trainer, const train_report_t* result)
    CHOIR_NODISCARD;
// Labels of a sample: one of an image, a window's tokens; and what they are.
int64_t trainer_labels_of_sample(const trainer_t* trainer);
const char* trainer_label_name(const trainer_t* trainer);

#endif  // CHOIR_EXAMPLES_TRAINER_INTERNAL_H_
