// SPDX-License-Identifier: Apache-2.0
// accuracy_run [--workers N] [--dist_option NAME] [--spars X]
//              [--settings NAME=VALUE,...] [--batch N] [--steps N] [--target X]
//              ...
// Trains the CNN of examples/ on MNIST and looks at the accuracy every so many
// steps: one JSON line each time, and one at the end with milliseconds and
// bytes of a step. Time is that of training and of making the replicas equal;
// evaluation is not counted. Under mpiexec its ranks are the workers; else it
// starts them itself, on this host.
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_nets.h"
#include "bench/bench_program.h"
#include "core/clock.h"
#include "dist/dist_opt.h"
#include "dist/launch.h"
#include "io/loader.h"
#include "model/model.h"
#include "opt/optimizer.h"

#define ACCURACY_RUN_FIELDS(X, T)                                             \
  X(T, INT, workers, 1, 1, 1024, "processes that it starts")                  \
  X(T, INT, batch, 64, 1, 1e6, "samples of a step for each worker")           \
  X(T, INT, threads, 1, 1, 1024, "threads of one kernel")                     \
  X(T, FLOAT, lr, 0.005, 0, 1e6, "learning rate of SGD")                      \
  X(T, FLOAT, momentum, 0.9, 0, 1, "momentum of SGD")                         \
  X(T, INT, seed, 0, 0, 9007199254740992.0, "of values and order of samples") \
  X(T, STRING, dist_option, "fp32", 0, 0, "how gradients are shared")         \
  X(T, FLOAT, spars, 0, 0, 1e30, "of sparse strategies; 0: their default")    \
  X(T, STRING, settings, NULL, 0, 0, "of the strategy: name=value,...")       \
  X(T, INT, steps, 4690, 1, 1e12, "training steps, at most")                  \
  X(T, FLOAT, seconds, 1e9, 0, 1e9, "time of training, at most")              \
  X(T, INT, every, 100, 1, 1e9, "steps between two looks at the accuracy")    \
  X(T, FLOAT, target, 0, 0, 1, "accuracy at which to stop; 0: never")         \
  X(T, FLOAT, deadline, 120, 0.001, 1e6, "longest wait for a peer, seconds")  \
  X(T, STRING, data, "examples/data/mnist", 0, 0, "folder of MNIST's files")
CHOIR_CONFIG_STRUCT(options_t, ACCURACY_RUN_FIELDS);
static const choir_field_t option_fields[] = {
    CHOIR_CONFIG_TABLE(options_t, ACCURACY_RUN_FIELDS)};
static const choir_struct_def_t options_def = CHOIR_STRUCT_DEF(
    "usage", options_t, option_fields, "training against the clock");

enum { EVALUATION_BATCH = 256 };

typedef struct run_s {
  const options_t* options;
  choir_comm_t* comm;  // NULL: alone
  int32_t rank;
  int32_t size;
  choir_device_t* device;
  choir_dataset_t* data[2];  // training, evaluation
  choir_loader_t* loaders[2];
  void* layers;
  choir_model_t* model;
  choir_optimizer_t* sgd;
  choir_dist_opt_t* dist;
  int64_t steps;
  double seconds;
} run_t;

// ---- Setting up ----

static choir_status_t open_split(run_t* run, int split) {
  static const choir_split_t splits[] = {CHOIR_SPLIT_TRAIN, CHOIR_SPLIT_TEST};
  CHOIR_TRY(choir_dataset_open_mnist(run->options->data, splits[split], 0,
                                     &run->data[split]));
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  config.batch = split == 0 ? run->options->batch : EVALUATION_BATCH;
  config.seed = run->options->seed;
  config.shuffle = split == 0;
  return choir_loader_create(run->data[split], run->device, run->rank,
                             run->size, &config, &run->loaders[split]);
}

static choir_status_t read_strategy(const options_t* options,
                                    const choir_strategy_def_t** out_def,
                                    choir_strategy_config_t* out_config) {
  return choir_strategy_config_read(options->dist_option, options->spars,
                                    options->settings, out_def, out_config);
}

static choir_status_t use_strategy(run_t* run) {
  const choir_strategy_def_t* def = NULL;
  choir_strategy_config_t config;
  CHOIR_TRY(read_strategy(run->options, &def, &config));
  return choir_dist_opt_use(run->dist, def, &config);
}

