// SPDX-License-Identifier: Apache-2.0
// train_step [--net NAME] [--workers N] [--batch N] [--threads N] [--seconds S]
//            [--steps N] [--warmup N] [--limit N] [--data DIR] [--gate true]
//            [--adam true] [--shard true] [--peer_memory false]
//            [--forward_only true] [--profile true] [--device NAME]
// Trains one of the networks of examples/ for a while and prints one JSON line:
// images/s over all workers, resident memory, and how often work ran beside
// the fast kernels. One worker uses plain SGD, several share gradients through
// DistOpt and shm, or with --meet they share none and only wait for each other
// after each step. --gate: after the warm-up print "ready" and wait for a line
// on standard input, so that several runs can start together. --profile: a
// table of where rank 0's step goes, before the JSON line.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_nets.h"
#include "bench/bench_program.h"
#include "bench/step_profile.h"
#include "core/clock.h"
#include "dist/dist_opt.h"
#include "dist/launch.h"
#include "io/loader.h"
#include "model/model.h"
#include "opt/optimizer.h"

// ---- Flags ----

#define TRAIN_STEP_FIELDS(X, T)                                               \
  X(T, ENUM, net, 0, bench_net_names, 0, "what is trained")                   \
  X(T, INT, workers, 1, 1, 1024, "processes")                                 \
  X(T, INT, batch, 64, 1, 1e6, "samples of a step for each worker")           \
  X(T, INT, threads, 1, 1, 1024, "threads of one kernel")                     \
  X(T, STRING, device, "cpu", 0, 0, "device to compute on")                   \
  X(T, FLOAT, seconds, 3, 1e-3, 1e6, "length of the measured part")           \
  X(T, INT, steps, 0, 0, 1e12, "measure so many steps; 0: by seconds")        \
  X(T, INT, warmup, 32, 0, 1e6, "steps before the measured part")             \
  X(T, INT, limit, 0, 0, 1e9, "the first so many samples; 0: all")            \
  X(T, STRING, data, NULL, 0, 0,                                              \
    "folder of MNIST, for resnet20 of CIFAR-10, a GPT's text; else those of " \
    "examples/data or synthetic images, which alone resnet50 takes")          \
  X(T, BOOL, gate, false, 0, 1, "wait for standard input after the warmup")   \
  X(T, BOOL, meet, false, 0, 1, "workers wait for each other, no more")       \
  X(T, BOOL, forward_only, false, 0, 1, "predict instead of training")        \
  X(T, BOOL, profile, false, 0, 1, "print where the step goes")               \
  X(T, BOOL, bf16, false, 0, 1, "products of bf16 factors")                   \
  X(T, BOOL, adam, false, 0, 1, "Adam instead of SGD")                        \
  X(T, BOOL, shard, false, 0, 1, "optimizer states are shared out")           \
  X(T, BOOL, peer_memory, true, 0, 1, "false: workers exchange messages")     \
  X(T, BOOL, graph, false, 0, 1, "replay a planned graph of the step")        \
  X(T, BOOL, print_graph, false, 0, 1, "print it at the end")
CHOIR_CONFIG_STRUCT(options_t, TRAIN_STEP_FIELDS);
static const choir_field_t option_fields[] = {
    CHOIR_CONFIG_TABLE(options_t, TRAIN_STEP_FIELDS)};
static const choir_struct_def_t options_def = CHOIR_STRUCT_DEF(
    "usage", options_t, option_fields, "the training step, timed");

// ---- Profile: time of each kernel on each shape ----

static void print_rest(const char* what, double us, double share) {
  printf("%-64s %10.1f %6.1f%%\n", what, us, 100 * share);
}

