// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/balance.h"

// Samples that each worker evaluates at a time.
#define EVALUATION_BATCH 256
#define BAR_SECONDS 0.1
// Steps that the timeline leaves out at the start, of runs that have enough.
#define TIMELINE_WARMUP 5
// More than a step of these networks has, and most spans altogether.
#define SPANS_PER_STEP 1024
#define MAX_SPANS 4000000

typedef struct trainer_s {
  const train_task_t* task;
  const train_options_t* options;
  choir_comm_t* comm;  // NULL: alone
  int32_t rank;
  int32_t size;
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
  FILE* log;
  choir_profile_t* profile;  // with --verbosity or --timeline
  FILE* timeline;            // of rank 0
  bool wants_timeline;       // until it is written
  int64_t steps_done;        // of this run
  int64_t timeline_begin;    // steps [begin, end)
  int64_t timeline_end;
  bool has_told_plan;
  bool prints;
  bool has_bar;
  double bar_time;
} trainer_t;

typedef struct epoch_result_s {
  double loss;
  double training_accuracy;
  double evaluation_accuracy;
  double seconds;
  double images_per_second;
  uint64_t digest;
} epoch_result_t;

volatile sig_atomic_t trainer_interrupted;

void trainer_enter_users_folder(void) {
  // $BUILD_WORKING_DIRECTORY: the folder in which bazel run was called; paths
  // count from there. Not set: the current folder.
  const char* folder = getenv("BUILD_WORKING_DIRECTORY");
  // Where it does not exist any more, paths count from here.
  if (folder && chdir(folder) != 0) errno = 0;
}

// ---- Setting up ----

static int32_t cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

static choir_status_t open_device(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  const int32_t workers_here =
      trainer->comm ? choir_comm_local_size(trainer->comm) : 1;
  const int32_t share = cores() / workers_here;
  const choir_device_options_t device_options = {
      .threads = options->threads ? (int32_t)options->threads
                                  : (share > 0 ? share : 1),
      // A GPU for each worker of a host.
      .index = trainer->comm ? choir_comm_local_rank(trainer->comm) : 0};
  return choir_device_create(options->device, &device_options,
                             &trainer->device);
}

// shares NULL: the workers are alike.
static choir_status_t open_loader(trainer_t* trainer, choir_dataset_t* dataset,
                                  bool is_training, const char* shares,
                                  choir_loader_t** out_loader) {
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  config.batch = is_training ? trainer->options->batch_size : EVALUATION_BATCH;
  // So that small batches leave no worker without samples.
  if (config.micro_shard > config.batch) config.micro_shard = config.batch;
  config.shares = shares;
  config.seed = trainer->options->seed;
  config.shuffle = is_training;
  return choir_loader_create(dataset, trainer->device, trainer->rank,
                             trainer->size, &config, out_loader);
}

static choir_status_t measure_shares(trainer_t* trainer, char** out_shares) {
  choir_loader_t* loader = NULL;
  CHOIR_TRY(open_loader(trainer, trainer->training_data, true, NULL, &loader));
  choir_status_t status =
      balance_measure(trainer->task, trainer->options, trainer->comm,
                      trainer->device, loader, out_shares);
  choir_loader_destroy(loader);
  return status;
}

static choir_status_t open_training_loader(trainer_t* trainer) {
  char* measured = NULL;
  if (trainer->options->balance) CHOIR_TRY(measure_shares(trainer, &measured));
  const char* shares = measured ? measured : trainer->options->shares;
  choir_status_t status = NULL;
  if (trainer->comm)
    status = choir_comm_check_same(trainer->comm, "shares",
                                   shares ? shares : "alike");
  if (!status)
    status = open_loader(trainer, trainer->training_data, true, shares,
                         &trainer->training_loader);
  free(measured);
  return status;
}