static choir_status_t make_model(run_t* run) {
  const options_t* options = run->options;
  const bench_net_t* net = &bench_nets[0];
  run->layers = calloc(1, net->bytes);
  if (!run->layers) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a model");
  CHOIR_TRY(choir_model_create(run->device, net->def, run->layers,
                               options->seed, &run->model));
  choir_view_t x;
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 4, net->shape, &x));
  CHOIR_TRY(choir_model_compile(run->model, &x, 1));
  choir_model_set_graph(run->model, true, false);
  CHOIR_TRY(choir_optimizer_sgd(&run->sgd, .lr = options->lr,
                                .momentum = options->momentum,
                                .weight_decay = 1e-5));
  choir_updater_t* updater = choir_optimizer_updater(run->sgd);
  if (run->comm) {
    CHOIR_TRY(choir_dist_opt_create(run->sgd, run->comm, NULL, &run->dist));
    CHOIR_TRY(use_strategy(run));
    updater = choir_dist_opt_updater(run->dist);
  }
  return choir_model_set_updater(run->model, updater);
}

static choir_status_t set_up(run_t* run) {
  const choir_device_options_t device = {.threads =
                                             (int32_t)run->options->threads};
  CHOIR_TRY(choir_device_create("cpu", &device, &run->device));
  run->size = 1;
  if (bench_is_worker()) {
    choir_comm_config_t config;
    CHOIR_TRY(choir_comm_config_init(&config));
    config.device = run->device;
    config.deadline = run->options->deadline;
    CHOIR_TRY(choir_comm_create(&config, &run->comm));
    run->rank = choir_comm_rank(run->comm);
    run->size = choir_comm_size(run->comm);
  }
  CHOIR_TRY(open_split(run, 0));
  CHOIR_TRY(open_split(run, 1));
  return make_model(run);
}

static void tear_down(run_t* run) {
  choir_model_release(run->model);
  choir_dist_opt_release(run->dist);
  choir_optimizer_release(run->sgd);
  for (int i = 0; i < 2; ++i) {
    choir_loader_destroy(run->loaders[i]);
    choir_dataset_release(run->data[i]);
  }
  choir_comm_release(run->comm);
  choir_device_release(run->device);
  free(run->layers);
}

// ---- Training ----

static choir_status_t train(run_t* run, int64_t steps) {
  for (int64_t step = 0; step < steps;) {
    const choir_batch_t* batch = NULL;
    CHOIR_TRY(choir_loader_next(run->loaders[0], &batch));
    if (!batch) continue;  // an epoch ended
    choir_launch_note_progress(batch->epoch, batch->step);
    const choir_model_batch_t one = bench_net_batch(batch);
    CHOIR_TRY(choir_model_train_one_batch(run->model, &one));
    ++step;
  }
  return choir_stream_synchronize(choir_device_stream(run->device));
}

static choir_status_t evaluate(run_t* run, double* out_accuracy) {
  choir_metrics_t metrics;
  CHOIR_TRY(choir_model_take_metrics(run->model, &metrics));
  for (;;) {
    const choir_batch_t* batch = NULL;
    CHOIR_TRY(choir_loader_next(run->loaders[1], &batch));
    if (!batch) break;
    const choir_model_batch_t one = bench_net_batch(batch);
    CHOIR_TRY(choir_model_evaluate(run->model, &one));
  }
  CHOIR_TRY(choir_model_take_metrics(run->model, &metrics));
  int64_t counts[] = {metrics.correct, metrics.samples};
  if (run->comm)
    CHOIR_TRY(choir_comm_all_reduce(run->comm, counts, counts, 2,
                                    CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM,
                                    "counts of right answers"));
  *out_accuracy = (double)counts[0] / (double)counts[1];
  return NULL;
}

// Bytes that left this host so far, by all interfaces but the loopback one.
static int64_t bytes_sent(void) {
  DIR* folder = opendir("/sys/class/net");
  if (!folder) return 0;
  int64_t bytes = 0;
  struct dirent* entry = NULL;
  while ((entry = readdir(folder))) {
    if (entry->d_name[0] == '.' || strcmp(entry->d_name, "lo") == 0) continue;
    char path[512];
    snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/tx_bytes",
             entry->d_name);
    FILE* file = fopen(path, "r");
    long long value = 0;
    if (file && fscanf(file, "%lld", &value) == 1) bytes += value;
    if (file) fclose(file);
  }
  closedir(folder);
  return bytes;
}

