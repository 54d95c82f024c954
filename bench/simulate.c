// SPDX-License-Identifier: Apache-2.0
// simulate [--net NAME] [--batch N] [--threads N] [--data DIR]
//          [--compute_ms MS --params N] [--hosts N] [--ranks_per_host N]
//          [--bandwidth_mbit M] [--round_trip_ms MS] [--message_us US]
//          [--json true]
// What a step of a network would take, and what it would gain, on 2, 4, 8, ...
// up to N hosts. The network's own step is measured here with one worker
// (--net), or given (--compute_ms, --params). A table for the step, one for the
// speed-up, a column for each number of hosts: docs/scale.md.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_nets.h"
#include "bench/bench_program.h"
#include "dist/dist_opt.h"
#include "io/loader.h"
#include "model/model.h"
#include "opt/optimizer.h"

#define SIMULATE_FIELDS(X, T)                                          \
  X(T, ENUM, net, 0, bench_net_names, 0, "whose step is measured")     \
  X(T, INT, batch, 64, 1, 1e6, "samples of a step for each worker")    \
  X(T, INT, threads, 1, 1, 1024, "threads of one kernel")              \
  X(T, STRING, data, NULL, 0, 0, "folder of MNIST or CIFAR-10")        \
  X(T, FLOAT, compute_ms, 0, 0, 1e9,                                   \
    "a step without exchange; 0: what is measured")                    \
  X(T, INT, params, 0, 0, 1e15, "with compute_ms: the network's")      \
  X(T, INT, hosts, 1024, 2, 1e6, "the most")                           \
  X(T, INT, ranks_per_host, 1, 1, 1024, "that share a host's network") \
  X(T, FLOAT, bandwidth_mbit, 1000, 1e-3, 1e9, "of a host's network")  \
  X(T, FLOAT, round_trip_ms, 0.1, 0, 1e6, "between two hosts")         \
  X(T, FLOAT, message_us, 8, 0, 1e6,                                   \
    "of the processor for a message that goes and one that comes")     \
  X(T, BOOL, json, false, 0, 1, "a line of JSON for each number of hosts")
CHOIR_CONFIG_STRUCT(options_t, SIMULATE_FIELDS);
static const choir_field_t option_fields[] = {
    CHOIR_CONFIG_TABLE(options_t, SIMULATE_FIELDS)};
static const choir_struct_def_t options_def = CHOIR_STRUCT_DEF(
    "usage", options_t, option_fields, "a step on many hosts, predicted");

// ---- The network's step ----

typedef struct run_s {
  choir_device_t* device;
  choir_comm_t* comm;
  choir_dataset_t* dataset;
  choir_loader_t* loader;
  void* layers;
  choir_model_t* model;
  choir_optimizer_t* optimizer;
  choir_dist_opt_t* dist;
} run_t;

static choir_status_t set_up(run_t* run, const options_t* options) {
  const bench_net_t* net = &bench_nets[options->net];
  const choir_device_options_t device = {.threads = (int32_t)options->threads};
  CHOIR_TRY(choir_device_create("cpu", &device, &run->device));
  choir_comm_config_t alone;
  CHOIR_TRY(choir_comm_config_init(&alone));
  alone.backend = "self";
  alone.rank = 0;
  alone.size = 1;
  CHOIR_TRY(choir_comm_create(&alone, &run->comm));
  CHOIR_TRY(net->open_data(options->data, 4096, &run->dataset));
  choir_loader_config_t loader = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  loader.batch = options->batch;
  if (net->gpt) loader.micro_shard = 1;
  CHOIR_TRY(choir_loader_create(run->dataset, run->device, 0, 1, &loader,
                                &run->loader));
  CHOIR_TRY(bench_net_make_model(net, run->device, &run->layers, &run->model));
  CHOIR_TRY(bench_net_make_optimizer(net, &run->optimizer));
  choir_dist_opt_config_t config;
  choir_struct_init(&choir_dist_opt_config_def, &config);
  CHOIR_TRY(
      choir_dist_opt_create(run->optimizer, run->comm, &config, &run->dist));
  // For any link: what is wanted is the step that it measures.
  CHOIR_TRY(choir_dist_opt_use_auto(run->dist, .ranks = 2, .bandwidth = 1));
  choir_model_set_graph(run->model, true, false);
  return choir_model_set_updater(run->model, choir_dist_opt_updater(run->dist));
}

static choir_status_t measure(run_t* run, const options_t* options,
                              choir_workload_t* out_workload) {
  CHOIR_TRY(set_up(run, options));
  const choir_plan_t* plan;
  while (!(plan = choir_dist_opt_plan(run->dist))) {
    const choir_batch_t* batch;
    CHOIR_TRY(choir_loader_next(run->loader, &batch));
    if (!batch) continue;  // an epoch ended
    const choir_model_batch_t one = bench_net_batch(batch);
    CHOIR_TRY(choir_model_train_one_batch(run->model, &one));
  }
  *out_workload = plan->workload;
  return NULL;
}

static choir_status_t find_workload(const options_t* options,
                                    choir_workload_t* out_workload) {
  if (options->compute_ms > 0 && options->params > 0) {
    // Memory that is not in a cache, read and written.
    *out_workload =
        (choir_workload_t){.params = options->params,
                           .buckets = 1 + (int32_t)(options->params >> 21),
                           .compute = 1e-3 * options->compute_ms,
                           .pass = 4e-10 * (double)options->params,
                           .large_share = -1};
    return NULL;
  }
  if (options->params > 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "params is %lld and compute_ms 0; give both or none",
                       (long long)options->params);
  run_t run = {0};
  choir_status_t status = measure(&run, options, out_workload);
  if (!status && options->compute_ms > 0)
    out_workload->compute = 1e-3 * options->compute_ms;
  choir_dist_opt_release(run.dist);
  choir_model_release(run.model);
  choir_optimizer_release(run.optimizer);
  choir_loader_destroy(run.loader);
  choir_dataset_release(run.dataset);
  choir_comm_release(run.comm);
  choir_device_release(run.device);
  free(run.layers);
  return status;
}

