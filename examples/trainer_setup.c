// SPDX-License-Identifier: Apache-2.0
// What a run consists of, opened and closed.
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/train_measure.h"
#include "examples/train_memory.h"
#include "examples/trainer_internal.h"

// Images that each worker evaluates at a time.
#define EVALUATION_BATCH 256

// ---- Folders ----

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

choir_status_t trainer_measure_precision(trainer_t* trainer) {
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

choir_status_t trainer_set_up(trainer_t* trainer) {
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

void trainer_tear_down(trainer_t* trainer) {
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