// One stretch of training and a look. All ranks take rank 0's time.
static choir_status_t do_stretch(run_t* run, double* out_accuracy) {
  const options_t* options = run->options;
  const int64_t left = options->steps - run->steps;
  const int64_t steps = left < options->every ? left : options->every;
  const double start = choir_clock_seconds();
  CHOIR_TRY(train(run, steps));
  if (run->dist)
    CHOIR_TRY(choir_updater_consolidate(choir_dist_opt_updater(run->dist)));
  run->seconds += choir_clock_seconds() - start;
  run->steps += steps;
  if (run->comm)
    CHOIR_TRY(choir_comm_broadcast(run->comm, &run->seconds, 1, CHOIR_DTYPE_F64,
                                   0, "time"));
  CHOIR_TRY(evaluate(run, out_accuracy));
  if (run->rank != 0) return NULL;
  printf("{\"steps\": %" PRId64 ", \"seconds\": %.4f, \"accuracy\": %.4f}\n",
         run->steps, run->seconds, *out_accuracy);
  fflush(stdout);
  return NULL;
}

static void print_plan(const choir_plan_t* plan) {
  printf(
      "{\"latency_ms\": %.4f, \"mb_per_second\": %.3f, "
      "\"compute_ms\": %.3f, \"chosen\": \"%s\", \"ms_per_step\": {",
      1e3 * plan->link.latency, 1e-6 * plan->link.bytes_per_second,
      1e3 * plan->workload.compute, plan->rows[plan->chosen].option);
  for (int32_t i = 0; i < plan->row_count; ++i)
    printf("%s\"%s\": %.3f", i ? ", " : "", plan->rows[i].option,
           1e3 * plan->rows[i].seconds);
  printf("}}\n");
}

static choir_status_t run_all(run_t* run) {
  const options_t* options = run->options;
  CHOIR_TRY(set_up(run));
  if (run->comm) CHOIR_TRY(choir_comm_barrier(run->comm, "start"));
  const int64_t sent = bytes_sent();
  double accuracy = 0;
  do {
    CHOIR_TRY(do_stretch(run, &accuracy));
  } while (run->steps < options->steps && run->seconds < options->seconds &&
           (options->target == 0 || accuracy < options->target));
  const double bytes = (double)(bytes_sent() - sent);
  if (run->comm) CHOIR_TRY(choir_comm_finalize(run->comm));
  if (run->rank != 0) return NULL;
  if (run->dist && choir_dist_opt_plan(run->dist))
    print_plan(choir_dist_opt_plan(run->dist));
  char text[256] = "alone";
  if (run->dist) choir_dist_opt_print_strategy(run->dist, text, sizeof(text));
  printf("{\"strategy\": \"%s\", \"workers\": %d, \"batch\": %" PRId64
         ", \"seed\": %" PRId64 ", \"steps\": %" PRId64
         ", \"seconds\": %.4f, \"accuracy\": %.4f, \"ms_per_step\": %.4f, "
         "\"images_per_second\": %.1f, \"bytes_per_step\": %.0f}\n",
         text, run->size, options->batch, options->seed, run->steps,
         run->seconds, accuracy, 1e3 * run->seconds / (double)run->steps,
         (double)(run->steps * options->batch * run->size) / run->seconds,
         bytes / (double)run->steps);
  return NULL;
}

// ---- Program ----

static const char program[] = "accuracy_run";

int main(int argc, char** argv) {
  options_t options;
  choir_status_t status = bench_flags_parse(&options_def, argc, argv, &options);
  const choir_strategy_def_t* def = NULL;
  choir_strategy_config_t config;
  if (!status) status = read_strategy(&options, &def, &config);
  if (status) return bench_fail(program, status, 2);
  if (options.workers > 1 && !bench_is_worker())
    return bench_launch(program, argv, options.workers, "shm");
  run_t run = {.options = &options};
  status = run_all(&run);
  tear_down(&run);
  return status ? bench_fail(program, status, 1) : 0;
}
