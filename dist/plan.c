// SPDX-License-Identifier: Apache-2.0
#include "dist/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/strategies/strategy_internal.h"

// The list begins with what changes training least; a later strategy must be
// better by so much.
#define WORTH 0.95

static double larger(double a, double b) { return a > b ? a : b; }

// Up to so many bytes the data of an operation go while ranks agree on it.
#define SMALL_BYTES (16 << 10)

static double messages_of(const choir_strategy_cost_t* cost) {
  if (cost->reduced + cost->gathered <= SMALL_BYTES * cost->operations)
    return 1;
  return cost->reduced > 0 ? 3 : 2;
}

static void fill_row(const choir_plan_t* plan,
                     const choir_strategy_cost_t* cost, choir_plan_row_t* row) {
  const choir_link_t* link = &plan->link;
  const double compute = plan->workload.compute;
  const double ranks = link->ranks;
  const double hosts = link->hosts > 0 ? link->hosts : ranks;
  const double bytes = 2 * cost->reduced * (hosts - 1) / hosts +
                       cost->gathered * ranks * (hosts - 1) / hosts;
  double exchange = 0;
  if (link->ranks > 1)
    exchange = cost->operations * messages_of(cost) * link->latency +
               bytes / link->bytes_per_second;
  // What is left when the steps in between, or half of backward, are over. The
  // last bucket is exchanged after backward.
  double left = exchange;
  if (cost->delay > 0)
    left = larger(0, exchange - (double)cost->delay * compute);
  else if (cost->overlaps)
    left = larger(exchange / cost->operations, exchange - compute / 2);
  row->bytes = bytes / (double)cost->period;
  row->seconds = compute + cost->passes * plan->workload.pass +
                 left / (double)cost->period;
  row->speed_up = ranks * compute / row->seconds;
  row->effort = cost->effort;
}

void choir_plan_make(const choir_link_t* link, const choir_workload_t* workload,
                     choir_plan_t* out_plan) {
  *out_plan = (choir_plan_t){.link = *link, .workload = *workload};
  const choir_strategy_def_t* def = NULL;
  for (int32_t i = 0; (def = choir_strategy_def_get(i)); ++i) {
    void* config = def->cost ? malloc(def->config->bytes) : NULL;
    if (!config) continue;
    choir_struct_init(def->config, config);
    choir_strategy_cost_t cost;
    const bool is_known = def->cost(config, workload, &cost);
    free(config);
    if (!is_known) continue;
    choir_plan_row_t* row = &out_plan->rows[out_plan->row_count];
    row->option = choir_strategy_def_option(def);
    fill_row(out_plan, &cost, row);
    const choir_plan_row_t* best = &out_plan->rows[out_plan->chosen];
    if (row->seconds * row->effort < WORTH * best->seconds * best->effort)
      out_plan->chosen = out_plan->row_count;
    ++out_plan->row_count;
  }
}

// The first row is that of plain fp32.
static void print_advice(const choir_plan_t* plan, char* text,
                         size_t text_bytes) {
  const choir_plan_row_t* plain = &plan->rows[0];
  const choir_plan_row_t* chosen = &plan->rows[plan->chosen];
  if (plan->link.ranks == 1 || plan->row_count == 0) return;
  if (plain->speed_up < 1)
    snprintf(text, text_bytes,
             "%s would take %.4g ms a step, %.1f times slower than one worker "
             "alone; %s %.4g ms, %.1f times faster\n",
             plain->option, 1e3 * plain->seconds, 1 / plain->speed_up,
             chosen->option, 1e3 * chosen->seconds, chosen->speed_up);
  else
    snprintf(text, text_bytes,
             "%s: %.4g ms a step, %.1f times faster than one worker alone\n",
             chosen->option, 1e3 * chosen->seconds, chosen->speed_up);
}

const char* choir_plan_print(const choir_plan_t* plan, char* text,
                             size_t text_bytes) {
  int used = snprintf(
      text, text_bytes,
      "%d workers, %lld parameters, %.2f ms to compute a step; link: %.3f ms, "
      "%.2f MB/s\n  %-16s %14s %10s %9s\n",
      plan->link.ranks, (long long)plan->workload.params,
      1e3 * plan->workload.compute, 1e3 * plan->link.latency,
      1e-6 * plan->link.bytes_per_second, "", "bytes a step", "ms a step",
      "speed-up");
  for (int32_t i = 0; i < plan->row_count; ++i) {
    if (used < 0 || (size_t)used >= text_bytes) return text;
    const choir_plan_row_t* row = &plan->rows[i];
    used += snprintf(text + used, text_bytes - (size_t)used,
                     "%c %-16s %14.0f %10.2f %9.2f\n",
                     i == plan->chosen ? '*' : ' ', row->option, row->bytes,
                     1e3 * row->seconds, row->speed_up);
  }
  if (used > 0 && (size_t)used < text_bytes)
    print_advice(plan, text + used, text_bytes - (size_t)used);
  return text;
}
