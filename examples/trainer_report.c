// SPDX-License-Identifier: Apache-2.0
// What a run tells: results, the log, where the time went.
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "examples/trainer_internal.h"

// Steps that the timeline leaves out at the start, of runs that have enough.
#define TIMELINE_WARMUP 5
// More than a step of these networks has, and most spans altogether.
#define SPANS_PER_STEP 1024
#define MAX_SPANS 4000000

// ---- Profile ----

choir_status_t trainer_make_profile(trainer_t* trainer, int64_t steps) {
  const train_options_t* options = trainer->options;
  if (!options->timeline && !options->log_json && options->verbosity == 0)
    return NULL;
  choir_profile_options_t config = {0};
  if (options->timeline) {
    trainer->wants_timeline = true;
    if (steps > 2 * TIMELINE_WARMUP) trainer->timeline_begin = TIMELINE_WARMUP;
    trainer->timeline_end = trainer->timeline_begin + options->timeline_steps;
    config.max_events = options->timeline_steps * SPANS_PER_STEP;
    if (config.max_events > MAX_SPANS) config.max_events = MAX_SPANS;
  }
  return choir_profile_create(&config, &trainer->profile);
}

choir_status_t trainer_start_profile(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  if (!trainer->wants_timeline && !options->log_json && options->verbosity == 0)
    return NULL;
  choir_profile_reset(trainer->profile);
  return choir_profile_start(trainer->profile);
}

void trainer_note_step(trainer_t* trainer) {
  if (!trainer->wants_timeline) return;
  choir_profile_keep_events(trainer->profile,
                            trainer->steps_run >= trainer->timeline_begin &&
                                trainer->steps_run < trainer->timeline_end);
}

static choir_status_t write_to(void* file, const char* text, size_t bytes) {
  if (fwrite(text, 1, bytes, file) == bytes) return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "%s", strerror(errno));
}

choir_status_t trainer_report_profile(trainer_t* trainer, bool is_last) {
  if (!trainer->profile) return NULL;
  const train_options_t* options = trainer->options;
  if (trainer->prints) {
    CHOIR_TRY(choir_profile_print(trainer->profile,
                                  (choir_profile_detail_t)options->verbosity,
                                  write_to, stdout));
    fflush(stdout);
  }
  if (!trainer->wants_timeline ||
      (!is_last && trainer->steps_run < trainer->timeline_end))
    return NULL;
  trainer->wants_timeline = false;
  CHOIR_TRY_NOTE(choir_timeline_write(trainer->comm, trainer->profile, write_to,
                                      trainer->timeline),
                 "timeline: cannot write to %s", options->timeline);
  FILE* file = trainer->timeline;
  trainer->timeline = NULL;
  if (file && fclose(file) != 0)
    return CHOIR_ERROR(UNAVAILABLE, "timeline: cannot write to %s: %s",
                       options->timeline, strerror(errno));
  return NULL;
}

// ---- What is counted ----

static bool is_of_images(const trainer_t* trainer) {
  return choir_dataset_shape(trainer->training_data) != NULL;
}

int64_t trainer_labels_of_sample(const trainer_t* trainer) {
  return choir_view_count(choir_dataset_y(trainer->training_data));
}

const char* trainer_label_name(const trainer_t* trainer) {
  return is_of_images(trainer) ? "images" : "tokens";
}

choir_status_t trainer_take_metrics(trainer_t* trainer) {
  choir_metrics_t metrics;
  CHOIR_TRY(choir_model_take_metrics(trainer->model, &metrics));
  if (trainer->metrics_step == trainer_steps_done(trainer)) return NULL;
  trainer->metrics = metrics;
  trainer->metrics_step = trainer_steps_done(trainer);
  return NULL;
}