// thread_seconds: of the processor; seconds: of the wall's clock.
static void profile_print(step_profile_t* profile, double thread_seconds,
                          double seconds, int64_t steps) {
  const double to_us = 1e6 / (double)steps;
  step_profile_sort(profile);
  printf("%-31s %-25s %6s %10s %7s %9s %7s\n", "kernel", "shapes", "a step",
         "us a step", "share", "GFLOP/s", "GB/s");
  for (int i = 0; i < profile->row_count; ++i) {
    const step_row_t* row = &profile->rows[i];
    char shapes[96];
    printf("%-31s %-25s %6.2f %10.1f %6.1f%% %9.1f %7.1f\n", row->kernel->name,
           step_row_shapes(row, shapes, sizeof(shapes)),
           (double)row->count / (double)steps, row->seconds * to_us,
           100 * row->seconds / thread_seconds,
           row->flops / row->seconds * 1e-9, row->bytes / row->seconds * 1e-9);
  }
  const double around = thread_seconds - profile->seconds;
  print_rest("around the kernels: tape, dispatch, loader", around * to_us,
             around / thread_seconds);
  print_rest("processor time of a step", thread_seconds * to_us, 1);
  print_rest("off the processor: waiting for data, ranks or a turn",
             (seconds - thread_seconds) * to_us,
             (seconds - thread_seconds) / thread_seconds);
}

// ---- One worker ----

typedef struct run_s {
  const options_t* options;
  choir_comm_t* comm;  // NULL: alone
  int32_t rank;
  choir_device_t* device;
  choir_dataset_t* dataset;
  choir_loader_t* loader;
  const bench_net_t* net;
  void* layers;  // the model's `self`
  choir_model_t* model;
  choir_optimizer_t* optimizer;
  choir_dist_opt_t* dist;
  step_profile_t profile;
} run_t;

static choir_status_t open_data(run_t* run, int32_t size) {
  const options_t* options = run->options;
  CHOIR_TRY(run->net->open_data(options->data, options->limit, &run->dataset));
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  config.batch = options->batch;
  if (run->net->gpt) config.micro_shard = 1;
  return choir_loader_create(run->dataset, run->device, run->rank, size,
                             &config, &run->loader);
}

static choir_status_t make_model(run_t* run) {
  CHOIR_TRY(
      bench_net_make_model(run->net, run->device, &run->layers, &run->model));
  if (run->options->adam)
    CHOIR_TRY(choir_optimizer_adam(&run->optimizer, .lr = 1e-4));
  else
    CHOIR_TRY(bench_net_make_optimizer(run->net, &run->optimizer));
  choir_updater_t* updater = choir_optimizer_updater(run->optimizer);
  if (run->comm && !run->options->meet) {
    choir_dist_opt_config_t config;
    choir_struct_init(&choir_dist_opt_config_def, &config);
    config.shard = run->options->shard;
    config.peer_memory = run->options->peer_memory;
    CHOIR_TRY(
        choir_dist_opt_create(run->optimizer, run->comm, &config, &run->dist));
    updater = choir_dist_opt_updater(run->dist);
  }
  choir_model_set_graph(run->model, run->options->graph, false);
  if (run->options->bf16)
    CHOIR_TRY(choir_model_set_precision(run->model, CHOIR_DTYPE_BF16));
  return choir_model_set_updater(run->model, updater);
}

static choir_status_t set_up(run_t* run) {
  const choir_device_options_t device = {.threads =
                                             (int32_t)run->options->threads};
  CHOIR_TRY(choir_device_create(run->options->device, &device, &run->device));
  int32_t size = 1;
  if (run->options->workers > 1) {
    choir_comm_config_t config;
    CHOIR_TRY(choir_comm_config_init(&config));
    config.device = run->device;
    CHOIR_TRY(choir_comm_create(&config, &run->comm));
    run->rank = choir_comm_rank(run->comm);
    size = choir_comm_size(run->comm);
  }
  CHOIR_TRY(open_data(run, size));
  return make_model(run);
}