static choir_status_t open_split(const trainer_t* trainer, choir_split_t split,
                                 choir_dataset_t** out_dataset) {
  char note[TRAIN_NOTE_BYTES] = "";
  CHOIR_TRY(
      trainer->task->open_data(trainer->options, split, note, out_dataset));
  if (note[0] && trainer->prints) {
    printf("%s\n", note);
    fflush(stdout);
  }
  const int64_t* given = choir_dataset_shape(*out_dataset);
  const int64_t* needed = trainer->task->image;
  if (memcmp(given, needed, sizeof(trainer->task->image)) != 0)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "data: images are (%lld, %lld, %lld) (channels, height, width); %s "
        "needs (%lld, %lld, %lld)",
        (long long)given[0], (long long)given[1], (long long)given[2],
        trainer->task->model->name, (long long)needed[0], (long long)needed[1],
        (long long)needed[2]);
  return NULL;
}

static choir_status_t open_data(trainer_t* trainer) {
  CHOIR_TRY(open_split(trainer, CHOIR_SPLIT_TRAIN, &trainer->training_data));
  CHOIR_TRY(open_split(trainer, CHOIR_SPLIT_TEST, &trainer->evaluation_data));
  CHOIR_TRY(open_training_loader(trainer));
  return open_loader(trainer, trainer->evaluation_data, false, NULL,
                     &trainer->evaluation_loader);
}

static choir_status_t use_strategy(const trainer_t* trainer) {
  const choir_strategy_def_t* def = NULL;
  choir_strategy_config_t config;
  CHOIR_TRY(train_options_strategy(trainer->options, &def, &config));
  return choir_dist_opt_use(trainer->dist_opt, def, &config);
}

static choir_status_t make_model(trainer_t* trainer) {
  const train_task_t* task = trainer->task;
  const train_options_t* options = trainer->options;
  trainer->net = calloc(1, task->model_bytes);
  if (!trainer->net) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a model");
  if (task->set_up)
    task->set_up(options, trainer->net);
  else if (options->sync_batch_norm)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--sync-batch-norm: the network has no batch norm");
  CHOIR_TRY(choir_model_create(trainer->device, task->model, trainer->net,
                               options->seed, &trainer->model));
  const int64_t shape[] = {1, task->image[0], task->image[1], task->image[2]};
  choir_view_t x;
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 4, shape, &x));
  CHOIR_TRY(choir_model_compile(trainer->model, &x, 1));
  CHOIR_TRY(train_options_set_steps(options, trainer->model));
  CHOIR_TRY(choir_optimizer_sgd(&trainer->optimizer, .lr = options->lr,
                                .momentum = options->momentum,
                                .weight_decay = options->weight_decay));
  trainer->updater = choir_optimizer_updater(trainer->optimizer);
  if (trainer->comm) {
    choir_dist_opt_config_t config;
    choir_struct_init(&choir_dist_opt_config_def, &config);
    config.shard = options->shard_optimizer;
    CHOIR_TRY(choir_dist_opt_create(trainer->optimizer, trainer->comm, &config,
                                    &trainer->dist_opt));
    trainer->updater = choir_dist_opt_updater(trainer->dist_opt);
    CHOIR_TRY(use_strategy(trainer));
  }
  return choir_model_set_updater(trainer->model, trainer->updater);
}

// Files are tried before hours of training.
static choir_status_t open_outputs(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  if (trainer->rank != 0) return NULL;
  if (options->save) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", options->save);
    char* slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    if (access(slash ? folder : ".", W_OK) != 0)
      return CHOIR_ERROR(NOT_FOUND,
                         "save: cannot write to the folder of %s: %s",
                         options->save, strerror(errno));
  }
  if (options->timeline) {
    trainer->timeline = fopen(options->timeline, "w");
    if (!trainer->timeline)
      return CHOIR_ERROR(NOT_FOUND, "timeline: cannot write to %s: %s",
                         options->timeline, strerror(errno));
  }
  if (options->log_json) {
    trainer->log = fopen(options->log_json, options->resume ? "a" : "w");
    if (!trainer->log)
      return CHOIR_ERROR(NOT_FOUND, "log-json: cannot write to %s: %s",
                         options->log_json, strerror(errno));
  }
  return NULL;
}