// ---- The hosts ----

// A header on the wire by itself, with those of Ethernet, IP and TCP, and among
// others.
#define HEADER_BYTES 100
#define RELAYED_BYTES 40
// As tcp does (dist/backends/tcp/tcp_relay.c).
#define MOST_DIRECT 8
#define FAR_MS 1

// Each rank hears what each other is about to do: from it, or, many that are
// near, in steps that pass on what came.
static choir_link_t link_of(const options_t* options, int32_t hosts) {
  const double own = (double)options->ranks_per_host;
  const double ranks = own * hosts;
  const double bytes_per_second = 1e6 / 8 * options->bandwidth_mbit;
  const double one_way = 0.5e-3 * options->round_trip_ms;
  const double message = 1e-6 * options->message_us;
  const bool is_relayed =
      ranks > MOST_DIRECT && options->round_trip_ms <= FAR_MS;
  const double steps = is_relayed ? ceil(log2(ranks)) : 1;
  const double messages = is_relayed ? steps : ranks - 1;
  const double header = is_relayed ? RELAYED_BYTES : HEADER_BYTES;
  return (choir_link_t){
      .ranks = (int32_t)ranks,
      .hosts = hosts,
      .latency = steps * one_way + messages * message +
                 own * (ranks - own) * header / bytes_per_second,
      .bytes_per_second = bytes_per_second};
}

// ---- What is told ----

typedef double (*column_t)(const choir_plan_row_t* row);
static double milliseconds(const choir_plan_row_t* row) {
  return 1e3 * row->seconds;
}
static double speed_up(const choir_plan_row_t* row) { return row->speed_up; }

enum { MOST_PLANS = 20 };

static void print_table(const char* title, column_t column,
                        const choir_plan_t* plans, int count) {
  printf("\n%-17s", title);
  for (int i = 0; i < count; ++i) printf("%10d", plans[i].link.ranks);
  printf("\n");
  for (int32_t r = 0; r < plans[0].row_count; ++r) {
    printf("%-17s", plans[0].rows[r].option);
    for (int i = 0; i < count; ++i) printf("%10.4g", column(&plans[i].rows[r]));
    printf("\n");
  }
}

// Between which numbers of workers they are quicker than one, and than half of
// them by a tenth.
static void print_ends(const choir_plan_t* plans, int count) {
  printf("\n%-17s%9s%9s  %s\n", "pays", "from", "to", "speed-up there");
  for (int32_t r = 0; r < plans[0].row_count; ++r) {
    int best = 0;
    while (best + 1 < count && plans[best + 1].rows[r].speed_up >
                                   1.1 * plans[best].rows[r].speed_up)
      ++best;
    int first = 0;
    while (first < best && plans[first].rows[r].speed_up <= 1) ++first;
    const choir_plan_row_t* row = &plans[best].rows[r];
    if (row->speed_up <= 1)
      printf("%-17s%9s%9s  %.3g with %d\n", row->option, "-", "-",
             row->speed_up, plans[best].link.ranks);
    else
      printf("%-17s%9d%8d%s  %.4g\n", row->option, plans[first].link.ranks,
             plans[best].link.ranks, best + 1 == count ? "+" : " ",
             row->speed_up);
  }
}

static void print_json(const choir_plan_t* plan) {
  printf("{\"ranks\": %d, \"hosts\": %d, \"compute_ms\": %.6g, \"steps\": {",
         plan->link.ranks, plan->link.hosts, 1e3 * plan->workload.compute);
  for (int32_t r = 0; r < plan->row_count; ++r)
    printf("%s\"%s\": {\"ms\": %.6g, \"bytes\": %.6g, \"speed_up\": %.6g}",
           r ? ", " : "", plan->rows[r].option, 1e3 * plan->rows[r].seconds,
           plan->rows[r].bytes, plan->rows[r].speed_up);
  printf("}}\n");
}

int main(int argc, char** argv) {
  options_t options;
  choir_struct_init(&options_def, &options);
  choir_status_t status = bench_flags_parse(&options_def, argc, argv, &options);
  if (status) return bench_fail("simulate", status, 2);
  choir_workload_t workload;
  status = find_workload(&options, &workload);
  if (status) return bench_fail("simulate", status, 1);
  static choir_plan_t plans[MOST_PLANS];
  int count = 0;
  for (int32_t hosts = 2; hosts <= options.hosts && count < MOST_PLANS;
       hosts *= 2) {
    const choir_link_t link = link_of(&options, hosts);
    choir_plan_make(&link, &workload, &plans[count++]);
  }
  if (options.json) {
    for (int i = 0; i < count; ++i) print_json(&plans[i]);
    return 0;
  }
  printf(
      "%lld parameters, %.4g ms to compute a step; hosts with %lld worker%s "
      "each, %.4g Mbit/s, %.4g ms there and back\n",
      (long long)workload.params, 1e3 * workload.compute,
      (long long)options.ranks_per_host, options.ranks_per_host == 1 ? "" : "s",
      options.bandwidth_mbit, options.round_trip_ms);
  print_table("ms a step", milliseconds, plans, count);
  print_table("speed-up", speed_up, plans, count);
  print_ends(plans, count);
  return 0;
}