choir_status_t trainer_sum_metrics(const trainer_t* trainer,
                                   choir_metrics_t* metrics) {
  if (!trainer->comm) return NULL;
  double losses[] = {metrics->loss_sum, metrics->evaluation_loss_sum};
  int64_t counts[] = {metrics->correct, metrics->samples, metrics->batches};
  CHOIR_TRY(choir_comm_all_reduce(trainer->comm, losses, losses, 2,
                                  CHOIR_DTYPE_F64, CHOIR_REDUCE_SUM,
                                  "sums of losses"));
  CHOIR_TRY(choir_comm_all_reduce(trainer->comm, counts, counts, 3,
                                  CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM,
                                  "counts of right answers"));
  metrics->loss_sum = losses[0];
  metrics->evaluation_loss_sum = losses[1];
  metrics->correct = counts[0];
  metrics->samples = counts[1];
  metrics->batches = counts[2];
  return NULL;
}

static void print_result(const trainer_t* trainer,
                         const train_report_t* result) {
  if (is_of_images(trainer)) {
    printf("Training loss = %f, training accuracy = %f\n", result->loss_sum,
           result->training_accuracy);
    printf("Evaluation accuracy = %f\n", result->evaluation_accuracy);
    printf("images/s = %.0f, seconds = %.1f, digest = %016" PRIx64 "\n",
           result->labels_per_second, result->seconds, result->digest);
  } else {
    printf("Step %" PRId64
           ": training loss = %.4f, tokens/s = %.0f, seconds = %.1f, digest = "
           "%016" PRIx64 "\n",
           result->step, result->loss, result->labels_per_second,
           result->seconds, result->digest);
    printf("Validation loss = %.4f\n", result->evaluation_loss);
  }
  fflush(stdout);
}

// How many numbers the model's parameters have.
static int64_t parameter_count(const trainer_t* trainer) {
  const choir_param_set_t* set = choir_model_params(trainer->model);
  int64_t count = 0;
  for (size_t i = 0; i < set->count; ++i)
    count += choir_tensor_count(set->params[i]->value);
  return count;
}

static choir_status_t write_log(const trainer_t* trainer,
                                const train_report_t* report) {
  char strategy[256] = "none";
  if (trainer->dist_opt)
    choir_dist_opt_print_strategy(trainer->dist_opt, strategy,
                                  sizeof(strategy));
  const train_run_t run = {
      .labels = trainer_label_name(trainer),
      .logs_loss_sum = is_of_images(trainer),
      .model = trainer->task->model->name,
      .strategy = strategy,
      .device = choir_device_name(trainer->device),
      .comm = trainer->comm,
      .parameters = parameter_count(trainer),
      .threads = choir_device_threads(trainer->device),
      .batch = choir_loader_partition(trainer->training_loader)->global_batch,
      .training_samples = choir_dataset_count(trainer->training_data),
      .evaluation_samples = choir_dataset_count(trainer->evaluation_data),
      .last_step = trainer_last_step(trainer)};
  return train_log_write(trainer->log, &run, report, trainer->times);
}

// Collective: where the time of every rank went, to trainer->times.
static choir_status_t gather_times(trainer_t* trainer) {
  const choir_profile_totals_t totals = choir_profile_totals(trainer->profile);
  const double* self = totals.self_seconds;
  const train_times_t own = {
      .labels =
          (double)(trainer->own_samples * trainer_labels_of_sample(trainer)),
      .seconds = totals.seconds,
      .compute_seconds = self[CHOIR_SPAN_OP] + totals.outside_seconds,
      .data_seconds = self[CHOIR_SPAN_LOADER],
      .wait_seconds = self[CHOIR_SPAN_WAIT],
      .exchange_seconds = self[CHOIR_SPAN_COMM]};
  trainer->times[trainer->rank] = own;
  if (!trainer->comm) return NULL;
  return choir_comm_all_gather(trainer->comm, &own, trainer->times,
                               sizeof(own) / sizeof(double), CHOIR_DTYPE_F64,
                               "times of ranks");
}

choir_status_t trainer_report(trainer_t* trainer,
                              const train_report_t* result) {
  if (trainer->prints) print_result(trainer, result);
  if (!trainer->options->log_json) return NULL;
  CHOIR_TRY(gather_times(trainer));
  return trainer->log ? write_log(trainer, result) : NULL;
}