static choir_status_t set_up(trainer_t* trainer) {
  CHOIR_TRY(open_outputs(trainer));
  CHOIR_TRY(open_device(trainer));
  CHOIR_TRY(open_data(trainer));
  return make_model(trainer);
}

static void tear_down(trainer_t* trainer) {
  choir_loader_destroy(trainer->training_loader);
  choir_loader_destroy(trainer->evaluation_loader);
  choir_dataset_release(trainer->training_data);
  choir_dataset_release(trainer->evaluation_data);
  choir_model_release(trainer->model);
  choir_dist_opt_release(trainer->dist_opt);
  choir_optimizer_release(trainer->optimizer);
  choir_device_release(trainer->device);
  free(trainer->net);
  if (trainer->log) fclose(trainer->log);
  if (trainer->timeline) fclose(trainer->timeline);
  choir_profile_destroy(trainer->profile);
}

// ---- Profile ----

static choir_status_t make_profile(trainer_t* trainer, int64_t epochs) {
  const train_options_t* options = trainer->options;
  if (!options->timeline && options->verbosity == 0) return NULL;
  choir_profile_options_t config = {0};
  if (options->timeline) {
    const int64_t steps = epochs * choir_loader_steps(trainer->training_loader);
    trainer->wants_timeline = true;
    if (steps > 2 * TIMELINE_WARMUP) trainer->timeline_begin = TIMELINE_WARMUP;
    trainer->timeline_end = trainer->timeline_begin + options->timeline_steps;
    config.max_events = options->timeline_steps * SPANS_PER_STEP;
    if (config.max_events > MAX_SPANS) config.max_events = MAX_SPANS;
  }
  return choir_profile_create(&config, &trainer->profile);
}

static choir_status_t start_profile(trainer_t* trainer) {
  if (!trainer->wants_timeline && trainer->options->verbosity == 0) return NULL;
  choir_profile_reset(trainer->profile);
  return choir_profile_start(trainer->profile);
}

// Before each training step.
static void note_step(trainer_t* trainer) {
  if (!trainer->wants_timeline) return;
  choir_profile_keep_events(trainer->profile,
                            trainer->steps_done >= trainer->timeline_begin &&
                                trainer->steps_done < trainer->timeline_end);
}

static choir_status_t write_to(void* file, const char* text, size_t bytes) {
  if (fwrite(text, 1, bytes, file) == bytes) return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "%s", strerror(errno));
}

// After the training part of an epoch, on all ranks.
static choir_status_t report_profile(trainer_t* trainer, bool is_last) {
  if (!trainer->profile) return NULL;
  const train_options_t* options = trainer->options;
  if (trainer->prints) {
    CHOIR_TRY(choir_profile_print(trainer->profile,
                                  (choir_profile_detail_t)options->verbosity,
                                  write_to, stdout));
    fflush(stdout);
  }
  if (!trainer->wants_timeline ||
      (!is_last && trainer->steps_done < trainer->timeline_end))
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

// ---- Checkpoints ----

// What a run must share with the one that it continues, beside its samples.
enum { SETTINGS = 2 };
static void list_settings(const trainer_t* trainer,
                          choir_metadata_t settings[SETTINGS]) {
  const choir_strategy_def_t* strategy =
      trainer->dist_opt ? choir_dist_opt_strategy(trainer->dist_opt)
                        : &choir_strategy_def_fp32;
  settings[0] = (choir_metadata_t){"model", trainer->task->model->name};
  settings[1] =
      (choir_metadata_t){"dist option", choir_strategy_def_option(strategy)};
}

static choir_status_t save(const trainer_t* trainer) {
  choir_metadata_t settings[SETTINGS];
  list_settings(trainer, settings);
  return choir_training_save(trainer->model, trainer->training_loader,
                             trainer->rank == 0 ? trainer->options->save : NULL,
                             settings, SETTINGS);
}

static choir_status_t resume(trainer_t* trainer, int64_t* out_epoch) {
  const train_options_t* options = trainer->options;
  choir_metadata_t settings[SETTINGS];
  list_settings(trainer, settings);
  CHOIR_TRY(choir_training_resume(trainer->model, trainer->training_loader,
                                  options->resume, settings, SETTINGS));
  *out_epoch = choir_loader_position(trainer->training_loader).epoch;
  if (*out_epoch >= options->epochs)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "resume: %s has all of its %" PRId64
                       " epochs and --epochs is %" PRId64 "; more are needed",
                       options->resume, *out_epoch, options->epochs);
  return NULL;
}

