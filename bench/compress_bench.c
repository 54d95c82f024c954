// SPDX-License-Identifier: Apache-2.0
// compress [--count N] [--kept SHARE] [--runs N] [--json true]
// What a strategy computes, for gradients of the MNIST CNN's size (431,080) and
// of 25 million elements, on one thread: median time of each, taken in turns;
// GB/s of the dense f32 gradient that it deals with; its time beside memcpy's
// of that gradient, which is what the machine can do; and beside the training
// step of the MNIST CNN at batch 64, of the same run. Values are cubed normal
// ones, at places without pattern.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_nets.h"
#include "bench/bench_program.h"
#include "core/clock.h"
#include "dist/compress_internal.h"
#include "dist/compress_kernels_internal.h"
#include "dist/top_k_internal.h"
#include "io/loader.h"
#include "model/model.h"
#include "opt/optimizer.h"

enum { MOST_RUNS = 101, RANKS = 2, STEPS_PER_RUN = 3 };

#define COMPRESS_FIELDS(X, T)                                                 \
  X(T, INT, count, 0, 0, 1e9, "elements; 0: 431,080, then 25 million")        \
  X(T, FLOAT, kept, 0.01, 0, 1, "share of the elements that a message holds") \
  X(T, INT, runs, 21, 1, MOST_RUNS, "of which the median counts")             \
  X(T, BOOL, json, false, 0, 1, "a line of JSON for each row")
CHOIR_CONFIG_STRUCT(options_t, COMPRESS_FIELDS);
static const choir_field_t option_fields[] = {
    CHOIR_CONFIG_TABLE(options_t, COMPRESS_FIELDS)};
static const choir_struct_def_t options_def =
    CHOIR_STRUCT_DEF("usage", options_t, option_fields, "compression, timed");

// ---- What is timed ----

typedef struct work_s {
  int64_t count;
  int64_t k;
  float threshold;  // as many are at or above it
  // Dense: a gradient, and arrays that change.
  float* gradient;
  float* residual;
  float* velocity;
  float* dense;
  uint16_t* halves;
  void* scratch;
  int32_t* indices;
  float* values;
  float* sent;
  uint8_t* message;
  uint8_t* gaps;
  size_t gap_bytes;
  double sum;  // keeps results from being optimised away
} work_t;

static const choir__message_config_t kinds[] = {
    {.kind = CHOIR__VALUES_F32, .weight = 1},
    {.kind = CHOIR__VALUES_F16, .weight = 1},
    {.kind = CHOIR__VALUES_BITS2, .block = 512, .weight = 1},
};

static choir_status_t copy(work_t* work) {
  memcpy(work->dense, work->gradient, (size_t)work->count * sizeof(float));
  return NULL;
}

static choir_status_t f16_encode(work_t* work) {
  work->sum += (double)choir__half_encode(
      CHOIR_DTYPE_F16, work->gradient, work->count, 0, INFINITY, work->halves);
  return NULL;
}

static choir_status_t f16_decode(work_t* work) {
  choir__half_decode(CHOIR_DTYPE_F16, work->halves, work->count, 0,
                     work->dense);
  return NULL;
}

static choir_status_t bf16_encode(work_t* work) {
  work->sum += (double)choir__half_encode(
      CHOIR_DTYPE_BF16, work->gradient, work->count, 0, INFINITY, work->halves);
  return NULL;
}

static choir_status_t bf16_decode(work_t* work) {
  choir__half_decode(CHOIR_DTYPE_BF16, work->halves, work->count, 0,
                     work->dense);
  return NULL;
}

static choir_status_t top_k(work_t* work) {
  return choir__top_k(work->gradient, work->count, work->k, work->scratch,
                      work->indices, work->values);
}

static choir_status_t threshold(work_t* work) {
  int64_t found;
  return choir__select_above(work->gradient, work->count, work->threshold,
                             work->k, work->indices, work->values, &found);
}

static choir_status_t residual_add(work_t* work) {
  choir__residual_add(1, work->gradient, work->count, work->residual);
  return NULL;
}

static choir_status_t residual_subtract(work_t* work) {
  choir__residual_subtract(work->indices, work->values, work->k,
                           work->residual);
  return NULL;
}

static choir_status_t momentum_add(work_t* work) {
  choir__momentum_add(0.9f, 1, work->gradient, work->count, work->velocity,
                      work->residual);
  return NULL;
}

