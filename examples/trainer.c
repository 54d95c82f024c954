// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/trainer_internal.h"

#define BAR_SECONDS 0.1

volatile sig_atomic_t trainer_interrupted;

// ---- Steps of the run ----

// From one evaluation to the next; only the last round may be shorter.
static int64_t round_steps(const trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  if (options->evaluate_every) return options->evaluate_every;
  return options->steps ? options->steps
                        : choir_loader_steps(trainer->training_loader);
}

// The step at which the round ends.
static int64_t round_end(const trainer_t* trainer) {
  const int64_t steps = round_steps(trainer);
  const int64_t end = (trainer_steps_done(trainer) / steps + 1) * steps;
  return end < trainer_last_step(trainer) ? end : trainer_last_step(trainer);
}

// ---- Checkpoints ----

// What a run must share with the one that it continues, beside its samples.
enum { SETTINGS = 2 };
static void list_settings(const trainer_t* trainer,
                          choir_metadata_t* settings) {
  const choir_strategy_def_t* strategy =
      trainer->dist_opt ? choir_dist_opt_strategy(trainer->dist_opt)
                        : &choir_strategy_def_fp32;
  settings[0] = (choir_metadata_t){"model", trainer->task->model->name};
  settings[1] =
      (choir_metadata_t){"dist option", choir_strategy_def_option(strategy)};
}

// And which precision it took, for --precision auto.
static choir_status_t save(const trainer_t* trainer) {
  choir_metadata_t lines[SETTINGS + 1];
  list_settings(trainer, lines);
  lines[SETTINGS] = (choir_metadata_t){
      "precision", choir_dtype_name(choir_model_precision(trainer->model))};
  return choir_training_save(trainer->model, trainer->training_loader,
                             trainer->rank == 0 ? trainer->options->save : NULL,
                             lines, SETTINGS + 1);
}

static choir_status_t resume(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  choir_metadata_t settings[SETTINGS];
  list_settings(trainer, settings);
  CHOIR_TRY(choir_training_resume(trainer->model, trainer->training_loader,
                                  options->resume, settings, SETTINGS));
  CHOIR_TRY(choir_training_follow(trainer->model, trainer->training_loader));
  const int64_t done = trainer_steps_done(trainer);
  if (done < trainer_last_step(trainer) ||
      (trainer->task->finish && done == trainer_last_step(trainer)))
    return NULL;
  if (options->steps || !options->epochs)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "resume: %s has %" PRId64
                       " steps and --steps is %" PRId64 "; more are needed",
                       options->resume, done, options->steps);
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "resume: %s has all of its %" PRId64
                     " epochs and --epochs is %" PRId64 "; more are needed",
                     options->resume,
                     done / choir_loader_steps(trainer->training_loader),
                     options->epochs);
}

// ---- Rounds: steps, then an evaluation ----

// A line that grows while the round goes on; only on a terminal.
static void draw_bar(trainer_t* trainer, int64_t done, int64_t total,
                     int64_t samples, double seconds) {
  const double now = choir_clock_seconds();
  if (!trainer->has_bar || now - trainer->bar_time < BAR_SECONDS) return;
  trainer->bar_time = now;
  const double rate = seconds > 0 ? (double)samples / seconds : 0;
  char bar[31];
  memset(bar, ' ', sizeof(bar));
  memset(bar, '=', (size_t)(done * 30 / total));
  bar[30] = 0;
  printf("\r[%s] %3d %%  %.0f %s/s  %.0f s left\033[K", bar,
         (int)(done * 100 / total),
         rate * (double)trainer_labels_of_sample(trainer),
         trainer_label_name(trainer),
         seconds * (double)(total - done) / (double)done);
  fflush(stdout);
}

static void clear_bar(trainer_t* trainer) {
  if (trainer->has_bar) printf("\r\033[K");
  trainer->bar_time = 0;
}

static choir_status_t check_interrupt(void) {
  if (!trainer_interrupted) return NULL;
  return CHOIR_ERROR(ABORTED, "interrupted by signal %d (%s)",
                     (int)trainer_interrupted,
                     strsignal((int)trainer_interrupted));
}

static choir_model_batch_t model_batch(const trainer_t* trainer,
                                       const choir_batch_t* batch) {
  return (choir_model_batch_t){
      .inputs = {batch->x},
      .targets = {batch->y},
      .first_sample = batch->first_in_step,
      .sample_count = batch->sample_count,
      .global_count = batch->global_count,
      .micro_shard = trainer->options->reproducible ? batch->micro_shard : 0};
}