// ---- Epochs ----

// A line that grows while the epoch goes on; only on a terminal.
static void draw_bar(trainer_t* trainer, int64_t images, double seconds) {
  const double now = choir_clock_seconds();
  if (!trainer->has_bar || now - trainer->bar_time < BAR_SECONDS) return;
  trainer->bar_time = now;
  const int64_t total = choir_dataset_count(trainer->training_data);
  const double rate = seconds > 0 ? (double)images / seconds : 0;
  char bar[31];
  memset(bar, ' ', sizeof(bar));
  memset(bar, '=', (size_t)(images * 30 / total));
  bar[30] = 0;
  printf("\r[%s] %3d %%  %.0f images/s  %.0f s left\033[K", bar,
         (int)(images * 100 / total), rate,
         rate > 0 ? (double)(total - images) / rate : 0);
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

static choir_model_batch_t model_batch(const choir_batch_t* batch) {
  return (choir_model_batch_t){.inputs = {batch->x},
                               .targets = {batch->y},
                               .first_sample = batch->first_in_step,
                               .sample_count = batch->sample_count,
                               .global_count = batch->global_count};
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

static choir_status_t train_epoch(trainer_t* trainer, int64_t epoch,
                                  double* out_seconds) {
  const double start = choir_clock_seconds();
  const int64_t steps = choir_loader_steps(trainer->training_loader);
  int64_t images = 0;
  CHOIR_TRY(start_profile(trainer));
  for (;;) {
    const choir_batch_t* batch = NULL;
    CHOIR_TRY(check_interrupt());
    note_step(trainer);
    CHOIR_TRY(choir_loader_next(trainer->training_loader, &batch));
    if (!batch) break;
    choir_launch_note_progress(epoch, batch->step);
    choir_model_batch_t one = model_batch(batch);
    one.batch_number = batch->epoch * steps + batch->step + 1;
    CHOIR_TRY(choir_model_train_one_batch(trainer->model, &one));
    if (tell_plan(trainer) && trainer->options->plan) break;
    ++trainer->steps_done;
    images += batch->global_count;
    draw_bar(trainer, images, choir_clock_seconds() - start);
  }
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(trainer->device)));
  *out_seconds = choir_clock_seconds() - start;
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
    const choir_model_batch_t one = model_batch(batch);
    CHOIR_TRY(choir_model_evaluate(trainer->model, &one));
  }
}

// This rank's sums become those of all ranks.
static choir_status_t take_metrics(trainer_t* trainer,
                                   choir_metrics_t* out_metrics) {
  CHOIR_TRY(choir_model_take_metrics(trainer->model, out_metrics));
  if (!trainer->comm) return NULL;
  int64_t counts[] = {out_metrics->correct, out_metrics->samples};
  CHOIR_TRY(choir_comm_all_reduce(trainer->comm, &out_metrics->loss_sum,
                                  &out_metrics->loss_sum, 1, CHOIR_DTYPE_F64,
                                  CHOIR_REDUCE_SUM, "sum of losses"));
  CHOIR_TRY(choir_comm_all_reduce(trainer->comm, counts, counts, 2,
                                  CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM,
                                  "counts of right answers"));
  out_metrics->correct = counts[0];
  out_metrics->samples = counts[1];
  return NULL;
}

static double accuracy(const choir_metrics_t* metrics) {
  return metrics->samples ? (double)metrics->correct / (double)metrics->samples
                          : 0;
}