static choir_status_t squared_norm(work_t* work) {
  work->sum += choir__squared_norm(work->gradient, work->count);
  return NULL;
}

static choir_status_t subtract(work_t* work) {
  choir__pass_subtract(work->gradient, work->residual, work->count,
                       work->dense);
  return NULL;
}

static choir_status_t gaps_encode(work_t* work) {
  return choir__gaps_encode(work->count, work->k,
                            choir__gaps_rice(work->count, work->k),
                            work->indices, work->gaps, &work->gap_bytes);
}

static choir_status_t gaps_decode(work_t* work) {
  choir__gaps_reader_t reader = {.gaps = work->gaps,
                                 .bytes = work->gap_bytes,
                                 .count = work->count,
                                 .k = work->k,
                                 .rice = choir__gaps_rice(work->count, work->k),
                                 .index = -1};
  return choir__gaps_decode(&reader, work->k, work->indices);
}

static choir_status_t encode(work_t* work, int kind, size_t* out_bytes) {
  return choir__message_encode(&kinds[kind], work->count, work->k,
                               work->indices, work->values, work->message,
                               out_bytes, work->sent, NULL);
}

// What comes in from one rank.
static choir_status_t add(work_t* work, size_t bytes) {
  choir__message_t message;
  CHOIR_TRY(choir__message_open(work->message, bytes, work->count, &message));
  return choir__message_add(&message, 0.5f, work->dense);
}

static choir_status_t encode_only(work_t* work, int kind) {
  size_t bytes;
  return encode(work, kind, &bytes);
}
static choir_status_t f32_message(work_t* work) { return encode_only(work, 0); }
static choir_status_t f16_message(work_t* work) { return encode_only(work, 1); }
static choir_status_t bits2_message(work_t* work) {
  return encode_only(work, 2);
}

// Each follows the row that wrote the message.
static size_t message_bytes(const work_t* work, int kind) {
  const size_t values[] = {(size_t)work->k * sizeof(float),
                           (size_t)work->k * sizeof(uint16_t),
                           choir__levels_bytes(2, kinds[2].block, work->k)};
  return 32 + work->gap_bytes + values[kind];
}
static choir_status_t f32_add(work_t* work) {
  return add(work, message_bytes(work, 0));
}
static choir_status_t f16_message_add(work_t* work) {
  return add(work, message_bytes(work, 1));
}
static choir_status_t bits2_add(work_t* work) {
  return add(work, message_bytes(work, 2));
}

// ---- Whole steps of a strategy, without what the network takes ----

static choir_status_t finish_sparse(work_t* work, int kind) {
  size_t bytes;
  CHOIR_TRY(encode(work, kind, &bytes));
  choir__residual_subtract(work->indices, work->sent, work->k, work->residual);
  memset(work->dense, 0, (size_t)work->count * sizeof(float));
  for (int rank = 0; rank < RANKS; ++rank) CHOIR_TRY(add(work, bytes));
  return NULL;
}

static choir_status_t top_k_step(work_t* work) {
  CHOIR_TRY(residual_add(work));
  CHOIR_TRY(choir__top_k(work->residual, work->count, work->k, work->scratch,
                         work->indices, work->values));
  return finish_sparse(work, 1);
}

static choir_status_t dgc_step(work_t* work) {
  work->sum += choir__squared_norm(work->gradient, work->count);
  CHOIR_TRY(momentum_add(work));
  CHOIR_TRY(choir__top_k(work->residual, work->count, work->k, work->scratch,
                         work->indices, work->values));
  CHOIR_TRY(finish_sparse(work, 1));
  choir__residual_mask(work->indices, work->k, work->velocity);
  return NULL;
}

typedef struct row_s {
  const char* name;
  choir_status_t (*run)(work_t* work);
} row_t;