// What dist_option "auto" found, once. Returns whether it is there.
static bool tell_plan(trainer_t* trainer) {
  const choir_plan_t* plan =
      trainer->dist_opt ? choir_dist_opt_plan(trainer->dist_opt) : NULL;
  if (!plan || trainer->has_told_plan || !trainer->prints) return plan;
  char text[2048];
  clear_bar(trainer);
  printf("%s", choir_plan_print(plan, text, sizeof(text)));
  fflush(stdout);
  trainer->has_told_plan = true;
  return true;
}

static choir_status_t train_batch(trainer_t* trainer,
                                  const choir_batch_t* batch) {
  choir_launch_note_progress(batch->epoch, batch->step);
  choir_model_batch_t one = model_batch(trainer, batch);
  one.batch_number =
      batch->epoch * choir_loader_steps(trainer->training_loader) +
      batch->step + 1;
  CHOIR_TRY(choir_model_train_one_batch(trainer->model, &one));
  ++trainer->steps_run;
  return NULL;
}

static int64_t generation_of(const trainer_t* trainer) {
  return trainer->dist_opt
             ? choir_dist_opt_generation(trainer->dist_opt)->number
             : 1;
}

// Up to step `end` of the run, or until workers were lost; adds to *seconds.
static choir_status_t train_round(trainer_t* trainer, int64_t end,
                                  double* seconds) {
  const double start = choir_clock_seconds();
  const int64_t begin = trainer_steps_done(trainer);
  int64_t samples = 0;
  trainer->own_samples = 0;
  CHOIR_TRY(trainer_start_profile(trainer));
  for (int64_t done = begin; done < end;) {
    const choir_batch_t* batch = NULL;
    CHOIR_TRY(check_interrupt());
    trainer_note_step(trainer);
    CHOIR_TRY(choir_loader_next(trainer->training_loader, &batch));
    if (!batch) continue;  // the next one is of the next epoch
    CHOIR_TRY(train_batch(trainer, batch));
    if (generation_of(trainer) != trainer->generation) break;
    if (tell_plan(trainer) && trainer->options->plan) break;
    samples += batch->global_count;
    trainer->own_samples += batch->sample_count;
    done = trainer_steps_done(trainer);
    draw_bar(trainer, done - begin, end - begin, samples,
             choir_clock_seconds() - start);
  }
  // So that a checkpoint at the end of an epoch is one of the next one's begin.
  if (trainer_steps_done(trainer) == end &&
      choir_loader_position(trainer->training_loader).step ==
          choir_loader_steps(trainer->training_loader)) {
    const choir_batch_t* none = NULL;
    CHOIR_TRY(choir_loader_next(trainer->training_loader, &none));
  }
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(trainer->device)));
  *seconds += choir_clock_seconds() - start;
  if (trainer->profile) choir_profile_stop(trainer->profile);
  clear_bar(trainer);
  return NULL;
}

static choir_status_t evaluate(trainer_t* trainer) {
  for (;;) {
    const choir_batch_t* batch = NULL;
    CHOIR_TRY(check_interrupt());
    CHOIR_TRY(choir_loader_next(trainer->evaluation_loader, &batch));
    if (!batch) return NULL;
    const choir_model_batch_t one = model_batch(trainer, batch);
    CHOIR_TRY(choir_model_evaluate(trainer->model, &one));
  }
}

static double ratio(double sum, int64_t count) {
  return count ? sum / (double)count : 0;
}

static choir_status_t train(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  const int64_t end = round_end(trainer);
  const choir_loader_position_t begin =
      choir_loader_position(trainer->training_loader);
  if (trainer->prints && !options->plan && !options->steps && begin.step == 0) {
    printf("Starting Epoch %" PRId64 ":\n", begin.epoch);
    fflush(stdout);
  }
  // Else it goes on after workers were lost.
  if (trainer->result.step != end)
    trainer->result =
        (train_report_t){.epoch = begin.epoch,
                         .step = end,
                         .steps = end - trainer_steps_done(trainer)};
  return train_round(trainer, end, &trainer->result.seconds);
}

