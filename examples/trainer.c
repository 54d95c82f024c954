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

#include "examples/train_log.h"
#include "examples/train_measure.h"
#include "examples/train_memory.h"

// Images that each worker evaluates at a time.
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

volatile sig_atomic_t trainer_interrupted;

void trainer_enter_users_folder(void) {
  // $BUILD_WORKING_DIRECTORY: the folder in which bazel run was called; paths
  // count from there. Not set: the current folder.
  const char* folder = getenv("BUILD_WORKING_DIRECTORY");
  // Where it does not exist any more, paths count from here.
  if (folder && chdir(folder) != 0) errno = 0;
}

choir_status_t trainer_check_folder(const char* flag, const char* path) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof(folder), "%s", path);
  char* slash = strrchr(folder, '/');
  if (slash) slash[slash == folder] = 0;
  if (access(slash ? folder : ".", W_OK) == 0) return NULL;
  return CHOIR_ERROR(NOT_FOUND, "%s: cannot write to the folder of %s: %s",
                     flag, path, strerror(errno));
}

choir_status_t trainer_find_data(const char* own, char out_path[PATH_MAX]) {
  snprintf(out_path, PATH_MAX, "%s", own);
  if (access(out_path, F_OK) == 0) return NULL;
  char program[PATH_MAX / 2];
  const ssize_t length =
      readlink("/proc/self/exe", program, sizeof(program) - 1);
  program[length > 0 ? length : 0] = 0;
  snprintf(out_path, PATH_MAX, "%s.runfiles/choir/%s", program, own);
  if (access(out_path, F_OK) == 0) return NULL;
  return CHOIR_ERROR(NOT_FOUND,
                     "data: neither ./%s nor %s.runfiles/choir/%s is there; "
                     "name your own with --data",
                     own, program, own);
}

// ---- The task ----

train_flags_t train_task_flags(const train_task_t* task,
                               const choir_struct_def_t* def) {
  return (train_flags_t){.def = def,
                         .absent = task->absent_flags,
                         .own_def = task->own_flags,
                         .own = task->own,
                         .set_defaults = task->set_defaults};
}

static choir_status_t make_sgd(const train_options_t* options, double lr,
                               choir_optimizer_t** out_optimizer) {
  return choir_optimizer_sgd(out_optimizer, .lr = lr,
                             .momentum = options->momentum,
                             .weight_decay = options->weight_decay);
}

choir_status_t train_task_make(const train_task_t* task,
                               const train_options_t* options,
                               choir_device_t* device,
                               const choir_dataset_t* data, double lr,
                               void** out_self, choir_model_t** out_model,
                               choir_optimizer_t** out_optimizer) {
  *out_self = calloc(1, task->model_bytes);
  if (!*out_self) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a model");
  if (task->set_up)
    task->set_up(options, *out_self);
  else if (options->sync_batch_norm)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--sync-batch-norm: the network has no batch norm");
  CHOIR_TRY(choir_model_create(device, task->model, *out_self, options->seed,
                               out_model));
  CHOIR_TRY(choir_model_compile(*out_model, choir_dataset_x(data), 1));
  CHOIR_TRY(train_options_set_steps(options, *out_model));
  return (task->make_optimizer ? task->make_optimizer : make_sgd)(
      options, lr, out_optimizer);
}

// ---- Setting up ----

static int32_t cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

static choir_status_t open_device(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  const int32_t workers_here = trainer->is_newcomer ? (int32_t)options->workers
                               : trainer->comm
                                   ? choir_comm_local_size(trainer->comm)
                                   : 1;
  const int32_t share = cores() / workers_here;
  const choir_device_options_t device_options = {
      .threads = options->threads ? (int32_t)options->threads
                                  : (share > 0 ? share : 1),
      // A GPU for each worker of a host.
      .index = trainer->comm ? choir_comm_local_rank(trainer->comm) : 0,
      .reproducible = options->reproducible};
  return choir_device_create(options->device, &device_options,
                             &trainer->device);
}

static choir_status_t start_trace(const trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  if (!options->trace_digests) return NULL;
  const choir_trace_options_t trace = {
      .path = options->trace_digests,
      .rank = trainer->rank,
      .detail = (choir_trace_detail_t)options->trace_detail};
  return choir_trace_start(trainer->device, &trace);
}