// In this order: what selects comes before what uses the indices.
static const row_t rows[] = {
    {"copy", copy},
    {"f16 encode", f16_encode},
    {"f16 decode", f16_decode},
    {"bf16 encode", bf16_encode},
    {"bf16 decode", bf16_decode},
    {"threshold", threshold},
    {"top-k", top_k},
    {"gaps encode", gaps_encode},
    {"gaps decode", gaps_decode},
    {"message of f32", f32_message},
    {"decode-add of f32", f32_add},
    {"message of f16", f16_message},
    {"decode-add of f16", f16_message_add},
    {"message of 2 bits", bits2_message},
    {"decode-add of 2 bits", bits2_add},
    {"residual add", residual_add},
    {"residual subtract", residual_subtract},
    {"momentum correction", momentum_add},
    {"squared norm", squared_norm},
    {"difference", subtract},
    {"sparseTopK, 2 ranks", top_k_step},
    {"dgc, 2 ranks", dgc_step},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

// ---- Arrays ----

static void fill(float* dst, int64_t count, uint64_t state) {
  for (int64_t i = 0; i < count; ++i) {
    // A sum of twelve uniform numbers is near enough to a normal one.
    double x = -6;
    for (int j = 0; j < 12; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x += (double)(state >> 40) / (1 << 24);
    }
    dst[i] = (float)(x * x * x);
  }
}

static void* take(size_t bytes) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  void* memory = aligned_alloc(64, rounded ? rounded : 64);
  // Faults in the pages.
  if (memory) memset(memory, 0, rounded);
  return memory;
}

static choir_status_t work_make(int64_t count, double kept, work_t* work) {
  const int64_t k = (int64_t)(kept * (double)count);
  const size_t dense = (size_t)count * sizeof(float);
  const size_t room = (size_t)(k + CHOIR__TOP_K_SLACK) * sizeof(float);
  const size_t most = choir__message_most_bytes(&kinds[0], count, k);
  *work = (work_t){.count = count,
                   .k = k,
                   .gradient = take(dense),
                   .residual = take(dense),
                   .velocity = take(dense),
                   .dense = take(dense),
                   .halves = take(dense / 2),
                   .scratch = take(choir__top_k_scratch_bytes(count, k)),
                   .indices = take(room),
                   .values = take(room),
                   .sent = take(room),
                   .message = take(most),
                   .gaps = take(most)};
  void* const all[] = {work->gradient, work->residual, work->velocity,
                       work->dense,    work->halves,   work->scratch,
                       work->indices,  work->values,   work->sent,
                       work->message,  work->gaps};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i)
    if (!all[i])
      return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for %lld elements",
                         (long long)count);
  fill(work->gradient, count, 1);
  fill(work->residual, count, 2);
  CHOIR_TRY(top_k(work));
  for (int64_t i = 0; i < k; ++i) {
    const float magnitude =
        work->values[i] < 0 ? -work->values[i] : work->values[i];
    if (i == 0 || magnitude < work->threshold) work->threshold = magnitude;
  }
  return NULL;
}

static void work_free(work_t* work) {
  free(work->gradient);
  free(work->residual);
  free(work->velocity);
  free(work->dense);
  free(work->halves);
  free(work->scratch);
  free(work->indices);
  free(work->values);
  free(work->sent);
  free(work->message);
  free(work->gaps);
}

// ---- The step of the network ----

typedef struct training_s {
  choir_device_t* device;
  choir_dataset_t* dataset;
  choir_loader_t* loader;
  choir_optimizer_t* sgd;
  void* layers;
  choir_model_t* model;
} training_t;

static choir_status_t train_one(training_t* training) {
  const choir_batch_t* batch = NULL;
  // Between two epochs there is none.
  while (!batch) CHOIR_TRY(choir_loader_next(training->loader, &batch));
  const choir_model_batch_t one = bench_net_batch(batch);
  CHOIR_TRY(choir_model_train_one_batch(training->model, &one));
  return choir_stream_synchronize(choir_device_stream(training->device));
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values, int64_t count) {
  qsort(values, (size_t)count, sizeof(double), compare);
  return values[count / 2];
}

static choir_status_t time_training(training_t* training, int64_t runs,
                                    double* out_seconds) {
  const bench_net_t* net = &bench_nets[0];
  const choir_device_options_t device = {.threads = 1};
  CHOIR_TRY(choir_device_create("cpu", &device, &training->device));
  CHOIR_TRY(bench_net_made_up_data(net, 10 * net->batch, &training->dataset));
  choir_loader_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LOADER_FIELDS)};
  config.batch = net->batch;
  CHOIR_TRY(choir_loader_create(training->dataset, training->device, 0, 1,
                                &config, &training->loader));
  CHOIR_TRY(bench_net_make_model(net, training->device, &training->layers,
                                 &training->model));
  CHOIR_TRY(choir_optimizer_sgd(&training->sgd, .lr = 0.005, .momentum = 0.9));
  CHOIR_TRY(choir_model_set_updater(training->model,
                                    choir_optimizer_updater(training->sgd)));
  double seconds[STEPS_PER_RUN * MOST_RUNS];
  const int64_t steps = STEPS_PER_RUN * runs;
  for (int64_t step = -runs; step < steps; ++step) {
    const double start = choir_clock_seconds();
    CHOIR_TRY(train_one(training));
    if (step >= 0) seconds[step] = choir_clock_seconds() - start;
  }
  *out_seconds = median(seconds, steps);
  return NULL;
}