// After the training part of a round.
static choir_status_t end_round(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  train_report_t* result = &trainer->result;
  const int64_t end = trainer_steps_done(trainer);
  CHOIR_TRY(trainer_take_metrics(trainer));
  choir_metrics_t metrics = trainer->metrics;
  CHOIR_TRY(trainer_sum_metrics(trainer, &metrics));
  result->loss_sum = metrics.loss_sum;
  result->loss = ratio(metrics.loss_sum, metrics.batches);
  result->training_accuracy = ratio((double)metrics.correct, metrics.samples);
  result->labels_per_second = (double)metrics.samples / result->seconds;
  CHOIR_TRY(choir_updater_consolidate(trainer->updater));
  CHOIR_TRY(evaluate(trainer));
  CHOIR_TRY(choir_model_take_metrics(trainer->model, &metrics));
  CHOIR_TRY(trainer_sum_metrics(trainer, &metrics));
  result->evaluation_accuracy = ratio((double)metrics.correct, metrics.samples);
  result->evaluation_loss = ratio(metrics.evaluation_loss_sum, metrics.samples);
  CHOIR_TRY(choir_model_digest(trainer->model, &result->digest));
  if (trainer->dist_opt)
    CHOIR_TRY(choir_dist_opt_check_digest(trainer->dist_opt, result->digest));
  CHOIR_TRY(trainer_report(trainer, result));
  const bool is_last = end == trainer_last_step(trainer);
  CHOIR_TRY(trainer_report_profile(trainer, is_last));
  const bool is_due = options->save_every &&
                      end / round_steps(trainer) % options->save_every == 0;
  if (options->save && (is_due || is_last)) CHOIR_TRY(save(trainer));
  // Where rank 0 is lost before it has told and saved, another one does it.
  if (options->elastic)
    CHOIR_TRY(choir_comm_barrier(trainer->comm, "end of a round"));
  trainer->finished = end;
  return NULL;
}

// ---- Workers that are lost, and come ----

// What it has counted belongs to rounds that the others have reported.
static choir_status_t forget_rounds(trainer_t* trainer) {
  CHOIR_TRY(choir_model_take_metrics(trainer->model, &trainer->metrics));
  trainer->metrics = (choir_metrics_t){0};
  trainer->metrics_step = trainer_steps_done(trainer);
  trainer->finished = INT64_MAX;  // as much as the others have
  return NULL;
}

// As the workers are now. All do the end of a round again that one has not
// finished.
static choir_status_t enter_generation(trainer_t* trainer) {
  const choir_generation_t* generation =
      choir_dist_opt_generation(trainer->dist_opt);
  choir_comm_retain(generation->comm);
  choir_comm_release(trainer->comm);
  trainer->comm = *trainer->callers_comm = generation->comm;
  trainer->generation = generation->number;
  trainer->rank = choir_comm_rank(trainer->comm);
  trainer->size = choir_comm_size(trainer->comm);
  void* times =
      realloc(trainer->times, (size_t)trainer->size * sizeof(*trainer->times));
  if (!times) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for times");
  trainer->times = times;
  clear_bar(trainer);
  trainer->prints = trainer->rank == 0 && !trainer->options->quiet;
  if (trainer->prints) {
    printf("%s after step %" PRId64 " (%.2f s)\n", generation->text,
           trainer_steps_done(trainer), generation->seconds);
    fflush(stdout);
  }
  if (trainer->rank == 0 && trainer->options->log_json && !trainer->log)
    CHOIR_TRY(train_log_open(trainer->options->log_json, true, &trainer->log));
  CHOIR_TRY(choir_loader_follow(trainer->evaluation_loader, trainer->rank,
                                trainer->size, 0,
                                (choir_loader_position_t){0}));
  if (generation->has_come) CHOIR_TRY(forget_rounds(trainer));
  CHOIR_TRY(choir_comm_all_reduce(
      trainer->comm, &trainer->finished, &trainer->finished, 1, CHOIR_DTYPE_I64,
      CHOIR_REDUCE_MIN, "rounds that are finished"));
  // Nobody is left who knows: once more.
  if (trainer->finished == INT64_MAX)
    trainer->finished = trainer_steps_done(trainer) - 1;
  return NULL;
}

// `status` (taken over) is that of what was done last.
static choir_status_t recover(trainer_t* trainer, choir_status_t status) {
  for (;;) {
    if (status) CHOIR_TRY(choir_training_recover(trainer->model, status));
    if (generation_of(trainer) == trainer->generation) return NULL;
    status = enter_generation(trainer);
    if (!status) return NULL;
  }
}

