// SPDX-License-Identifier: Apache-2.0
// limits [--net NAME] [--batch N] [--threads N] [--steps N] [--warmup N]
//        [--graph false] [--sgemm_size N] [--largest BYTES] [--tries N]
//        [--precision bf16] [--json true]
// What a training step could take at best on this machine, and what it takes:
// measures how fast multiply-adds, sgemm and memory are, runs steps of the
// networks of examples/ on made-up images, and sets each kernel's flops and
// bytes (its own account, see choir_cost_t) against that:
//   flops limit  flops / the rate of sgemm; of products of bf16 that of such
//                ones
//   bytes limit  bytes / the bandwidth of memory: as if every kernel found
//                its operands in memory and left its results there
//   limit        the sum over kernels of the larger one of flops / sgemm and
//                bytes / the bandwidth of the smallest cache that could hold
//                them
// A kernel can be faster than its limit where it finds its operands in a
// nearer cache, or where sgemm is slower than multiply-adds in registers.
// Times are the thread's own (processor time). Without --net all networks of
// images but resnet50, whose steps take seconds.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_nets.h"
#include "bench/bench_program.h"
#include "bench/machine_rates.h"
#include "bench/step_profile.h"
#include "core/clock.h"
#include "io/loader.h"
#include "model/model.h"
#include "opt/optimizer.h"

enum { MAX_RATES = 2, SHAPES_CHARS = 96 };

static const char* const precision_names[] = {"f32", "bf16", NULL};
enum { IS_BF16 = 1 };

#define LIMITS_FIELDS(X, T)                                                  \
  X(T, STRING, net, NULL, 0, 0,                                              \
    "one network; those of images but resnet50 if not given")                \
  X(T, INT, batch, 0, 0, 1e6, "samples of a step; 0: the network's own")     \
  X(T, INT, threads, 1, 1, 1024, "threads of one kernel")                    \
  X(T, INT, steps, 30, 1, 1e6, "steps that are measured")                    \
  X(T, INT, warmup, 5, 1, 1e6, "steps before")                               \
  X(T, INT, sgemm_size, 2048, 1, 65536, "rows and columns")                  \
  X(T, INT, largest, 536870912, 262144, 1e12, "bytes of the largest arrays") \
  X(T, INT, tries, 8, 1, 1000, "the best of so many counts")                 \
  X(T, BOOL, graph, true, 0, 1, "replay a planned graph of the step")        \
  X(T, ENUM, precision, 0, precision_names, 0,                               \
    "see choir_model_set_precision")                                         \
  X(T, BOOL, json, false, 0, 1, "one JSON object instead of tables")
CHOIR_CONFIG_STRUCT(limits_options_t, LIMITS_FIELDS);
static const choir_field_t option_fields[] = {
    CHOIR_CONFIG_TABLE(limits_options_t, LIMITS_FIELDS)};
static const choir_struct_def_t options_def =
    CHOIR_STRUCT_DEF("usage", limits_options_t, option_fields, "limits");

// ---- The steps of a network ----

typedef struct run_s {
  choir_device_t* device;
  choir_dataset_t* dataset;
  choir_loader_t* loader;
  void* layers;
  choir_model_t* model;
  choir_optimizer_t* optimizer;
} run_t;

static choir_status_t set_up(run_t* run, const limits_options_t* options,
                             const bench_net_t* net, int64_t batch) {
  const choir_device_options_t device = {.threads = (int32_t)options->threads};
  CHOIR_TRY(choir_device_create("cpu", &device, &run->device));
  CHOIR_TRY(bench_net_made_up_data(net, 4 * batch, &run->dataset));
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  config.batch = batch;
  if (net->gpt) config.micro_shard = 1;
  CHOIR_TRY(choir_loader_create(run->dataset, run->device, 0, 1, &config,
                                &run->loader));
  CHOIR_TRY(bench_net_make_model(net, run->device, &run->layers, &run->model));
  CHOIR_TRY(bench_net_make_optimizer(net, &run->optimizer));
  CHOIR_TRY(choir_model_set_updater(run->model,
                                    choir_optimizer_updater(run->optimizer)));
  choir_model_set_graph(run->model, options->graph, false);
  return choir_model_set_precision(run->model, options->precision == IS_BF16
                                                   ? CHOIR_DTYPE_BF16
                                                   : CHOIR_DTYPE_F32);
}