// shares NULL: the workers are alike.
static choir_status_t open_loader(trainer_t* trainer, choir_dataset_t* dataset,
                                  bool is_training, const char* shares,
                                  choir_loader_t** out_loader) {
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  const train_task_t* task = trainer->task;
  const train_options_t* options = trainer->options;
  if (is_training) {
    config.batch = options->batch_size;
    config.global_batch = options->global_batch;
  } else {
    // Windows need memory as training does.
    config.batch = task->image[0] ? EVALUATION_BATCH : options->batch_size;
    config.global_batch = task->image[0] ? 0 : options->global_batch;
  }
  // Of all that the run began with, however many there are now.
  if (options->elastic && !config.global_batch && is_training)
    config.global_batch = options->batch_size * options->workers;
  if (task->micro_shard) config.micro_shard = task->micro_shard;
  // So that small batches leave no worker without samples.
  if (config.micro_shard > config.batch) config.micro_shard = config.batch;
  if (options->micro_shard) config.micro_shard = options->micro_shard;
  config.shares = shares;
  config.seed = options->seed;
  config.shuffle = is_training;
  return choir_loader_create(dataset, trainer->device, trainer->rank,
                             trainer->size, &config, out_loader);
}

static choir_status_t measure_shares(trainer_t* trainer, char** out_shares) {
  choir_loader_t* loader = NULL;
  CHOIR_TRY(open_loader(trainer, trainer->training_data, true, NULL, &loader));
  choir_status_t status = train_measure_shares(
      trainer->model, trainer->comm, loader, trainer->prints, out_shares);
  choir_loader_destroy(loader);
  return status;
}

static choir_status_t measure_precision(trainer_t* trainer) {
  choir_loader_t* loader = NULL;
  CHOIR_TRY(open_loader(trainer, trainer->training_data, true, NULL, &loader));
  choir_status_t status =
      train_measure_precision(trainer->model, trainer->comm, loader,
                              trainer->options->resume, trainer->prints);
  choir_loader_destroy(loader);
  return status;
}

static choir_status_t open_training_loader(trainer_t* trainer) {
  char* measured = NULL;
  if (trainer->options->balance) CHOIR_TRY(measure_shares(trainer, &measured));
  const char* shares = measured ? measured : trainer->options->shares;
  choir_status_t status = NULL;
  if (trainer->comm && !trainer->is_newcomer)
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
  if (given && memcmp(given, needed, sizeof(trainer->task->image)) != 0)
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
  return open_split(trainer, CHOIR_SPLIT_TEST, &trainer->evaluation_data);
}

static choir_status_t use_strategy(const trainer_t* trainer) {
  const choir_strategy_def_t* def = NULL;
  choir_strategy_config_t config;
  CHOIR_TRY(train_options_strategy(trainer->options, &def, &config));
  return choir_dist_opt_use(trainer->dist_opt, def, &config);
}

static choir_status_t make_model(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  CHOIR_TRY(train_task_make(trainer->task, options, trainer->device,
                            trainer->training_data, options->lr, &trainer->net,
                            &trainer->model, &trainer->optimizer));
  trainer->updater = choir_optimizer_updater(trainer->optimizer);
  if (trainer->comm) {
    choir_dist_opt_config_t config;
    choir_struct_init(&choir_dist_opt_config_def, &config);
    config.shard = options->shard_optimizer;
    config.elastic = options->elastic;
    CHOIR_TRY(choir_dist_opt_create(trainer->optimizer, trainer->comm, &config,
                                    &trainer->dist_opt));
    trainer->updater = choir_dist_opt_updater(trainer->dist_opt);
    CHOIR_TRY(use_strategy(trainer));
  }
  CHOIR_TRY(choir_model_set_updater(trainer->model, trainer->updater));
  if (!trainer->task->begin || trainer->is_newcomer) return NULL;
  return trainer->task->begin(options, trainer->model, trainer->rank);
}

// Files are tried before hours of training.
static choir_status_t open_outputs(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  if (trainer->rank != 0 || trainer->is_newcomer) return NULL;
  if (options->save) CHOIR_TRY(trainer_check_folder("save", options->save));
  if (options->timeline) {
    trainer->timeline = fopen(options->timeline, "w");
    if (!trainer->timeline)
      return CHOIR_ERROR(NOT_FOUND, "timeline: cannot write to %s: %s",
                         options->timeline, strerror(errno));
  }
  if (!options->log_json) return NULL;
  return train_log_open(options->log_json, options->resume != NULL,
                        &trainer->log);
}