static choir_status_t report(const trainer_t* trainer, int64_t epoch,
                             const epoch_result_t* result) {
  if (trainer->prints) {
    printf("Training loss = %f, training accuracy = %f\n", result->loss,
           result->training_accuracy);
    printf("Evaluation accuracy = %f\n", result->evaluation_accuracy);
    printf("images/s = %.0f, seconds = %.1f, digest = %016" PRIx64 "\n",
           result->images_per_second, result->seconds, result->digest);
    fflush(stdout);
  }
  if (!trainer->log) return NULL;
  fprintf(trainer->log,
          "{\"epoch\": %" PRId64
          ", \"workers\": %d, \"training_loss\": %.17g, "
          "\"training_accuracy\": %.17g, \"evaluation_accuracy\": %.17g, "
          "\"images_per_second\": %.1f, \"seconds\": %.3f, "
          "\"digest\": \"%016" PRIx64 "\"}\n",
          epoch, trainer->size, result->loss, result->training_accuracy,
          result->evaluation_accuracy, result->images_per_second,
          result->seconds, result->digest);
  if (fflush(trainer->log) != 0 || ferror(trainer->log))
    return CHOIR_ERROR(UNAVAILABLE, "log-json: cannot write to %s: %s",
                       trainer->options->log_json, strerror(errno));
  return NULL;
}

static choir_status_t run_epoch(trainer_t* trainer, int64_t epoch) {
  if (trainer->prints && !trainer->options->plan) {
    printf("Starting Epoch %" PRId64 ":\n", epoch);
    fflush(stdout);
  }
  epoch_result_t result = {0};
  choir_metrics_t metrics;
  CHOIR_TRY(train_epoch(trainer, epoch, &result.seconds));
  if (trainer->options->plan) return NULL;
  CHOIR_TRY(take_metrics(trainer, &metrics));
  result.loss = metrics.loss_sum;
  result.training_accuracy = accuracy(&metrics);
  result.images_per_second = (double)metrics.samples / result.seconds;
  CHOIR_TRY(choir_updater_consolidate(trainer->updater));
  CHOIR_TRY(evaluate(trainer));
  CHOIR_TRY(take_metrics(trainer, &metrics));
  result.evaluation_accuracy = accuracy(&metrics);
  CHOIR_TRY(choir_model_digest(trainer->model, &result.digest));
  if (trainer->dist_opt)
    CHOIR_TRY(choir_dist_opt_check_digest(trainer->dist_opt, result.digest));
  CHOIR_TRY(report(trainer, epoch, &result));
  const train_options_t* options = trainer->options;
  const int64_t done = epoch + 1;
  CHOIR_TRY(report_profile(trainer, done == options->epochs));
  const bool is_due = options->save_every && done % options->save_every == 0;
  if (options->save && (is_due || done == options->epochs))
    CHOIR_TRY(save(trainer));
  return NULL;
}

static choir_status_t run(trainer_t* trainer) {
  CHOIR_TRY(set_up(trainer));
  int64_t first = 0;
  if (trainer->options->resume) CHOIR_TRY(resume(trainer, &first));
  CHOIR_TRY(make_profile(trainer, trainer->options->epochs - first));
  bool has_plan = false;
  for (int64_t epoch = first; epoch < trainer->options->epochs && !has_plan;
       ++epoch) {
    CHOIR_TRY(run_epoch(trainer, epoch));
    has_plan = trainer->options->plan && tell_plan(trainer);
  }
  if (trainer->options->plan && !has_plan)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "plan: %" PRId64 " steps are too few to measure one",
                       trainer->steps_done);
  return NULL;
}

choir_status_t trainer_run(const train_task_t* task,
                           const train_options_t* options, choir_comm_t* comm) {
  trainer_t trainer = {.task = task,
                       .options = options,
                       .comm = comm,
                       .rank = comm ? choir_comm_rank(comm) : 0,
                       .size = comm ? choir_comm_size(comm) : 1};
  trainer.prints = trainer.rank == 0 && !options->quiet;
  // mpiexec shows its ranks a terminal where there may be none.
  trainer.has_bar = trainer.prints && isatty(STDOUT_FILENO) &&
                    !getenv("OMPI_COMM_WORLD_SIZE");
  choir_status_t status = run(&trainer);
  if (status) clear_bar(&trainer);
  tear_down(&trainer);
  return status;
}