static void tear_down(run_t* run) {
  choir_model_release(run->model);
  choir_optimizer_release(run->optimizer);
  choir_loader_destroy(run->loader);
  choir_dataset_release(run->dataset);
  choir_device_release(run->device);
  free(run->layers);
}

static choir_status_t train(run_t* run, int64_t steps) {
  for (int64_t step = 0; step < steps;) {
    const choir_batch_t* batch;
    CHOIR_TRY(choir_loader_next(run->loader, &batch));
    if (!batch) continue;  // an epoch ended
    const choir_model_batch_t one = bench_net_batch(batch);
    CHOIR_TRY(choir_model_train_one_batch(run->model, &one));
    ++step;
  }
  return choir_stream_synchronize(choir_device_stream(run->device));
}

// ---- Limits and what became of them ----

typedef struct report_s {
  const char* net;
  int64_t batch;
  int64_t steps;
  const machine_rates_t* rates;
  step_profile_t profile;
  choir_graph_stats_t graph;  // zeros without graph
  double seconds;             // processor time of all steps
  // Of all steps:
  double flops;
  double flops_limit;  // seconds
  double bytes;
  double limit;
} report_t;

static double flops_limit(const step_row_t* row, const machine_rates_t* rates) {
  bool is_bf16 = false;
  for (int32_t i = 0; i < row->src_count && rates->bgemm > 0; ++i)
    is_bf16 |= row->srcs[i].dtype == CHOIR_DTYPE_BF16;
  return row->flops / (1e9 * (is_bf16 ? rates->bgemm : rates->sgemm));
}

static double row_limit(const step_row_t* row, const machine_rates_t* rates) {
  const double flops = flops_limit(row, rates);
  const double bytes =
      row->bytes /
      (1e9 * machine_rates_bandwidth(rates, row->bytes / (double)row->count));
  return flops > bytes ? flops : bytes;
}

static choir_status_t measure(const limits_options_t* options, int index,
                              report_t* report) {
  run_t run = {0};
  choir_status_t status =
      set_up(&run, options, &bench_nets[index], report->batch);
  if (!status) status = train(&run, options->warmup);
  if (!status) {
    choir_stream_t* stream = choir_device_stream(run.device);
    step_profile_init(&report->profile);
    choir_stream_push_stage(stream, &report->profile.stage);
    const double start = step_profile_thread_seconds();
    status = train(&run, options->steps);
    report->seconds = step_profile_thread_seconds() - start;
    choir_stream_pop_stage(stream, &report->profile.stage);
    report->graph = choir_model_graph_stats(run.model);
  }
  tear_down(&run);
  if (status) return status;
  step_profile_sort(&report->profile);
  for (int i = 0; i < report->profile.row_count; ++i) {
    const step_row_t* row = &report->profile.rows[i];
    report->flops += row->flops;
    report->flops_limit += flops_limit(row, report->rates);
    report->bytes += row->bytes;
    report->limit += row_limit(row, report->rates);
  }
  return NULL;
}

// ---- Output ----

static double memory_bandwidth(const machine_rates_t* rates) {
  return machine_rates_bandwidth(rates, 1e300);
}

static void print_rates(const machine_rates_t* rates) {
  printf("%d thread%s: multiply-adds %.0f GFLOP/s, sgemm %.0f GFLOP/s",
         rates->threads, rates->threads == 1 ? "" : "s", rates->fma,
         rates->sgemm);
  if (rates->bgemm > 0) printf(", of bf16 %.0f GFLOP/s", rates->bgemm);
  printf("\n");
  printf("  %-18s", "KiB");
  for (int i = 0; i < rates->size_count; ++i)
    printf(" %8.0f", rates->sizes[i].bytes / 1024);
  printf("\n  %-18s", "read, GB/s");
  for (int i = 0; i < rates->size_count; ++i)
    printf(" %8.1f", rates->sizes[i].read);
  printf("\n  %-18s", "triad, GB/s");
  for (int i = 0; i < rates->size_count; ++i)
    printf(" %8.1f", rates->sizes[i].triad);
  printf("\n");
}