static choir_status_t measure_step(int64_t runs, double* out_seconds) {
  training_t training = {0};
  choir_status_t status = time_training(&training, runs, out_seconds);
  choir_model_release(training.model);
  choir_optimizer_release(training.sgd);
  choir_loader_destroy(training.loader);
  choir_dataset_release(training.dataset);
  choir_device_release(training.device);
  free(training.layers);
  return status;
}

// ---- Program ----

static double seconds_of[ROWS][MOST_RUNS];

static choir_status_t time_rows(work_t* work, int64_t runs) {
  for (int64_t run = -2; run < runs; ++run) {
    for (int i = 0; i < ROWS; ++i) {
      const double start = choir_clock_seconds();
      CHOIR_TRY(rows[i].run(work));
      if (run >= 0) seconds_of[i][run] = choir_clock_seconds() - start;
    }
  }
  return NULL;
}

// What the rows of one count came to.
typedef struct result_s {
  const work_t* work;
  double seconds[ROWS];
  double step_seconds;
} result_t;

static void print_table(const result_t* result) {
  const work_t* work = result->work;
  printf(
      "%lld of %lld elements; messages of f32, f16, 2 bits: %zu, %zu, %zu "
      "bytes; a step of the network: %.2f ms\n%-22s %10s %8s %8s %9s\n",
      (long long)work->k, (long long)work->count, message_bytes(work, 0),
      message_bytes(work, 1), message_bytes(work, 2),
      1e3 * result->step_seconds, "", "us", "GB/s", "copies", "of a step");
  for (int i = 0; i < ROWS; ++i) {
    const double seconds = result->seconds[i];
    printf("%-22s %10.1f %8.1f %8.2f %8.2f%%\n", rows[i].name, 1e6 * seconds,
           1e-9 * (double)work->count * sizeof(float) / seconds,
           seconds / result->seconds[0], 100 * seconds / result->step_seconds);
  }
}

static void print_json(const result_t* result) {
  const work_t* work = result->work;
  for (int i = 0; i < ROWS; ++i) {
    const double seconds = result->seconds[i];
    printf(
        "{\"count\": %lld, \"k\": %lld, \"name\": \"%s\", \"us\": %.2f, "
        "\"gb_per_second\": %.2f, \"copies\": %.3f, \"share_of_step\": %.5f, "
        "\"step_ms\": %.3f, \"f32_bytes\": %zu, \"f16_bytes\": %zu, "
        "\"bits2_bytes\": %zu}\n",
        (long long)work->count, (long long)work->k, rows[i].name, 1e6 * seconds,
        1e-9 * (double)work->count * sizeof(float) / seconds,
        seconds / result->seconds[0], seconds / result->step_seconds,
        1e3 * result->step_seconds, message_bytes(work, 0),
        message_bytes(work, 1), message_bytes(work, 2));
  }
}

static choir_status_t run_count(const options_t* options, int64_t count,
                                double step_seconds) {
  work_t work = {0};
  choir_status_t status = work_make(count, options->kept, &work);
  if (!status) status = time_rows(&work, options->runs);
  if (!status) {
    result_t result = {.work = &work, .step_seconds = step_seconds};
    for (int i = 0; i < ROWS; ++i)
      result.seconds[i] = median(seconds_of[i], options->runs);
    if (options->json)
      print_json(&result);
    else
      print_table(&result);
  }
  work_free(&work);
  return status;
}

static choir_status_t run_all(const options_t* options) {
  double step_seconds;
  CHOIR_TRY(measure_step(options->runs, &step_seconds));
  if (options->count) return run_count(options, options->count, step_seconds);
  CHOIR_TRY(run_count(options, 431080, step_seconds));
  return run_count(options, 25000000, step_seconds);
}

static const char program[] = "compress";

int main(int argc, char** argv) {
  options_t options;
  choir_status_t status = bench_flags_parse(&options_def, argc, argv, &options);
  if (status) return bench_fail(program, status, 2);
  status = run_all(&options);
  return status ? bench_fail(program, status, 1) : 0;
}
