// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAIN_LOG_H_
#define CHOIR_EXAMPLES_TRAIN_LOG_H_

#include "choir.h"

// --log-json: one JSON object a report. The first of a process also says what
// runs and where, as its "run". The keys are explained in docs/logs.md;
// `python -m choir report` makes a page of them.

// Of one rank, from one report to the next. Doubles alone, as ranks gather it.
typedef struct train_times_s {
  double labels;   // its own images or tokens
  double seconds;  // training, evaluation left out; the sum of those below
  double compute_seconds;   // all that is not below
  double data_seconds;      // filling a batch, or waiting for one
  double wait_seconds;      // blocked for a peer, or for what is exchanged
                            // beside backward
  double exchange_seconds;  // in collectives, waits left out
} train_times_t;

typedef struct train_report_s {
  int64_t epoch;    // in which its steps began
  int64_t step;     // the run's, after the last of them
  int64_t steps;    // how many since the report before
  double loss_sum;  // of batches
  double loss;      // of one batch
  double training_accuracy;
  double evaluation_accuracy;
  double evaluation_loss;  // of a label
  double seconds;
  double labels_per_second;
  uint64_t digest;
} train_report_t;

// What runs. Texts are borrowed until the first report is written.
typedef struct train_run_s {
  const char* labels;  // "images" or "tokens"
  bool logs_loss_sum;  // "training_loss" is the sum of batches
  const char* model;
  const char* strategy;
  const char* device;
  choir_comm_t* comm;  // NULL: one worker
  int64_t parameters;  // numbers in them
  int64_t threads;     // of a worker
  int64_t batch;       // samples per step of all workers
  int64_t training_samples;
  int64_t evaluation_samples;
  int64_t last_step;
} train_run_t;

typedef struct train_log_s train_log_t;

// Empties the file, or, to append, goes on behind what is in it. NOT_FOUND.
choir_status_t train_log_open(const char* path, bool append,
                              train_log_t** out_log) CHOIR_NODISCARD;
// NULL is allowed.
void train_log_close(train_log_t* log);
// times: of every rank, in rank order. UNAVAILABLE: the file took it not.
choir_status_t train_log_write(train_log_t* log, const train_run_t* run,
                               const train_report_t* report,
                               const train_times_t* times) CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_TRAIN_LOG_H_