static void print_report(const report_t* r) {
  const double us = 1e6 / (double)r->steps;
  printf("\n%s, batch %lld, %d thread%s: %.3f GFLOP and %.1f MB a step\n",
         r->net, (long long)r->batch, r->rates->threads,
         r->rates->threads == 1 ? "" : "s", 1e-9 * r->flops / (double)r->steps,
         1e-6 * r->bytes / (double)r->steps);
  printf(
      "flops limit %.0f us, bytes limit %.0f us, limit %.0f us; "
      "measured %.0f us, %.0f us of it in kernels: %.0f %% of the limit\n",
      us * r->flops_limit, us * r->bytes / (1e9 * memory_bandwidth(r->rates)),
      us * r->limit, us * r->seconds, us * r->profile.seconds,
      100 * r->limit / r->seconds);
  if (r->graph.records)
    printf(
        "graph: %d records, %d fused away; temporaries %.2f MB, alive at once "
        "%.2f MB, arena %.2f MB\n",
        r->graph.records, r->graph.fused,
        1e-6 * (double)r->graph.temporary_bytes,
        1e-6 * (double)r->graph.live_bytes,
        1e-6 * (double)r->graph.arena_bytes);
  printf("%-31s %-31s %6s %9s %9s %7s %9s %7s\n", "kernel", "shapes", "a step",
         "us", "limit us", "reached", "GFLOP/s", "GB/s");
  for (int i = 0; i < r->profile.row_count; ++i) {
    const step_row_t* row = &r->profile.rows[i];
    const double limit = row_limit(row, r->rates);
    char shapes[SHAPES_CHARS];
    printf("%-31s %-31s %6.2f %9.1f %9.1f %6.0f%% %9.1f %7.1f\n",
           row->kernel->name, step_row_shapes(row, shapes, sizeof(shapes)),
           (double)row->count / (double)r->steps, us * row->seconds, us * limit,
           100 * limit / row->seconds, 1e-9 * row->flops / row->seconds,
           1e-9 * row->bytes / row->seconds);
  }
}

static void print_rates_json(const machine_rates_t* rates) {
  printf(
      "{\"threads\": %d, \"fma_gflops\": %.2f, \"sgemm_gflops\": %.2f, "
      "\"bf16_gflops\": %.2f, \"bandwidth\": [",
      rates->threads, rates->fma, rates->sgemm, rates->bgemm);
  for (int i = 0; i < rates->size_count; ++i)
    printf("%s{\"bytes\": %.0f, \"read\": %.2f, \"triad\": %.2f}",
           i ? ", " : "", rates->sizes[i].bytes, rates->sizes[i].read,
           rates->sizes[i].triad);
  printf("]}");
}

static void print_report_json(const report_t* r) {
  const double us = 1e6 / (double)r->steps;
  printf(
      "{\"net\": \"%s\", \"batch\": %lld, \"threads\": %d, "
      "\"steps\": %lld, \"gflop\": %.6f, \"mb\": %.6f, "
      "\"flops_limit_us\": %.3f, \"bytes_limit_us\": %.3f, "
      "\"limit_us\": %.3f, \"step_us\": %.3f, \"kernels_us\": %.3f, "
      "\"records\": %d, \"fused\": %d, \"temporary_bytes\": %zu, "
      "\"live_bytes\": %zu, \"arena_bytes\": %zu, \"ops\": [",
      r->net, (long long)r->batch, r->rates->threads, (long long)r->steps,
      1e-9 * r->flops / (double)r->steps, 1e-6 * r->bytes / (double)r->steps,
      us * r->flops_limit, us * r->bytes / (1e9 * memory_bandwidth(r->rates)),
      us * r->limit, us * r->seconds, us * r->profile.seconds, r->graph.records,
      r->graph.fused, r->graph.temporary_bytes, r->graph.live_bytes,
      r->graph.arena_bytes);
  for (int i = 0; i < r->profile.row_count; ++i) {
    const step_row_t* row = &r->profile.rows[i];
    char shapes[SHAPES_CHARS];
    printf(
        "%s\n  {\"kernel\": \"%s\", \"shapes\": \"%s\", "
        "\"a_step\": %.3f, \"us\": %.3f, \"limit_us\": %.3f, "
        "\"mflop\": %.6f, \"mb\": %.6f}",
        i ? "," : "", row->kernel->name,
        step_row_shapes(row, shapes, sizeof(shapes)),
        (double)row->count / (double)r->steps, us * row->seconds,
        us * row_limit(row, r->rates), us * 1e-12 * row->flops,
        us * 1e-12 * row->bytes);
  }
  printf("]}");
}

// ---- Products of bf16 ----