static void tear_down(run_t* run) {
  choir_dist_opt_release(run->dist);
  choir_model_release(run->model);
  choir_optimizer_release(run->optimizer);
  choir_loader_destroy(run->loader);
  choir_dataset_release(run->dataset);
  choir_comm_release(run->comm);
  choir_device_release(run->device);
  free(run->layers);
}

// The batch forward in inference mode; nobody reads the result.
static choir_status_t predict(run_t* run, const choir_batch_t* batch) {
  choir_tensor_t* scores = NULL;
  CHOIR_TRY(choir_model_predict(run->model, &batch->x, 1, &scores));
  choir_tensor_release(scores);
  return NULL;
}

static choir_status_t train_one(run_t* run, const choir_batch_t* batch) {
  choir_launch_note_progress(batch->epoch, batch->step);
  const choir_model_batch_t one = bench_net_batch(batch);
  return choir_model_train_one_batch(run->model, &one);
}

// `steps` steps; adds all ranks' samples to *images.
static choir_status_t do_steps(run_t* run, int64_t steps, int64_t* images) {
  for (int64_t step = 0; step < steps;) {
    const choir_batch_t* batch;
    CHOIR_TRY(choir_loader_next(run->loader, &batch));
    if (!batch) continue;  // an epoch ended
    CHOIR_TRY(run->options->forward_only ? predict(run, batch)
                                         : train_one(run, batch));
    if (run->comm && run->options->meet)
      CHOIR_TRY(choir_comm_barrier(run->comm, "a step"));
    *images += batch->global_count;
    ++step;
  }
  return NULL;
}

static choir_status_t reduce_max(run_t* run, double* value, const char* name) {
  if (!run->comm) return NULL;
  return choir_comm_all_reduce(run->comm, value, value, 1, CHOIR_DTYPE_F64,
                               CHOIR_REDUCE_MAX, name);
}

typedef struct result_s {
  int64_t steps;
  int64_t images;
  double seconds;
  double thread_seconds;  // of the processor, rank 0's
  double rss;             // bytes without the data set, of the largest worker
  double peak_rss;        // likewise
  double loss;            // mean over the measured steps of rank 0
  choir_op_stats_t ops;
} result_t;

// Goes on until time or steps are up; all ranks stop after the same step.
static choir_status_t measure(run_t* run, result_t* out) {
  const options_t* options = run->options;
  choir_metrics_t metrics;
  CHOIR_TRY(choir_model_take_metrics(run->model, &metrics));
  choir_op_stats_reset();
  const double start = choir_clock_seconds();
  const double thread_start = step_profile_thread_seconds();
  for (double done = 0; done == 0;) {
    int64_t block = run->net->block;
    if (options->steps && options->steps - out->steps < block)
      block = options->steps - out->steps;
    CHOIR_TRY(do_steps(run, block, &out->images));
    out->steps += block;
    done = options->steps ? out->steps >= options->steps
                          : choir_clock_seconds() - start >= options->seconds;
    CHOIR_TRY(reduce_max(run, &done, "time is up"));
  }
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(run->device)));
  out->seconds = choir_clock_seconds() - start;
  out->thread_seconds = step_profile_thread_seconds() - thread_start;
  out->ops = choir_op_stats();
  CHOIR_TRY(choir_model_take_metrics(run->model, &metrics));
  // A forward pass alone has no loss.
  out->loss = metrics.batches ? metrics.loss_sum / (double)metrics.batches : 0;
  return NULL;
}

// Bytes from a line "VmRSS:   1234 kB".
static double status_bytes(const char* key) {
  FILE* file = fopen("/proc/self/status", "r");
  if (!file) return 0;
  char line[256];
  double bytes = 0;
  while (fgets(line, sizeof(line), file))
    if (strncmp(line, key, strlen(key)) == 0)
      bytes = 1024 * strtod(line + strlen(key), NULL);
  fclose(file);
  return bytes;
}