static choir_status_t set_up(trainer_t* trainer) {
  trainer->times = calloc((size_t)trainer->size, sizeof(*trainer->times));
  if (!trainer->times) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for times");
  CHOIR_TRY(open_outputs(trainer));
  CHOIR_TRY(open_device(trainer));
  CHOIR_TRY(start_trace(trainer));
  CHOIR_TRY(open_data(trainer));
  const double before = train_memory_resident();
  CHOIR_TRY(make_model(trainer));
  CHOIR_TRY(open_training_loader(trainer));
  CHOIR_TRY(choir_training_follow(trainer->model, trainer->training_loader));
  CHOIR_TRY(open_loader(trainer, trainer->evaluation_data, false, NULL,
                        &trainer->evaluation_loader));
  const train_memory_t memory = {
      .before = before,
      .model = trainer->model,
      .training = trainer->training_loader,
      .evaluation = trainer->evaluation_loader,
      .workers = trainer->comm ? choir_comm_local_size(trainer->comm) : 1};
  return train_memory_check(&memory, trainer->prints && trainer->options->plan);
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
  free(trainer->times);
  train_log_close(trainer->log);
  if (trainer->timeline) fclose(trainer->timeline);
  choir_profile_destroy(trainer->profile);
}

// ---- Profile ----