// The next part of a round.
static choir_status_t run_part(trainer_t* trainer) {
  const int64_t done = trainer_steps_done(trainer);
  const bool is_end =
      !trainer->options->plan &&
      (done % round_steps(trainer) == 0 || done == trainer_last_step(trainer));
  return is_end && done > trainer->finished ? end_round(trainer)
                                            : train(trainer);
}

static bool is_over(const trainer_t* trainer) {
  return (trainer->options->plan
              ? trainer_steps_done(trainer)
              : trainer->finished) >= trainer_last_step(trainer);
}

// Up to the last one, or until there is a plan.
static choir_status_t run_rounds(trainer_t* trainer, bool* out_has_plan) {
  *out_has_plan = false;
  while (!is_over(trainer) && !*out_has_plan) {
    CHOIR_TRY(recover(trainer, run_part(trainer)));
    *out_has_plan = trainer->options->plan && tell_plan(trainer);
  }
  return NULL;
}

static choir_status_t finish(trainer_t* trainer) {
  const train_task_t* task = trainer->task;
  if (!task->finish || trainer->finish_rank == trainer->rank) return NULL;
  trainer->finish_rank = trainer->rank;
  return task->finish(trainer->options, trainer->model, trainer->rank);
}

// Also workers that are lost here are lost to all: who has not finished may
// need one that has.
static choir_status_t end_elastic(trainer_t* trainer) {
  for (;;) {
    choir_status_t status = choir_comm_finalize(trainer->comm);
    if (!status) return NULL;
    bool has_plan;
    CHOIR_TRY(recover(trainer, status));
    CHOIR_TRY(run_rounds(trainer, &has_plan));
    CHOIR_TRY(finish(trainer));
  }
}

static choir_status_t run(trainer_t* trainer) {
  CHOIR_TRY(trainer_set_up(trainer));
  if (trainer->options->resume && !trainer->is_newcomer)
    CHOIR_TRY(resume(trainer));
  if (trainer->options->precision == TRAIN_PRECISION_AUTO)
    CHOIR_TRY(trainer_measure_precision(trainer));
  const int64_t last = trainer_last_step(trainer);
  CHOIR_TRY(trainer_make_profile(trainer, last - trainer_steps_done(trainer)));
  bool has_plan;
  trainer->finished = trainer->metrics_step = trainer_steps_done(trainer);
  if (trainer->is_newcomer) CHOIR_TRY(recover(trainer, NULL));
  CHOIR_TRY(run_rounds(trainer, &has_plan));
  if (trainer->options->plan && !has_plan)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "plan: %" PRId64 " steps are too few to measure one",
                       trainer->steps_run);
  if (trainer->options->plan) return NULL;
  CHOIR_TRY(finish(trainer));
  return trainer->options->elastic ? end_elastic(trainer) : NULL;
}

static bool has_left(const trainer_t* trainer) {
  return trainer->dist_opt &&
         choir_dist_opt_generation(trainer->dist_opt)->has_left;
}

// `status` (taken over) is what it ended with: not a failure.
static void tell_left(const trainer_t* trainer, choir_status_t status) {
  if (!trainer->options->quiet) {
    printf("%s\n", choir_status_message(status));
    fflush(stdout);
  }
  choir_status_free(status);
  choir_comm_release(*trainer->callers_comm);
  *trainer->callers_comm = NULL;
}

choir_status_t trainer_run(const train_task_t* task,
                           const train_options_t* options,
                           choir_comm_t** callers_comm) {
  choir_comm_t* comm = callers_comm ? *callers_comm : NULL;
  trainer_t trainer = {.task = task,
                       .options = options,
                       .comm = comm,
                       .callers_comm = callers_comm,
                       .generation = 1,
                       .finish_rank = -1,
                       .rank = comm ? choir_comm_rank(comm) : 0,
                       .size = comm ? choir_comm_size(comm) : 1,
                       .is_newcomer = comm && choir_comm_is_newcomer(comm)};
  trainer.prints = trainer.rank == 0 && !options->quiet && !trainer.is_newcomer;
  // mpiexec shows its ranks a terminal where there may be none.
  trainer.has_bar = trainer.prints && isatty(STDOUT_FILENO) &&
                    !getenv("OMPI_COMM_WORLD_SIZE");
  choir_status_t status = run(&trainer);
  if (trainer.device)
    status = choir_status_join(status, choir_trace_stop(trainer.device));
  if (status) clear_bar(&trainer);
  if (status && has_left(&trainer)) {
    tell_left(&trainer, status);
    status = NULL;
  }
  trainer_tear_down(&trainer);
  return status;
}