static choir_status_t measure_memory(run_t* run, double data_bytes,
                                     result_t* out) {
  out->rss = status_bytes("VmRSS:") - data_bytes;
  out->peak_rss = status_bytes("VmHWM:") - data_bytes;
  CHOIR_TRY(reduce_max(run, &out->rss, "resident memory"));
  return reduce_max(run, &out->peak_rss, "peak of resident memory");
}

static choir_status_t pass_gate(run_t* run) {
  if (run->options->gate && run->rank == 0) {
    char line[64];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
      return CHOIR_ERROR(ABORTED,
                         "gate: standard input ended; a line was needed");
  }
  return run->comm ? choir_comm_barrier(run->comm, "gate") : NULL;
}

static void print_result(const run_t* run, double data_bytes,
                         const result_t* r) {
  const options_t* options = run->options;
  printf(
      "{\"name\": \"choir\", \"net\": \"%s\", \"device\": \"%s\", "
      "\"workers\": %lld, "
      "\"threads\": %lld, \"forward_only\": %s, "
      "\"batch\": %lld, \"steps\": %lld, \"images\": %lld, "
      "\"seconds\": %.4f, \"images_per_second\": %.1f, "
      "\"rss_mb\": %.1f, \"peak_rss_mb\": %.1f, \"dataset_mb\": %.1f, "
      "\"loss\": %.5f, \"reference_runs\": %llu, \"host_fallbacks\": %llu, "
      "\"reorders\": %llu}\n",
      bench_net_names[options->net], options->device,
      (long long)options->workers, (long long)options->threads,
      options->forward_only ? "true" : "false", (long long)options->batch,
      (long long)r->steps, (long long)r->images, r->seconds,
      (double)r->images / r->seconds, 1e-6 * r->rss, 1e-6 * r->peak_rss,
      1e-6 * data_bytes, r->loss, (unsigned long long)r->ops.reference_runs,
      (unsigned long long)r->ops.host_fallbacks,
      (unsigned long long)r->ops.reorders);
}

static choir_status_t print_graphs(const choir_model_t* model) {
  char* text = NULL;
  CHOIR_TRY(choir_model_print_graphs(model, &text));
  fputs(text, stdout);
  free(text);
  return NULL;
}

static choir_status_t run_all(run_t* run) {
  CHOIR_TRY(set_up(run));
  int64_t warm_images = 0;
  CHOIR_TRY(do_steps(run, run->options->warmup, &warm_images));
  CHOIR_TRY(pass_gate(run));
  choir_stream_t* stream = choir_device_stream(run->device);
  if (run->options->profile)
    choir_stream_push_stage(stream, &run->profile.stage);
  result_t result = {0};
  choir_status_t status = measure(run, &result);
  if (run->options->profile)
    choir_stream_pop_stage(stream, &run->profile.stage);
  if (status) return status;
  const double data_bytes = (double)choir_dataset_count(run->dataset) *
                            (double)(choir_dataset_image_bytes(run->dataset) +
                                     (int64_t)sizeof(int32_t));
  CHOIR_TRY(measure_memory(run, data_bytes, &result));
  if (run->comm) CHOIR_TRY(choir_comm_finalize(run->comm));
  if (run->rank != 0) return NULL;
  if (run->options->profile)
    profile_print(&run->profile, result.thread_seconds, result.seconds,
                  result.steps);
  if (run->options->print_graph) CHOIR_TRY(print_graphs(run->model));
  print_result(run, data_bytes, &result);
  return NULL;
}

// ---- Program ----

static const char program[] = "train_step";

int main(int argc, char** argv) {
  options_t options;
  choir_status_t status = bench_flags_parse(&options_def, argc, argv, &options);
  if (status) return bench_fail(program, status, 2);
  if (options.workers > 1 && !choir_launch_is_worker())
    return bench_launch(program, argv, options.workers, "shm");
  run_t run = {.options = &options, .net = &bench_nets[options.net]};
  step_profile_init(&run.profile);
  status = run_all(&run);
  tear_down(&run);
  return status ? bench_fail(program, status, 1) : 0;
}