static choir_status_t make_profile(trainer_t* trainer, int64_t steps) {
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

static choir_status_t start_profile(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  if (!trainer->wants_timeline && !options->log_json && options->verbosity == 0)
    return NULL;
  choir_profile_reset(trainer->profile);
  return choir_profile_start(trainer->profile);
}

// Before each training step.
static void note_step(trainer_t* trainer) {
  if (!trainer->wants_timeline) return;
  choir_profile_keep_events(trainer->profile,
                            trainer->steps_run >= trainer->timeline_begin &&
                                trainer->steps_run < trainer->timeline_end);
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

// ---- Steps of the run ----

static int64_t steps_done(const trainer_t* trainer) {
  const choir_loader_position_t at =
      choir_loader_position(trainer->training_loader);
  return at.epoch * choir_loader_steps(trainer->training_loader) + at.step;
}

static int64_t last_step(const trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  return options->steps
             ? options->steps
             : options->epochs * choir_loader_steps(trainer->training_loader);
}

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
  const int64_t end = (steps_done(trainer) / steps + 1) * steps;
  return end < last_step(trainer) ? end : last_step(trainer);
}

// ---- What is counted ----

static bool is_of_images(const trainer_t* trainer) {
  return choir_dataset_shape(trainer->training_data) != NULL;
}

// Labels of a sample: one of an image, a window's tokens.
static int64_t labels_of_sample(const trainer_t* trainer) {
  return choir_view_count(choir_dataset_y(trainer->training_data));
}

static const char* label_name(const trainer_t* trainer) {
  return is_of_images(trainer) ? "images" : "tokens";
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
  const int64_t done = steps_done(trainer);
  if (done < last_step(trainer) ||
      (trainer->task->finish && done == last_step(trainer)))
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
         (int)(done * 100 / total), rate * (double)labels_of_sample(trainer),
         label_name(trainer), seconds * (double)(total - done) / (double)done);
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
  const int64_t begin = steps_done(trainer);
  int64_t samples = 0;
  trainer->own_samples = 0;
  CHOIR_TRY(start_profile(trainer));
  for (int64_t done = begin; done < end;) {
    const choir_batch_t* batch = NULL;
    CHOIR_TRY(check_interrupt());
    note_step(trainer);
    CHOIR_TRY(choir_loader_next(trainer->training_loader, &batch));
    if (!batch) continue;  // the next one is of the next epoch
    CHOIR_TRY(train_batch(trainer, batch));
    if (generation_of(trainer) != trainer->generation) break;
    if (tell_plan(trainer) && trainer->options->plan) break;
    samples += batch->global_count;
    trainer->own_samples += batch->sample_count;
    done = steps_done(trainer);
    draw_bar(trainer, done - begin, end - begin, samples,
             choir_clock_seconds() - start);
  }
  // So that a checkpoint at the end of an epoch is one of the next one's begin.
  if (steps_done(trainer) == end &&
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

// What this rank counted in training, also where the end of the round is done
// once more: what it counted since is of an evaluation that broke off.
static choir_status_t take_training_metrics(trainer_t* trainer) {
  choir_metrics_t metrics;
  CHOIR_TRY(choir_model_take_metrics(trainer->model, &metrics));
  if (trainer->metrics_step == steps_done(trainer)) return NULL;
  trainer->metrics = metrics;
  trainer->metrics_step = steps_done(trainer);
  return NULL;
}

// Of all ranks.
static choir_status_t sum_metrics(const trainer_t* trainer,
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

static double ratio(double sum, int64_t count) {
  return count ? sum / (double)count : 0;
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
      .labels = label_name(trainer),
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
      .last_step = last_step(trainer)};
  return train_log_write(trainer->log, &run, report, trainer->times);
}

// Collective: where the time of every rank went, to trainer->times.
static choir_status_t gather_times(trainer_t* trainer) {
  const choir_profile_totals_t totals = choir_profile_totals(trainer->profile);
  const double* self = totals.self_seconds;
  const train_times_t own = {
      .labels = (double)(trainer->own_samples * labels_of_sample(trainer)),
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

static choir_status_t report(trainer_t* trainer, const train_report_t* result) {
  if (trainer->prints) print_result(trainer, result);
  if (!trainer->options->log_json) return NULL;
  CHOIR_TRY(gather_times(trainer));
  return trainer->log ? write_log(trainer, result) : NULL;
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
    trainer->result = (train_report_t){
        .epoch = begin.epoch, .step = end, .steps = end - steps_done(trainer)};
  return train_round(trainer, end, &trainer->result.seconds);
}

// After the training part of a round.
static choir_status_t end_round(trainer_t* trainer) {
  const train_options_t* options = trainer->options;
  train_report_t* result = &trainer->result;
  const int64_t end = steps_done(trainer);
  CHOIR_TRY(take_training_metrics(trainer));
  choir_metrics_t metrics = trainer->metrics;
  CHOIR_TRY(sum_metrics(trainer, &metrics));
  result->loss_sum = metrics.loss_sum;
  result->loss = ratio(metrics.loss_sum, metrics.batches);
  result->training_accuracy = ratio((double)metrics.correct, metrics.samples);
  result->labels_per_second = (double)metrics.samples / result->seconds;
  CHOIR_TRY(choir_updater_consolidate(trainer->updater));
  CHOIR_TRY(evaluate(trainer));
  CHOIR_TRY(choir_model_take_metrics(trainer->model, &metrics));
  CHOIR_TRY(sum_metrics(trainer, &metrics));
  result->evaluation_accuracy = ratio((double)metrics.correct, metrics.samples);
  result->evaluation_loss = ratio(metrics.evaluation_loss_sum, metrics.samples);
  CHOIR_TRY(choir_model_digest(trainer->model, &result->digest));
  if (trainer->dist_opt)
    CHOIR_TRY(choir_dist_opt_check_digest(trainer->dist_opt, result->digest));
  CHOIR_TRY(report(trainer, result));
  const bool is_last = end == last_step(trainer);
  CHOIR_TRY(report_profile(trainer, is_last));
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
  trainer->metrics_step = steps_done(trainer);
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
           steps_done(trainer), generation->seconds);
    fflush(stdout);
  }
  if (trainer->rank == 0 && trainer->options->log_json && !trainer->log)
    CHOIR_TRY(train_log_open(trainer->options->log_json, true, &trainer->log));
  CHOIR_TRY(choir_loader_follow(trainer->evaluation_loader, trainer->rank,
                                trainer->size, (choir_loader_position_t){0}));
  if (generation->has_come) CHOIR_TRY(forget_rounds(trainer));
  CHOIR_TRY(choir_comm_all_reduce(
      trainer->comm, &trainer->finished, &trainer->finished, 1, CHOIR_DTYPE_I64,
      CHOIR_REDUCE_MIN, "rounds that are finished"));
  // Nobody is left who knows: once more.
  if (trainer->finished == INT64_MAX)
    trainer->finished = steps_done(trainer) - 1;
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
  const int64_t done = steps_done(trainer);
  const bool is_end =
      !trainer->options->plan &&
      (done % round_steps(trainer) == 0 || done == last_step(trainer));
  return is_end && done > trainer->finished ? end_round(trainer)
                                            : train(trainer);
}

static bool is_over(const trainer_t* trainer) {
  return (trainer->options->plan ? steps_done(trainer) : trainer->finished) >=
         last_step(trainer);
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
  CHOIR_TRY(set_up(trainer));
  if (trainer->options->resume && !trainer->is_newcomer)
    CHOIR_TRY(resume(trainer));
  if (trainer->options->precision == TRAIN_PRECISION_AUTO)
    CHOIR_TRY(measure_precision(trainer));
  const int64_t last = last_step(trainer);
  CHOIR_TRY(make_profile(trainer, last - steps_done(trainer)));
  bool has_plan;
  trainer->finished = trainer->metrics_step = steps_done(trainer);
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
  tear_down(&trainer);
  return status;
}