// Of Choir's own op, on values as machine_rates takes them.
static choir_status_t time_products(choir_device_t* device, int64_t n,
                                    int64_t tries, double* out_gflops) {
  choir_stream_t* stream = choir_device_stream(device);
  const int64_t shape[] = {n, n};
  choir_tensor_t* factors[2] = {NULL};
  choir_tensor_t* product = NULL;
  const choir_fill_attrs_t value = {.value = 0.5};
  choir_status_t status = NULL;
  for (int i = 0; i < 2 && !status; ++i) {
    status =
        choir_tensor_create(device, CHOIR_DTYPE_BF16, 2, shape, &factors[i]);
    if (!status)
      status = choir_op_run(stream, CHOIR_OP_FILL, &factors[i], 1, &value,
                            false, &factors[i]);
  }
  double best = 1e9;
  // The first one makes the code.
  for (int64_t i = -1; i < tries && !status; ++i) {
    const double start = choir_clock_seconds();
    status = choir_op_run(stream, CHOIR_OP_MATMUL, factors, 2, NULL, false,
                          &product);
    const double seconds = choir_clock_seconds() - start;
    if (i >= 0 && seconds < best) best = seconds;
  }
  const double side = (double)n;
  *out_gflops = 2e-9 * side * side * side / best;
  for (int i = 0; i < 2; ++i) choir_tensor_release(factors[i]);
  choir_tensor_release(product);
  return status;
}

static choir_status_t measure_bgemm(const limits_options_t* options,
                                    machine_rates_t* rates) {
  const choir_device_options_t one = {.threads = rates->threads};
  choir_device_t* device = NULL;
  CHOIR_TRY(choir_device_create("cpu", &one, &device));
  choir_status_t status =
      time_products(device, options->sgemm_size, options->tries, &rates->bgemm);
  choir_device_release(device);
  return status;
}

// ---- Program ----

static bool is_asked_for(const limits_options_t* options, int index) {
  if (options->net) return strcmp(options->net, bench_net_names[index]) == 0;
  return !bench_nets[index].only_by_name;
}

static choir_status_t run_all(const limits_options_t* options) {
  machine_rates_t rates[MAX_RATES];
  // One thread, and as many as the steps take or two.
  const int more = options->threads > 1 ? (int)options->threads : 2;
  for (int i = 0; i < MAX_RATES; ++i) {
    const machine_rates_config_t config = {.threads = i == 0 ? 1 : more,
                                           .sgemm_size = options->sgemm_size,
                                           .largest = (size_t)options->largest,
                                           .tries = (int)options->tries};
    if (machine_rates_measure(&config, &rates[i]))
      return CHOIR_ERROR(OUT_OF_MEMORY,
                         "rates: no memory for %lld bytes, or sgemm failed",
                         (long long)options->largest);
    if (options->precision == IS_BF16)
      CHOIR_TRY(measure_bgemm(options, &rates[i]));
  }
  if (options->json) printf("{\"rates\": [");
  for (int i = 0; i < MAX_RATES; ++i) {
    if (options->json) {
      if (i) printf(",\n");
      print_rates_json(&rates[i]);
    } else {
      print_rates(&rates[i]);
    }
  }
  if (options->json) printf("],\n\"nets\": [");
  bool first = true;
  for (int i = 0; i < BENCH_NET_COUNT; ++i) {
    if (!is_asked_for(options, i)) continue;
    static report_t report;
    report = (report_t){
        .net = bench_net_names[i],
        .batch = options->batch ? options->batch : bench_nets[i].batch,
        .steps = options->steps,
        .rates = &rates[options->threads > 1]};
    CHOIR_TRY(measure(options, i, &report));
    if (options->json) {
      if (!first) printf(",\n");
      print_report_json(&report);
    } else {
      print_report(&report);
    }
    first = false;
  }
  if (options->json) printf("]}\n");
  return NULL;
}

static choir_status_t parse(int argc, char** argv, limits_options_t* options) {
  CHOIR_TRY(bench_flags_parse(&options_def, argc, argv, options));
  for (int i = 0; i < BENCH_NET_COUNT; ++i)
    if (is_asked_for(options, i)) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT, "net: there is no '%s'", options->net);
}

static const char program[] = "limits";

int main(int argc, char** argv) {
  limits_options_t options;
  choir_status_t status = parse(argc, argv, &options);
  if (status) return bench_fail(program, status, 2);
  status = run_all(&options);
  return status ? bench_fail(program, status, 1) : 0;
}
